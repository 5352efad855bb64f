//! `cargo xtask coverage`

use std::fs;

use anyhow::Context;
use xshell::{Shell, cmd};

use xtask::paths;

use crate::tools;

#[derive(clap::Args)]
pub struct Args {
    /// Only kernels whose names contain this
    #[arg(long)]
    kernel: Option<String>,
    /// Run no test: print what the last run recorded
    #[arg(long)]
    recorded: bool,
    /// Record the figures in kernels-gpu/coverage.json, to which CI holds later ones
    #[arg(long)]
    pin: bool,
    /// Passed on to the test binaries: a filter, `--skip corpus`, …; figures are then those of these tests alone
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    filter: Vec<String>,
}

/// Environment variable that makes simulated GPUs record what they execute (`host/src/backend/sim/recording.rs`).
pub const FOLDER_VAR: &str = "FERROFLASH_SIM_COVERAGE";

/// Packages whose tests launch kernels in the simulator.
const PACKAGES: [&str; 3] = ["ferroflash-tests", "ferroflash", "ferroflash-cli"];

pub fn run(args: &Args) -> anyhow::Result<()> {
    if !args.recorded {
        record(&args.filter)?;
    }
    let mut arguments = vec!["coverage"];
    if let Some(kernel) = &args.kernel {
        arguments.extend(["--kernel", kernel]);
    }
    if args.pin {
        arguments.push("--pin");
    }
    tools::run_alone(&arguments)
}

/// Empties the folder of recordings, and returns it.
pub fn empty_folder() -> anyhow::Result<std::path::PathBuf> {
    let folder = paths::coverage();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Runs the tests, which must pass. Those on the CPU backend and on a GPU launch nothing in the simulator.
pub fn record(filter: &[String]) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    sh.set_var(FOLDER_VAR, empty_folder()?);
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    cmd!(
        sh,
        "cargo test --tests {packages...} -- --skip cpu --skip cuda {filter...}"
    )
    .run()?;
    Ok(())
}
