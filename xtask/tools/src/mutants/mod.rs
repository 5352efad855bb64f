//! Breaking the PTX of kernels, one instruction at a time, to see the tests notice: `cargo xtask mutants --ptx`.
//!
//! | file | what it does |
//! |---|---|
//! | `statement` | finds the statements of a text |
//! | `operators` | ways to break one |
//! | `draw` | draws mutants of lines that tests execute |
//! | `trial` | runs tests on one until one fails |
//! | `equivalent` | mutants that nothing can tell from the kernel |
//! | `table` | results by class and family |

mod draw;
mod equivalent;
mod operators;
mod statement;
mod table;
mod trial;

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use anyhow::Context;
use rand::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;
use xtask::paths;
use xtask::report::{Outcome, Report};

use crate::coverage::recorded::{self, Test};
use crate::kernels;
use draw::{Mutant, Subject};
use operators::Class;
use table::Table;
use trial::{Verdict, Whole};

#[derive(clap::Args)]
pub struct Args {
    /// Only kernels whose names contain this
    #[arg(long)]
    kernel: Option<String>,
    /// Mutants to try
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Seed of the mutants and of the problems that tests draw; the day's number if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Fail if fewer than this many per cent are noticed
    #[arg(long, default_value_t = 0.0)]
    at_least: f64,
}

/// Days since 1970: a new seed each day.
fn day() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs() / (24 * 60 * 60))
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let seed = args.seed.unwrap_or_else(day);
    let tests = recorded::read(&paths::coverage()).context("run `cargo xtask coverage` first")?;
    let subjects = subjects(args.kernel.as_deref().unwrap_or_default(), &tests)?;
    println!(
        "{} mutants of {} kernels, seed {seed}",
        args.count,
        subjects.len()
    );
    let mutants = drawn(&subjects, args.count, seed);
    let known = equivalent::read()?;
    let (equivalent, mutants): (Vec<_>, Vec<_>) = mutants
        .into_iter()
        .partition(|mutant| known.iter().any(|known| known.is(mutant)));
    let table = tried(&mutants, &tests, seed)?;
    table.print();
    println!("{} more are known to be equivalent", equivalent.len());
    let total = table.total();
    let summary = format!(
        "mutants of PTX, seed {seed}: {} of {} noticed",
        total.noticed, total.all
    );
    let mut report = Report::default();
    report.add(match total.percent() >= args.at_least {
        true => Outcome::Passed(summary),
        false => Outcome::Failed(summary),
    });
    report.finish("mutants")
}

/// The kernels whose names contain `part`, each with what the tests execute of it.
fn subjects(part: &str, tests: &[Test]) -> anyhow::Result<Vec<Subject>> {
    let build = kernels::compile_product()?;
    let wanted = build.kernels.iter().filter(|k| k.entry.contains(part));
    let subjects: Vec<_> = wanted
        .map(|kernel| Subject::read(kernel, tests))
        .collect::<anyhow::Result<_>>()?;
    anyhow::ensure!(!subjects.is_empty(), "no kernel's name contains `{part}`");
    Ok(subjects)
}

/// Mutants of kernels drawn at random, of every class in turn.
fn drawn(subjects: &[Subject], count: u32, seed: u64) -> Vec<Mutant> {
    let draw = |number: u32| {
        // A generator each, so that the first mutants of a seed are the same whatever the count.
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed ^ u64::from(number) << 32);
        let class = Class::ALL[number as usize % Class::ALL.len()];
        // A kernel without barriers has no mutant of that class: another is drawn.
        (0..subjects.len()).find_map(|_| subjects.choose(&mut random)?.draw(class, &mut random))
    };
    (0..count).into_par_iter().filter_map(draw).collect()
}

/// Tries all mutants, as many at once as there are cores, and prints those that no test notices.
fn tried(mutants: &[Mutant], tests: &[Test], seed: u64) -> anyhow::Result<Table> {
    let folder = paths::target().join("mutants/ptx");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let table = Mutex::new(Table::default());
    let whole = Whole::default();
    let done = AtomicUsize::new(0);
    mutants
        .par_iter()
        .enumerate()
        .try_for_each(|(number, mutant)| {
            let verdict = trial::run(
                mutant,
                tests,
                &folder.join(number.to_string()),
                seed,
                &whole,
            )?;
            let done = done.fetch_add(1, Relaxed) + 1;
            let mut table = table
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            table.add(mutant, &verdict);
            match &verdict {
                Verdict::Survived(tests) => println!("{}", table::survivor(mutant, *tests)),
                Verdict::TimedOut(test) => {
                    println!(
                        "[{done}] {} line {}: {test} did not end",
                        mutant.kernel, mutant.line
                    );
                }
                Verdict::Noticed(_) => {}
            }
            anyhow::Ok(())
        })?;
    Ok(table
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner()))
}
