//! Running tests on a mutant until one fails.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
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

/// Runs the tests that execute the broken instruction, those that run least first.
pub fn run(mutant: &Mutant, tests: &[Test], folder: &Path, seed: u64) -> anyhow::Result<Verdict> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let file = folder.join(format!("{}.ptx", mutant.kernel));
    fs::write(&file, &mutant.text).with_context(|| file.display().to_string())?;
    let reaching = reaching(mutant, tests);
    for test in &reaching {
        match fails(test, &file, seed)? {
            Some(false) => {}
            Some(true) => return Ok(Verdict::Noticed(test.name.clone())),
            None => return Ok(Verdict::TimedOut(test.name.clone())),
        }
    }
    Ok(Verdict::Survived(reaching.len()))
}

/// The tests that execute the broken instruction. What they cost is foremost the kernel's own part, since most leave out
/// what does not launch it.
fn reaching<'t>(mutant: &Mutant, tests: &'t [Test]) -> Vec<&'t Test> {
    let executes = |coverage: &Coverage| coverage.is_executed(mutant.index);
    let of_kernel = |test: &Test| test.kernels.get(&mutant.kernel).cloned();
    let mut found: Vec<_> = tests
        .iter()
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
