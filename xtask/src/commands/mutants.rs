//! `cargo xtask mutants`

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use xshell::{Shell, cmd};

use xtask::paths;
use xtask::report::{Outcome, Report};

use crate::commands::coverage;
use crate::tools;

#[derive(clap::Args)]
pub struct Args {
    /// Only the mutants whose name contains this
    filter: Option<String>,
    /// Break the kernels' PTX instead, at random, on lines that tests execute; tests are run once first unless they have
    /// been, by `cargo xtask coverage`
    #[arg(long, conflicts_with = "filter")]
    ptx: bool,
    /// Only kernels whose names contain this
    #[arg(long, requires = "ptx")]
    kernel: Option<String>,
    /// Mutants of PTX to try
    #[arg(long, requires = "ptx", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Seed of mutants and problems; the day's number if not given
    #[arg(long, requires = "ptx")]
    seed: Option<u64>,
}

/// One way to break the code, which the tests must notice.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// Text that occurs exactly once in the file.
    original: &'static str,
    broken: &'static str,
    /// The tests that must fail, by parts of their names.
    tests: &'static [&'static str],
}

/// Tests of the forward pass; of the backward pass; and of its kernels that few drawn cases reach.
const FORWARD: &[&str] = &["properties::", "stress::"];
const BACKWARD: &[&str] = &["backward::random::sim", "backward::planted::sim"];
const OF_WIDE_HEADS: &[&str] = &["backward::stored_ds::sim"];
const OF_STORED_F32: &[&str] = &["backward::stored_ds_f32::sim"];
const OF_SLOPES: &[&str] = &["backward::slopes::sim"];
const OF_F32_PARTS: &[&str] = &["f32_parts::sim"];

impl Mutant {
    /// Text of the file in `tree` before it is broken.
    fn whole(&self, tree: &Path) -> anyhow::Result<String> {
        let Self {
            name,
            file,
            original,
            ..
        } = self;
        let text = fs::read_to_string(tree.join(file)).with_context(|| *file)?;
        anyhow::ensure!(
            text.matches(original).count() == 1,
            "{name}: `{original}` must occur once in {file}"
        );
        Ok(text)
    }
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "rescale: the accumulator keeps its old maximum",
        tests: FORWARD,
        file: "kernels-gpu/src/simt/forward.rs",
        original: "*o *= rescale;",
        broken: "*o *= rescale.max(1.0);",
    },
    Mutant {
        name: "rescale: a factor below f32's normal numbers counts as 0",
        tests: FORWARD,
        file: "kernels-gpu/src/mma/accumulator.rs",
        original: "any(underflows)",
        broken: "any(underflows && false)",
    },
    Mutant {
        name: "mask: one hidden key is seen",
        tests: FORWARD,
        file: "kernels-gpu/src/tile/mask.rs",
        original: "key > last",
        broken: "key > last + 1",
    },
    Mutant {
        name: "mask: one block that needs a mask gets none",
        tests: FORWARD,
        file: "kernels-gpu/src/tile/block_range.rs",
        original: "(key_begin + block_n - 1) as i32 > self.full_last",
        broken: "(key_begin + block_n - 1) as i32 > self.full_last + 1",
    },
    Mutant {
        name: "tail: the last partial tile of keys is left out",
        tests: FORWARD,
        file: "kernels-gpu/src/tile/block_range.rs",
        original: "last as u32 / block_n + 1",
        broken: "(last as u32 + 1) / block_n",
    },
    Mutant {
        name: "tail: the last partial chunk of V is left out",
        tests: FORWARD,
        file: "kernels-gpu/src/simt/forward.rs",
        original: "block.keys.div_ceil(v_chunk)",
        broken: "(block.keys / v_chunk).max(1)",
    },
    Mutant {
        name: "stride: heads use the sequence stride",
        tests: FORWARD,
        file: "kernels-gpu/src/tile/sequence.rs",
        original: "head as i64 * operand.head_stride",
        broken: "head as i64 * operand.seq_stride",
    },
    Mutant {
        name: "barrier: a chunk is read before it is visible",
        tests: FORWARD,
        file: "kernels-gpu/src/simt/stages.rs",
        original: "        K::sync();\n        self.now",
        broken: "        self.now",
    },
    Mutant {
        name: "wait: a block of K and V is multiplied before it has arrived",
        tests: FORWARD,
        file: "kernels-gpu/src/mma/kv_loader.rs",
        original: "        wait_group::<0>();\n        // The barrier publishes",
        broken: "        wait_group::<1>();\n        // The barrier publishes",
    },
    Mutant {
        name: "parts: the products of one number's rest are left out",
        tests: OF_F32_PARTS,
        file: "kernels-gpu/src/mma/tf32.rs",
        original: "    add_products(acc, col, &a.large, &b.small);\n",
        broken: "",
    },
    Mutant {
        name: "parts: a hidden key counts where f32 multiplies itself",
        tests: OF_F32_PARTS,
        file: "kernels-gpu/src/mma/ieee.rs",
        original: "if weights[i].to_bits() != MASKED_OUT.to_bits()",
        broken: "if weights[i].to_bits() != 1",
    },
    Mutant {
        name: "barrier: V of one stage is read before it is visible",
        tests: FORWARD,
        file: "kernels-gpu/src/mma/kv_loader.rs",
        original: "            // The barrier publishes V and frees K.\n            sync_threads();\n",
        broken: "",
    },
    Mutant {
        name: "wait: scores are used while wgmma writes them",
        tests: FORWARD,
        file: "kernels-gpu/src/wgmma/forward/consumer.rs",
        original: "        self.issue_qk(q_operand);\n        self.acc_s.wait::<0>();",
        broken: "        self.issue_qk(q_operand);\n        self.acc_s.wait::<1>();",
    },
    Mutant {
        name: "fence: TMA stores what it may not see yet",
        tests: FORWARD,
        file: "kernels-gpu/src/wgmma/forward/epilogue.rs",
        original: "        tma::fence_shared();\n",
        broken: "",
    },
    Mutant {
        name: "order: lanes release what another still stores",
        tests: FORWARD,
        file: "kernels-gpu/src/wgmma/forward/epilogue.rs",
        original: "        warp::sync_warp();\n        own.consumer_release",
        broken: "        own.consumer_release",
    },
    Mutant {
        name: "cluster: an address from a descriptor lacks its block's rank",
        tests: FORWARD,
        file: "cuda/cuda_std/src/wgmma/descriptor.rs",
        original: "base & !ADDRESS_MASK | self.0",
        broken: "base & 0 | self.0",
    },
    Mutant {
        name: "backward: nobody waits for P and dS",
        tests: BACKWARD,
        file: "kernels-gpu/src/mma/backward/block.rs",
        original: "            sync_group::<K>(warp);\n        }\n        let operand",
        broken: "        }\n        let operand",
    },
    Mutant {
        name: "backward: dq sees keys that do not exist",
        tests: BACKWARD,
        file: "kernels-gpu/src/mma/backward/pairs.rs",
        original: "let is_missing = self.row(i) >= extent.kept;",
        broken: "let is_missing = false;",
    },
    Mutant {
        name: "backward: f16 rounds dS as it is",
        tests: BACKWARD,
        file: "kernels-gpu/src/backward/exponent.rs",
        original: "biased as i32 - EXPONENT_BIAS as i32",
        broken: "biased as i32 * 0",
    },
    Mutant {
        name: "backward: dK's sums keep the scale of another head",
        tests: BACKWARD,
        file: "kernels-gpu/src/mma/backward/block.rs",
        original: "*sum *= factor;",
        broken: "*sum *= factor * 0.0 + 1.0;",
    },
    Mutant {
        name: "backward: what is not finite is forgotten once it is taken out",
        tests: BACKWARD,
        file: "kernels-gpu/src/mma/backward/non_finite.rs",
        original: "shared::atomic_or(word, 1 << bit);",
        broken: "shared::atomic_or(word, 0 << bit);",
    },
    Mutant {
        name: "backward on Hopper: hidden pairs take part where their dP is not finite",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/pairs.rs",
        original: "if rows[h].sees(8 * j + c) { ds[c] } else { 0.0 }",
        broken: "ds[c]",
    },
    Mutant {
        name: "backward on Hopper: dO is overwritten while dV reads it",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/consumer.rs",
        original: "self.sum_second.wait::<1>();",
        broken: "self.sum_second.wait::<2>();",
    },
    Mutant {
        name: "backward on Hopper: rows are stored while others overwrite them",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/gradient.rs",
        original: "            sync_warp();\n",
        broken: "",
    },
    Mutant {
        name: "backward on Hopper: queries beyond a sequence count",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/producer.rs",
        original: "(f32::INFINITY, 0.0)",
        broken: "(0.0, 0.0)",
    },
    Mutant {
        name: "backward on Hopper: keys beyond a sequence have a dS, which is multiplied with what lies there",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/pairs.rs",
        original: "self.takes_missing && row >= kept as i32",
        broken: "false",
    },
    Mutant {
        name: "backward on Hopper: dS is multiplied before it is there",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/dq.rs",
        original: "        block.consumer_wait();\n        let (ds, k) = operands(0);",
        broken: "        let (ds, k) = operands(0);",
    },
    Mutant {
        name: "backward on Hopper: dS of the present block is waited for, which comes after",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/dq.rs",
        original: "self.barriers.ds_reader().at(self.step - 1)",
        broken: "self.barriers.ds_reader().at(self.step)",
    },
    Mutant {
        name: "backward on Hopper: dS is announced to wgmma, which may not see it yet",
        tests: BACKWARD,
        file: "kernels-gpu/src/wgmma/backward/dq.rs",
        original: "        tma::fence_shared();\n",
        broken: "",
    },
    Mutant {
        name: "backward of wide heads: P is taken before it is there",
        tests: OF_WIDE_HEADS,
        file: "kernels-gpu/src/wgmma/backward/split/differences.rs",
        original: "        self.p.consumer_wait();\n",
        broken: "",
    },
    Mutant {
        name: "backward of wide heads: P is overwritten while dS is computed of it",
        tests: OF_WIDE_HEADS,
        file: "kernels-gpu/src/wgmma/backward/split/probabilities.rs",
        original: "if K::SPLIT.waits_for_p() {",
        broken: "if false {",
    },
    Mutant {
        name: "backward of wide heads: dO is overwritten while dV reads it",
        tests: OF_WIDE_HEADS,
        file: "kernels-gpu/src/wgmma/backward/split/probabilities.rs",
        original: "self.sum.wait::<1>();",
        broken: "self.sum.wait::<2>();",
    },
    Mutant {
        name: "backward of wide heads: dS that nobody wrote is multiplied",
        tests: OF_WIDE_HEADS,
        file: "kernels-gpu/src/wgmma/backward/split/queries.rs",
        original: "if self.sees(warpgroup, block) {\n                let stage",
        broken: "if true {\n                let stage",
    },
    Mutant {
        name: "backward of wide heads: a part forgets the sums of the one before",
        tests: OF_WIDE_HEADS,
        file: "kernels-gpu/src/wgmma/backward/split/sums.rs",
        original: "chunk.first_head > 0 || chunk.first_q_block > 0",
        broken: "chunk.first_head > 0",
    },
    Mutant {
        name: "backward of wide heads: dq's rows lie in the order of dS's places",
        tests: OF_WIDE_HEADS,
        file: "kernels-gpu/src/wgmma/backward/split/queries.rs",
        original: "ds_tile::query(place)",
        broken: "place",
    },
    Mutant {
        name: "backward in fp32: P is taken before it is there",
        tests: OF_STORED_F32,
        file: "kernels-gpu/src/simt/backward/split/group.rs",
        original: "named_barrier::sync(P_FULL, Self::THREADS);",
        broken: "",
    },
    Mutant {
        name: "backward in fp32: pairs that do not meet have a dS of 0",
        tests: OF_STORED_F32,
        file: "kernels-gpu/src/simt/backward/split/keys.rs",
        original: "if is_masked_out { MASKED_OUT } else { ds }",
        broken: "if is_masked_out { 0.0 } else { ds }",
    },
    Mutant {
        name: "backward in fp32: dq takes the dS of the chunk's first head",
        tests: OF_STORED_F32,
        file: "kernels-gpu/src/simt/backward/split/queries.rs",
        original: "tiles.offset(0, head as u32, q_block, kv_block)",
        broken: "tiles.offset(0, head as u32 * 0, q_block, kv_block)",
    },
    Mutant {
        name: "backward, slopes: queries beyond a sequence count",
        tests: OF_SLOPES,
        file: "kernels-gpu/src/mma/backward/slopes.rs",
        original: "sum += if row < extent.kept { of_row } else { 0.0 };",
        broken: "sum += of_row;",
    },
    Mutant {
        name: "backward, slopes: distances are those of the first block",
        tests: OF_SLOPES,
        file: "kernels-gpu/src/simt/backward/slopes.rs",
        original: "(row as i32 + diagonal - column)",
        broken: "(row as i32 - column)",
    },
    Mutant {
        name: "backward, slopes: the first batch entry counts for all",
        tests: OF_SLOPES,
        file: "kernels-gpu/src/backward/slope_sums.rs",
        original: "(entry * heads + slope) * tiles",
        broken: "(entry * 0 + slope) * tiles",
    },
    Mutant {
        name: "backward, slopes: warps' sums are read before they are there",
        tests: OF_SLOPES,
        file: "kernels-gpu/src/tile/block_sum.rs",
        original: "    sync_threads();\n    if thread == 0 {",
        broken: "    if thread == 0 {",
    },
];

pub fn run(args: &Args) -> anyhow::Result<()> {
    match args.ptx {
        true => of_ptx(args),
        false => of_source(args),
    }
}

/// Draws mutants of PTX, and tries them on the tests whose coverage is recorded.
fn of_ptx(args: &Args) -> anyhow::Result<()> {
    let recorded = fs::read_dir(paths::coverage());
    if recorded.is_ok_and(|mut files| files.next().is_some()) {
        println!("tests that `cargo xtask coverage` ran last are run again on each mutant");
    } else {
        coverage::record(&[])?;
    }
    let mut arguments = vec!["mutants".to_owned(), format!("--count={}", args.count)];
    arguments.extend(args.kernel.iter().map(|part| format!("--kernel={part}")));
    arguments.extend(args.seed.iter().map(|seed| format!("--seed={seed}")));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    tools::run_alone(&arguments)
}

/// Breaks a copy of the tree in each way and runs the tests of what is broken on it: they must fail.
fn of_source(args: &Args) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    let copy = paths::target().join("mutants/tree");
    copy_tree(&sh, &copy)?;
    sh.change_dir(&copy);
    sh.set_var("CARGO_TARGET_DIR", paths::target().join("mutants/target"));

    let test = |filters: &[&str]| {
        cmd!(
            sh,
            "cargo test --quiet --package ferroflash-tests --test backends -- {filters...}"
        )
        .quiet()
    };
    let wanted = |mutant: &&Mutant| {
        args.filter
            .as_ref()
            .is_none_or(|filter| mutant.name.contains(filter))
    };
    let wanted: Vec<_> = MUTANTS.iter().filter(wanted).collect();
    anyhow::ensure!(!wanted.is_empty(), "no mutant has such a name");
    let tests: BTreeSet<_> = wanted.iter().flat_map(|mutant| mutant.tests).collect();
    let tests: Vec<_> = tests.into_iter().copied().collect();
    test(&tests)
        .run()
        .context("the tests must pass before anything is broken")?;

    let mut report = Report::default();
    for mutant in wanted {
        let path = copy.join(mutant.file);
        let text = mutant.whole(&copy)?;
        fs::write(&path, text.replace(mutant.original, mutant.broken))?;
        let output = test(mutant.tests).ignore_status().output()?;
        report.add(verdict(
            mutant.name,
            output.status.success(),
            &String::from_utf8_lossy(&output.stdout),
        ));
        fs::write(&path, text)?;
    }
    report.finish("mutants")
}

/// A mutant is caught by a test that fails, not by one that does not compile.
fn verdict(name: &str, passed: bool, output: &str) -> Outcome {
    if passed {
        Outcome::Failed(format!("not noticed: {name}"))
    } else if output.contains("test result: FAILED") {
        Outcome::Passed(format!("noticed: {name}"))
    } else {
        Outcome::Failed(format!("does not build: {name}"))
    }
}

/// Copies every file that git tracks; unchanged files keep their modification times, so that cargo rebuilds little.
fn copy_tree(sh: &Shell, to: &Path) -> anyhow::Result<()> {
    sh.change_dir(paths::root());
    let files = cmd!(sh, "git ls-files").read()?;
    for file in files.lines() {
        let (from, to) = (paths::root().join(file), to.join(file));
        let Ok(new) = fs::read(&from) else { continue };
        if fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        fs::create_dir_all(to.parent().expect("a file has a folder"))?;
        fs::write(&to, new)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_is_there() {
        for mutant in MUTANTS {
            mutant.whole(paths::root()).unwrap();
            assert_ne!(mutant.original, mutant.broken, "{}", mutant.name);
        }
    }
}
