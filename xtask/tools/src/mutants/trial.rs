//! Running tests on a mutant until one fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use ptx_sim::Coverage;

use super::draw::Mutant;
use crate::coverage::recorded::Test;

/// Environment variable that makes simulated GPUs run a file's text in place of a kernel's own
/// (`host/src/backend/sim/replaced.rs`).
const FILE_VAR: &str = "FERROFLASH_SIM_PTX";

/// Longest that a test may take. A mutant may loop for ever; a test that is not done by then is taken for one that does.
const LIMIT: Duration = Duration::from_secs(240);

/// Threads of commands that tests start, which record what they execute and cannot be run alone.
const NO_TESTS: [&str; 2] = ["main", "unnamed"];

/// How a mutant ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed.
    Noticed(String),
    /// This test did not end.
    TimedOut(String),
    /// All passed, so many.
    Survived(usize),
}

/// Whether tests pass on kernels that are whole, which is asked once of a kernel and a test: a test that fails on those
/// too notices nothing.
#[derive(Default)]
pub struct Whole(Mutex<BTreeMap<(String, String), bool>>);

impl Whole {
    /// Whether `test` passes on the text of `kernel` as it is shipped, which lies in `file`.
    fn passes(&self, kernel: &str, test: &Test, file: &Path, seed: u64) -> anyhow::Result<bool> {
        let key = (kernel.to_owned(), test.name.clone());
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&key).copied();
        if let Some(passes) = known {
            return Ok(passes);
        }
        let passes = fails(test, file, seed)? == Some(false);
        if !passes {
            println!("{} does not pass on {kernel} as it is", test.name);
        }
        lock().insert(key, passes);
        Ok(passes)
    }
}

/// Runs the tests that execute the broken instruction, those that run least first.
pub fn run(
    mutant: &Mutant,
    tests: &[Test],
    folder: &Path,
    seed: u64,
    whole: &Whole,
) -> anyhow::Result<Verdict> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(format!("{}.ptx", mutant.kernel));
    fs::write(&file, &mutant.text).with_context(|| file.display().to_string())?;
    let reaching = reaching(mutant, tests);
    for test in &reaching {
        let outcome = fails(test, &file, seed)?;
        if outcome == Some(false) || !whole.passes(&mutant.kernel, test, &mutant.whole, seed)? {
            continue;
        }
        return Ok(match outcome {
            Some(_) => Verdict::Noticed(test.name.clone()),
            None => Verdict::TimedOut(test.name.clone()),
        });
    }
    Ok(Verdict::Survived(reaching.len()))
}

/// The tests that reach the broken instruction, of a branch also those that never take it. What they cost is foremost the kernel's own part, since most leave out
/// what does not launch it.
fn reaching<'t>(mutant: &Mutant, tests: &'t [Test]) -> Vec<&'t Test> {
    let executes = |coverage: &Coverage| {
        coverage.is_executed(mutant.index) || coverage.is_skipped(mutant.index)
    };
    let of_kernel = |test: &Test| test.kernels.get(&mutant.kernel).cloned();
    let mut found: Vec<_> = tests
        .iter()
        .filter(|test| !NO_TESTS.contains(&test.name.as_str()))
        .filter(|test| of_kernel(test).is_some_and(|seen| executes(&seen.coverage)))
        .collect();
    found.sort_by_key(|test| of_kernel(test).map_or(0, |seen| seen.warp_instructions));
    found
}

/// Whether the test fails; `None` if it does not end.
fn fails(test: &Test, file: &Path, seed: u64) -> anyhow::Result<Option<bool>> {
    let mut command = Command::new(&test.program);
    let mut child = command
        .args(["--exact", &test.name, "--test-threads=1", "--quiet"])
        .env(FILE_VAR, file)
        .env("PROPTEST_RNG_SEED", seed.to_string())
        // What fails is to fail fast: no smaller case is looked for.
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("RAYON_NUM_THREADS", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| {
            format!(
                "{}: run `cargo xtask coverage` again",
                test.program.display()
            )
        })?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(!status.success()));
        }
        if begin.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}
