//! How many instructions a kernel executes, held to what is recorded: blocks that nobody sees, tiles that are computed again and
//! shortcuts that are not taken change no result, and would be noticed on a GPU alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use ferroflash::backend::sim::{Sim, SimDevice, replaced_kernel};
use ferroflash::{Backend, Mask};
use ferroflash_testing::cases::{CorpusCase, DecodeSpec};
use ferroflash_tests::corpus;
use ferroflash_tests::record::{self, RECORD_VAR};
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::{SCHEDULES, counting, counting_on};
use kernels_gpu::config::decode::DecodeConfig;
use kernels_gpu::instances::{self, Family, Instance, KernelConfig, Operation};
use serde::{Deserialize, Serialize};

use super::borders::{self, CUT, FEW_KEYS, PACKED, Scores, Sort, WHOLE};
use super::decode::{kernels, prefill};

mod searched;

/// What warps of a kernel execute.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Count {
    /// Instructions of any sort.
    instructions: u64,
    /// Those that store to global memory, which no barrier makes more: as many each time, of every kernel.
    stores: u64,
}

type Counts = BTreeMap<String, Count>;

/// What is recorded: in the test itself, which also runs where there is no source tree.
const RECORDED: &str = include_str!("../../instruction-counts.json");

/// Where it is recorded.
fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("instruction-counts.json")
}

/// Keys that sequences of a cache see.
const LENGTHS: [usize; 2] = [700, 40];

/// Problems that `instance` is for, of random numbers: the last keys of a cache; or few keys, so that tiles begin with a block that is not
/// the first, and parts of two blocks; and blocks that are seen whole. Of a kernel for modifiers the first has a bias, and the second a
/// mask, of which another kernel has found the blocks. Those for fp32, which take longest, have packed sequences of a few rows.
fn cases(sim: &mut Sim, instance: &Instance) -> Vec<CorpusCase> {
    let of_cache = |spec| vec![CorpusCase::Decode(Box::new(spec))];
    match instance.config {
        KernelConfig::Decode(config) => of_cache(climbing(instance, config)),
        KernelConfig::Wgmma(config) if config.cached => {
            of_cache(prefill::spec(instance, config, &LENGTHS))
        }
        _ if borders::is_wanted(instance) => {
            let mut at = |(scores, place, sort)| borders::case(sim, instance, scores, place, sort);
            let usual = [([0, 0], Sort::Bias), ([1, 1], Sort::Mask)];
            let problems = match instance.family {
                // Of few keys, so that tiles of rows see none.
                Family::Simt => &[([PACKED; 2], Sort::Dropout), ([FEW_KEYS; 2], Sort::Bias)][..],
                // With dropout, and parts of blocks of which all is seen.
                _ if instance.name.ends_with("_modified") => {
                    &[usual[0], usual[1], ([7, PACKED], Sort::Dropout)]
                }
                _ => &[usual[0], usual[1], ([WHOLE; 2], Sort::Mask)],
            };
            let plain = problems
                .iter()
                .map(|&(place, sort)| (Scores::Plain, place, sort));
            // Nearly all of o is to be explained by keys, and these are looked at two at once.
            let is_searched = instance.wgmma().is_some();
            let poisoned = is_searched.then_some((Scores::Poisoned, [CUT; 2], Sort::Bias));
            let cases = plain.chain(poisoned).filter_map(&mut at);
            cases.map(|(case, _)| case).collect()
        }
        _ => vec![],
    }
}

/// Sequences of a cache, of which the first has its last keys in some chunks of a group and one of the next, which has none to be merged with.
fn climbing(instance: &Instance, config: &DecodeConfig) -> DecodeSpec {
    let [seen, short] = LENGTHS;
    let group = config.chunk_keys() << config.tree().group_shift;
    let mask = Mask::Window {
        left: Some(seen as u32 - 1),
        right: Some(0),
    };
    DecodeSpec {
        mask,
        ..kernels::spec(instance, config, &[group as usize + 88, short])
    }
}

/// The counts of all kernels that a test of a single one is for.
fn counted() -> Counts {
    let mut usual = counting(SCHEDULES[0]);
    // So many that chunks of a cache's sequences are items, which the last block merges.
    let mut wide = counting_on(SimDevice::with_schedule(SCHEDULES[0]).multiprocessors(8));
    let mut counted = Counts::new();
    for instance in instances::all() {
        let sim = match instance.decode() {
            Some(_) => &mut wide,
            None => &mut usual,
        };
        let random = cases(sim, instance).into_iter().map(|case| (case, false));
        let searched = searched::case(sim, instance).map(|case| (case, true));
        for (case, is_searched) in random.chain(searched) {
            let is_counted = |kernel: &str| {
                let is_beside = || instances::find(kernel).is_some_and(is_beside);
                !is_untouched(kernel) && (kernel == instance.name || is_beside())
            };
            let kernels = corpus::kernels(sim, &case).unwrap_or_default();
            if !kernels.into_iter().any(is_counted) {
                continue;
            }
            let outcome = match is_searched {
                true => searched::run(sim, &case),
                false => corpus::run(sim, &case),
            };
            outcome.unwrap_or_else(|wrong| panic!("{}: {case}: {wrong}", instance.name));
            let launches = sim.memory().take_statistics();
            for launch in launches.iter().filter(|launch| is_counted(launch.kernel)) {
                let count = counted.entry(launch.kernel.to_owned()).or_default();
                count.instructions += launch.executed;
                count.stores += launch.statistics.executed("st.global");
            }
        }
    }
    counted
}

/// Whether a kernel is one that others' launches have beside them, and is counted over all problems of those.
fn is_beside(instance: &Instance) -> bool {
    matches!(
        instance.operation,
        Operation::BackwardDelta
            | Operation::BackwardRound
            | Operation::BackwardSinks
            | Operation::BackwardSlopeSums
            | Operation::BlockStates
            | Operation::CheckCache
            | Operation::Merge
            | Operation::TileList
    )
}

/// What is wrong with the count of `kernel`.
fn fault(kernel: &str, now: Count, recorded: &Counts) -> Option<String> {
    let recorded = recorded.get(kernel).copied();
    let instructions = record::fault(kernel, now.instructions, recorded.map(|r| r.instructions));
    instructions.or_else(|| {
        let stores = recorded?.stores;
        (now.stores != stores).then(|| {
            let of_warps = now.stores;
            format!("{kernel}: {of_warps} stores of warps, recorded are {stores}")
        })
    })
}

#[test]
fn sim() {
    let counted = counted();
    // Of a kernel that is replaced alone there may be no such problem.
    assert!(!counted.is_empty() || replaced_kernel().is_some());
    if env::var_os(RECORD_VAR).is_some() {
        let text = serde_json::to_string_pretty(&counted).expect("numbers by names");
        fs::write(path(), text + "\n").expect("the folder is there");
        return;
    }
    let recorded: Counts = serde_json::from_str(RECORDED).expect("it was written here");
    let faults = counted
        .iter()
        .filter_map(|(kernel, &now)| fault(kernel, now, &recorded));
    let gone = recorded
        .keys()
        .filter(|kernel| instances::find(kernel).is_none())
        .map(|kernel| format!("{kernel}: it is recorded, and no kernel"));
    let faults: Vec<_> = faults.chain(gone).collect();
    assert!(
        faults.is_empty(),
        "{faults:#?}\nif they are meant, record them: {RECORD_VAR}=1 cargo test -p ferroflash-tests instruction_counts"
    );
}
