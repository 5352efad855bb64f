//! What was not seen, by the source lines it is of: instructions that did not run, and guards of which one outcome never came.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Covered;
use super::figures::Line;
use super::source::{Place, Source};

/// Folder of the kernels' own source: lines of `core` and of instructions' wrappers are named by the line that needs them.
const KERNELS: &str = "kernels-gpu/";

/// Instructions and kernels of a source line.
#[derive(Default)]
struct Missing {
    instructions: u32,
    kernels: BTreeSet<String>,
    /// The first lines of PTX, of one kernel.
    ptx: Vec<u32>,
}

/// Most lines of PTX that are named for a line of source.
const NAMED: usize = 4;

/// Prints every source line behind instructions that did not run, those with the most first.
pub fn print_unexecuted(covered: &[Covered]) -> anyhow::Result<()> {
    println!("\nnot executed, by source line:");
    print(covered, |line| !line.is_executed)
}

/// Prints every source line behind guards that were reached and always held, or never did.
pub fn print_one_sided(covered: &[Covered]) -> anyhow::Result<()> {
    println!("\nguards seen one way, by source line:");
    print(covered, |line| line.is_one_sided)
}

fn print(covered: &[Covered], is_meant: impl Fn(&Line) -> bool) -> anyhow::Result<()> {
    let mut missing: BTreeMap<Option<Place>, Missing> = BTreeMap::new();
    for kernel in covered {
        if !kernel.lines.iter().any(&is_meant) {
            continue;
        }
        let source = Source::of(&kernel.ptx)?;
        for (number, place) in places(&kernel.lines, &source, &is_meant) {
            let of_place = missing.entry(place).or_default();
            of_place.instructions += 1;
            of_place.kernels.insert(kernel.entry.clone());
            if of_place.kernels.len() == 1 && of_place.ptx.len() < NAMED {
                of_place.ptx.push(number);
            }
        }
    }
    let mut missing: Vec<_> = missing.into_iter().collect();
    missing.sort_by_key(|(_, missing)| u32::MAX - missing.instructions);
    for (place, missing) in missing {
        let place = place.map_or("(no source line)".to_owned(), |place| place.to_string());
        let Missing {
            instructions,
            kernels,
            ptx,
        } = missing;
        let first = kernels.first().map_or("", String::as_str);
        println!(
            "{instructions:>6} instructions of {} kernels: {place} (PTX lines {ptx:?} of {first}, …)",
            kernels.len()
        );
    }
    Ok(())
}

/// The source lines behind instructions that did not run, each with how many these are.
pub fn unexecuted(ptx: &Path, lines: &[Line]) -> anyhow::Result<BTreeMap<Place, u32>> {
    let mut counts = BTreeMap::new();
    for (_, place) in places(lines, &Source::of(ptx)?, |line| !line.is_executed) {
        if let Some(place) = place {
            *counts.entry(place).or_default() += 1;
        }
    }
    Ok(counts)
}

/// The lines of PTX that are meant, each with the source line that it is named by: its own where that is a kernel's, else the
/// nearest kernel's line before it in the same run of such lines, else the nearest behind.
fn places(
    lines: &[Line],
    source: &Source,
    is_meant: impl Fn(&Line) -> bool,
) -> Vec<(u32, Option<Place>)> {
    let runs = lines.split(|line| !is_meant(line));
    let mut found = Vec::new();
    for run in runs {
        let own = |number| {
            source
                .line(number)
                .filter(|place| place.file.starts_with(KERNELS))
        };
        let first = run.iter().find_map(|line| own(line.number));
        let mut last = first;
        for line in run {
            last = own(line.number).or(last);
            let place = last.or_else(|| source.line(line.number));
            found.push((line.number, place.cloned()));
        }
    }
    found
}
