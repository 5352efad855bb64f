//! `cargo xtask test`

use std::path::PathBuf;
use std::{env, thread};

use xshell::{Shell, cmd};

use crate::commands::beside::{Beside, Step};
use crate::commands::coverage;
use crate::commands::verify::has_gpu;
use crate::tools;
use xtask::paths;
use xtask::report::{Outcome, Report};
use xtask::times::Times;

/// A sample of the mutants, new every day: what survives is printed for whoever looks. It fails where tests notice next to none,
/// as when what they run is not the text that was broken.
const MUTANTS: [&str; 3] = ["mutants", "--count=8", "--at-least=25"];

/// What has build folders of its own, and so can run beside the workspace's tests.
const FRONTS: [Step; 2] = [("Python", &["wheel", "--test"]), ("candle", &["candle"])];

/// How many tests a test binary runs at once.
const THREADS_VAR: &str = "RUST_TEST_THREADS";

#[derive(Default, clap::Args)]
pub struct Args {
    /// Passed on to the test binaries: a filter, `--nocapture`, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::default();
    let filter = &args.filter;
    if filter.is_empty() {
        everything(&mut report)?;
    } else {
        report.add(of_workspace(filter, None)?);
    }
    if !has_gpu() {
        let reason = "tests on a GPU: no NVIDIA driver here (pack them with `cargo xtask dist`)";
        report.add(Outcome::NotRun(reason.to_owned()));
    }
    report.finish("test")
}

/// What there is of kernels and the workspace, and beside it the packages for Python and candle.
fn everything(report: &mut Report) -> anyhow::Result<()> {
    let mut times = Times::default();
    let fronts = Beside::start(&FRONTS);
    let own = workspace(report, &mut times);
    fronts.finish(report, &mut times)?;
    println!("test: {times}");
    own
}

/// The kernels' PTX, the workspace's tests, and what they execute of it and notice.
fn workspace(report: &mut Report, times: &mut Times) -> anyhow::Result<()> {
    times.of("PTX", || tools::run(&["ptx"], report))?;
    let folder = coverage::empty_folder()?;
    let tests = times.of("tests", || of_workspace(&[], Some(folder)))?;
    let passed = matches!(tests, Outcome::Passed(_));
    report.add(tests);
    if passed {
        times.of("coverage", || tools::run(&["coverage", "--brief"], report))?;
        times.of("mutants", || tools::run(&MUTANTS, report))?;
    } else {
        let reason = "coverage and mutants of the PTX: tests failed";
        report.add(Outcome::NotRun(reason.to_owned()));
    }
    Ok(())
}

/// The tests of all crates of the workspace, those that `filter` leaves. What they execute of the PTX is recorded in `folder`.
fn of_workspace(filter: &[String], folder: Option<PathBuf>) -> anyhow::Result<Outcome> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let mut tests = cmd!(sh, "cargo test --workspace --no-fail-fast -- {filter...}");
    if env::var_os(THREADS_VAR).is_none() {
        // More than there are cores: between launches a test leaves all but one of them idle.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        tests = tests.env(THREADS_VAR, (2 * cores).to_string());
    }
    if let Some(folder) = folder {
        tests = tests.env(coverage::FOLDER_VAR, folder);
    }
    Ok(match tests.run() {
        Ok(()) => Outcome::Passed("cargo test --workspace".to_owned()),
        Err(error) => Outcome::Failed(error.to_string()),
    })
}
