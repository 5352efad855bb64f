//! What the tests execute of every kernel's PTX: `cargo xtask coverage`.
//!
//! | file | what it does |
//! |---|---|
//! | `recorded` | reads what simulated GPUs wrote while the tests ran |
//! | `figures` | counts what ran of a kernel |
//! | `source` | finds the Rust source behind PTX |
//! | `unseen` | lists what did not run, and guards seen one way, by their source |
//! | `reasons` | knows why some of it cannot run |
//! | `pinned` | holds figures to those recorded before |

mod figures;
mod pinned;
mod reasons;
pub mod recorded;
pub mod source;
mod unseen;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use cuda_builder::Build;
use xtask::paths;
use xtask::report::{Outcome, Report};

use crate::kernels;
use figures::{Figures, Line};
use reasons::Reason;
use recorded::Test;

#[derive(clap::Args)]
pub struct Args {
    /// Only kernels whose names contain this, and their guards, too
    #[arg(long)]
    kernel: Option<String>,
    /// Record the figures, to which later runs are held
    #[arg(long)]
    pin: bool,
    /// Say only whether figures hold
    #[arg(long)]
    brief: bool,
}

/// A kernel's coverage.
pub struct Covered {
    pub entry: String,
    pub ptx: PathBuf,
    pub lines: Vec<Line>,
    pub figures: Figures,
    /// How many instructions each of the reasons explains.
    explained: Vec<u32>,
}

/// Prints the figures of what the last run of the tests recorded, and holds them to the recorded ones.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let build = kernels::compile_product()?;
    let tests = recorded::read(&paths::coverage()).context("run the tests first")?;
    let reasons = reasons::read()?;
    let part = args.kernel.as_deref().unwrap_or_default();
    let covered = covered(&build, &tests, part, &reasons)?;
    if !args.brief {
        print_table(&covered);
        unseen::print_unexecuted(&covered)?;
        print_reasons(&covered, &reasons);
        if args.kernel.is_some() {
            unseen::print_one_sided(&covered)?;
        }
    }
    if args.pin {
        pin(&covered)?;
    }
    let mut report = Report::default();
    hold(&covered, &mut report)?;
    if part.is_empty() {
        name_useless(&covered, &reasons, &mut report);
    }
    report.finish("coverage")
}

/// The coverage of every kernel whose name contains `part`.
fn covered(
    build: &Build,
    tests: &[Test],
    part: &str,
    reasons: &[Reason],
) -> anyhow::Result<Vec<Covered>> {
    let wanted = build.kernels.iter().filter(|k| k.entry.contains(part));
    let covered = wanted.map(|kernel| {
        let ptx = fs::read_to_string(&kernel.ptx)?;
        let seen = |instructions| recorded::of_kernel(tests, &kernel.entry, instructions);
        let (lines, mut figures) = figures::lines(&ptx, seen)?;
        let mut explained = vec![0; reasons.len()];
        for (place, instructions) in unseen::unexecuted(&kernel.ptx, &lines)? {
            let text = place.text().unwrap_or_default();
            let is_meant = |reason: &Reason| reason.explains(&kernel.entry, &text);
            if let Some(reason) = reasons.iter().position(is_meant) {
                explained[reason] += instructions;
            }
        }
        figures.explained = explained.iter().sum();
        Ok(Covered {
            explained,
            entry: kernel.entry.clone(),
            ptx: kernel.ptx.clone(),
            lines,
            figures,
        })
    });
    let covered: Vec<_> = covered.collect::<anyhow::Result<_>>()?;
    anyhow::ensure!(!covered.is_empty(), "no kernel's name contains `{part}`");
    Ok(covered)
}

fn print_table(covered: &[Covered]) {
    print_rows(
        "kernel",
        covered.iter().map(|k| (k.entry.clone(), k.figures)),
    );
    let mut groups: BTreeMap<String, Figures> = BTreeMap::new();
    for kernel in covered {
        let sum = groups.entry(group(&kernel.entry)).or_default();
        *sum = sum.with(&kernel.figures);
    }
    groups.insert("all".to_owned(), total(covered));
    println!();
    print_rows("kernels", groups);
}

fn print_rows(what: &str, rows: impl IntoIterator<Item = (String, Figures)>) {
    println!(
        "| {what} | instructions | executed | not executed | with a reason | of the rest executed | guards | seen both ways |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, figures) in rows {
        println!(
            "| {name} | {} | {:.1} % | {} | {} | {:.1} % | {} | {:.1} % |",
            figures.instructions,
            figures.executed_percent(),
            figures.instructions - figures.executed,
            figures.explained,
            figures.executed_of_rest_percent(),
            figures.guarded,
            figures.both_ways_percent(),
        );
    }
}

/// Instructions that each reason explains, of all kernels.
fn explained(covered: &[Covered], reason: usize) -> u32 {
    covered.iter().map(|kernel| kernel.explained[reason]).sum()
}

fn print_reasons(covered: &[Covered], reasons: &[Reason]) {
    println!("\nof these with a reason:");
    for (number, reason) in reasons.iter().enumerate() {
        let instructions = explained(covered, number);
        if instructions > 0 {
            let (subject, because) = (reason.subject(), &reason.because);
            println!("{instructions:>6} instructions: {subject}: {because}");
        }
    }
}

/// A reason that explains nothing is one no longer.
fn name_useless(covered: &[Covered], reasons: &[Reason], report: &mut Report) {
    for (number, reason) in reasons.iter().enumerate() {
        if explained(covered, number) == 0 {
            let subject = reason.subject();
            report.add(Outcome::Failed(format!(
                "kernels-gpu/unexecuted.json: every instruction of {subject} is executed, or there is none"
            )));
        }
    }
}

/// Operation and family of a kernel, which its name says before the architecture, and whether it takes modifiers.
fn group(entry: &str) -> String {
    let (group, _) = entry.split_once("_sm").unwrap_or((entry, ""));
    if entry.ends_with("_modified") || entry.ends_with("_biased") {
        format!("{group}_*_modified")
    } else {
        format!("{group}_*")
    }
}

fn total(covered: &[Covered]) -> Figures {
    let figures = covered.iter().map(|kernel| kernel.figures);
    figures.fold(Figures::default(), |sum, one| sum.with(&one))
}

/// Records the figures of `covered`; those of other kernels stay while the kernels exist.
fn pin(covered: &[Covered]) -> anyhow::Result<()> {
    let mut floors = pinned::read().unwrap_or_default();
    floors.retain(|entry, _| kernels_gpu::instances::find(entry).is_some());
    for kernel in covered {
        let floor = pinned::Floor::under(&kernel.figures);
        floors.insert(kernel.entry.clone(), floor);
    }
    pinned::write(&floors)
}

fn hold(covered: &[Covered], report: &mut Report) -> anyhow::Result<()> {
    let floors = pinned::read()?;
    for kernel in covered {
        let faults = pinned::faults(&kernel.figures, floors.get(&kernel.entry));
        if !faults.is_empty() {
            let (entry, faults) = (&kernel.entry, faults.join("; "));
            report.add(Outcome::Failed(format!("{entry}: {faults}")));
        }
    }
    let total = total(covered);
    if !report.has_failed() {
        report.add(Outcome::Passed(format!(
            "coverage of {} kernels: {:.2} % of {} instructions, {:.1} % of {} guards both ways",
            covered.len(),
            total.executed_percent(),
            total.instructions,
            total.both_ways_percent(),
            total.guarded,
        )));
    }
    Ok(())
}
