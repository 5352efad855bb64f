//! Checks of every kernel's PTX and of the machine code that ptxas generates from it.

use std::fs;

use anyhow::Context;
use cuda_builder::manifest::Resources;
use cuda_builder::{Build, Kernel};
use ptx_sim::{Divergence, Module};
use rayon::prelude::*;

use crate::budgets::{Budgets, FEW_BYTES};
use xtask::report::{Outcome, Report};

/// Checks the PTX text of every kernel.
pub fn check_text(build: &Build, report: &mut Report) -> anyhow::Result<()> {
    let checked = build.kernels.par_iter().map(|kernel| {
        let ptx = fs::read_to_string(&kernel.ptx)?;
        let faults = faults(&ptx).with_context(|| kernel.entry.clone())?;
        Ok(match faults.is_empty() {
            true => Outcome::Passed(format!("{}: PTX text", kernel.entry)),
            false => Outcome::Failed(format!("{}: PTX text: {}", kernel.entry, faults.join("; "))),
        })
    });
    for outcome in checked.collect::<anyhow::Result<Vec<_>>>()? {
        report.add(outcome);
    }
    Ok(())
}

/// Words that must not occur, each with the fault that it would mean.
const FORBIDDEN: [(&str, &str); 3] = [
    (
        ".local ",
        "an array that should be in registers lives in local memory",
    ),
    (
        "call",
        "a function was not inlined (a panic branch, most likely)",
    ),
    ("trap;", "a panic branch was left in"),
];

/// Faults of a kernel's PTX.
fn faults(ptx: &str) -> anyhow::Result<Vec<String>> {
    let mut faults = text_faults(ptx);
    let module = Module::parse(ptx)?;
    for kernel in module.kernels() {
        let unknown = kernel.unsupported();
        faults.extend(unknown.iter().map(|(line, text, why)| {
            format!("`{text}` at line {line} cannot be simulated: {why}")
        }));
        let divergences = kernel.divergences();
        faults.extend(divergences.iter().map(|divergence| {
            let Divergence { line, text, .. } = divergence;
            let branch = divergence.branch_line;
            format!("`{text}` at line {line}: line {branch} lets threads pass it that must reach it together")
        }));
    }
    Ok(faults)
}

fn text_faults(ptx: &str) -> Vec<String> {
    let instructions = || {
        ptx.lines()
            .map(|line| line.split("//").next().unwrap_or_default())
    };
    FORBIDDEN
        .into_iter()
        .filter_map(|(word, meaning)| {
            let line = instructions().position(|line| has_word(line, word))?;
            Some(format!("`{}` at line {}: {meaning}", word.trim(), line + 1))
        })
        .collect()
}

/// Whether the instruction or directive of `line` starts with `word`.
fn has_word(line: &str, word: &str) -> bool {
    line.trim_start()
        .trim_start_matches(['{', ' '])
        .starts_with(word)
}

/// What is wrong with the resources that ptxas reported of a kernel.
pub fn resource_faults_of(kernel: &Kernel, budgets: &Budgets) -> Vec<String> {
    let all = kernel.resources.iter();
    all.flat_map(|resources| resource_faults(kernel, resources, budgets))
        .collect()
}

/// Checks the resources that ptxas reported of every kernel. Kernels without any passed before, and have not changed.
pub fn check_resources(build: &Build, budgets: &Budgets, report: &mut Report) {
    for kernel in &build.kernels {
        if kernel.resources.is_empty() {
            let entry = &kernel.entry;
            report.add(Outcome::Passed(format!(
                "{entry}: the PTX that ptxas and its machine code's checks passed when registers were pinned"
            )));
            continue;
        }
        let faults = resource_faults_of(kernel, budgets);
        let registers: Vec<String> = kernel
            .resources
            .iter()
            .map(|r| format!("{} {}", r.arch, r.registers))
            .collect();
        report.add(if faults.is_empty() {
            Outcome::Passed(format!(
                "{}: {}, registers {}",
                kernel.entry,
                spills(kernel),
                registers.join(", ")
            ))
        } else {
            Outcome::Failed(format!("{}: {}", kernel.entry, faults.join("; ")))
        });
    }
}

/// What a kernel spills, in words.
fn spills(kernel: &Kernel) -> String {
    let most = kernel.resources.iter().map(|on| on.spilled_bytes()).max();
    match most.unwrap_or_default() {
        0 => "no spills".to_owned(),
        bytes => format!("{bytes} bytes spilled"),
    }
}

fn resource_faults(kernel: &Kernel, resources: &Resources, budgets: &Budgets) -> Vec<String> {
    let mut faults = Vec::new();
    let arch = &resources.arch;
    faults.extend(resources.notes.iter().map(|note| format!("{arch}: {note}")));
    let Some(budget) = budgets.get(&kernel.entry) else {
        faults.push(format!(
            "{arch}: nothing pinned (xtask verify --pin-registers)"
        ));
        return faults;
    };
    let (registers, spilled) = (resources.registers, resources.spilled_bytes());
    if registers > budget.registers {
        faults.push(format!(
            "{arch}: {registers} registers, pinned at {}",
            budget.registers
        ));
    }
    if spilled > budget.spilled_bytes {
        faults.push(format!(
            "{arch}: spills {spilled} bytes, pinned at {}",
            budget.spilled_bytes
        ));
    }
    if let Some(loops) = &resources.main_loops {
        let (instruction, accesses) = (&loops.instruction, loops.local_accesses);
        if loops.count == 0 {
            faults.push(format!("{arch}: no loop with {instruction}"));
        }
        if loops.overwrites > 0 {
            faults.push(format!(
                "{arch}: {} instructions overwrite an operand that a loop with {instruction} keeps: a fault of ptxas",
                loops.overwrites
            ));
        }
        if accesses > 0 && budget.spilled_bytes <= FEW_BYTES {
            faults.push(format!(
                "{arch}: {accesses} LDL or STL in a loop with {instruction}"
            ));
        }
    }
    if resources.stack_bytes > 0 && spilled == 0 {
        faults.push(format!(
            "{arch}: {} bytes of local memory",
            resources.stack_bytes
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_builder::manifest::MainLoops;

    use crate::budgets::Budget;

    #[test]
    fn finds_forbidden_words_in_instructions_only() {
        assert!(text_faults("\tadd.s32 %r1, %r2, %r3; // call me\n\tbar.sync 0;\n").is_empty());
        assert_eq!(text_faults("\t.local .align 8 .b8 depot[40];\n").len(), 1);
        assert_eq!(text_faults("\tcall.uni panic, ();\n\ttrap;\n").len(), 2);
    }

    #[test]
    fn finds_barriers_that_threads_disagree_about() {
        let kernel = |threads| {
            format!(
                ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n.maxntid 128, 1, 1\n{{\n\
                 .reg .pred %p1;\n.reg .b32 %r1;\nmov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, {threads};\n\
                 @!%p1 bra SKIP;\nbar.sync 1, 32;\nSKIP:\nret;\n}}\n"
            )
        };
        assert_eq!(faults(&kernel(32)).unwrap(), [""; 0]);
        let found = faults(&kernel(20)).unwrap();
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("`bar.sync 1, 32;` at line 12: line 11 lets"),
            "{found:?}"
        );
        let unknown = kernel(32).replace("ret;", "frobnicate.b32 %r1;");
        assert_eq!(faults(&unknown).unwrap().len(), 1);
        assert!(faults("not PTX").is_err());
    }

    #[test]
    fn resources_are_held_to_their_budget() {
        let kernel = Kernel {
            entry: "k".to_owned(),
            arch: "sm_80".to_owned(),
            threads: 128,
            min_blocks: 1,
            cluster: 1,
            dynamic_shared_bytes: None,
            ptx: "k.ptx".into(),
            resources: Vec::new(),
        };
        let clean = Resources {
            arch: "sm_90".to_owned(),
            registers: 100,
            static_shared_bytes: 0,
            stack_bytes: 0,
            spill_store_bytes: 0,
            spill_load_bytes: 0,
            notes: Vec::new(),
            main_loops: None,
        };
        let budget = Budget {
            registers: 100,
            spilled_bytes: 0,
        };
        let budgets = Budgets::from([("k".to_owned(), budget)]);
        let faults = |resources: Resources| resource_faults(&kernel, &resources, &budgets).len();
        assert_eq!(faults(clean.clone()), 0);
        assert_eq!(
            faults(Resources {
                registers: 101,
                ..clean.clone()
            }),
            1
        );
        assert_eq!(
            faults(Resources {
                spill_load_bytes: 4,
                stack_bytes: 8,
                ..clean.clone()
            }),
            1
        );
        assert_eq!(
            faults(Resources {
                notes: vec!["C7512".to_owned()],
                ..clean.clone()
            }),
            1
        );
        let with_loops = |count, local_accesses, overwrites| Resources {
            main_loops: Some(MainLoops {
                instruction: "HMMA".to_owned(),
                count,
                local_accesses,
                overwrites,
            }),
            ..clean.clone()
        };
        assert_eq!(faults(with_loops(1, 0, 0)), 0);
        assert_eq!(faults(with_loops(1, 1, 0)), 1);
        assert_eq!(faults(with_loops(1, 0, 1)), 1);
        assert_eq!(faults(with_loops(0, 0, 0)), 1);
        let unpinned = Kernel {
            entry: "other".to_owned(),
            ..kernel.clone()
        };
        assert_eq!(resource_faults(&unpinned, &clean, &budgets).len(), 1);
    }
}
