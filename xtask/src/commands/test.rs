//! `cargo xtask test`

use xshell::{Shell, cmd};

use crate::commands::verify::has_gpu;
use crate::commands::{candle, coverage, wheel};
use crate::tools;
use xtask::paths;
use xtask::report::{Outcome, Report};

/// A sample of the mutants, new every day: what survives is printed for whoever looks. It fails where tests notice next to none,
/// as when what they run is not the text that was broken.
const MUTANTS: [&str; 3] = ["mutants", "--count=8", "--at-least=25"];

#[derive(Default, clap::Args)]
pub struct Args {
    /// Passed on to the test binaries: a filter, `--nocapture`, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::default();
    if args.filter.is_empty() {
        tools::run(&["ptx"], &mut report)?;
    }
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let filter = &args.filter;
    let tests = cmd!(sh, "cargo test --workspace --no-fail-fast -- {filter...}");
    let tests = match filter.is_empty() {
        true => tests.env(coverage::FOLDER_VAR, coverage::empty_folder()?),
        false => tests,
    };
    let outcome = tests.run();
    let passed = outcome.is_ok();
    report.add(match outcome {
        Ok(()) => Outcome::Passed("cargo test --workspace".to_owned()),
        Err(error) => Outcome::Failed(error.to_string()),
    });
    if filter.is_empty() {
        if passed {
            tools::run(&["coverage", "--brief"], &mut report)?;
            tools::run(&MUTANTS, &mut report)?;
        } else {
            let reason = "coverage and mutants of the PTX: tests failed";
            report.add(Outcome::NotRun(reason.to_owned()));
        }
        wheel::test(&mut report)?;
        candle::test(&mut report)?;
    }
    if !has_gpu() {
        let reason = "tests on a GPU: no NVIDIA driver here (pack them with `cargo xtask dist`)";
        report.add(Outcome::NotRun(reason.to_owned()));
    }
    report.finish("test")
}
