//! The project's own commands: `cargo xtask <command>`. One file a command.

mod commands;
mod tools;

use clap::{Parser, Subcommand};
use xtask::paths;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    about = "Builds, verifies, tests and packs ferroflash"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile the kernels to PTX in target/ptx, with a manifest
    Build,
    /// Build, check the PTX, and compare every kernel with the f64 oracle
    Verify(commands::verify::Args),
    /// Run every test this machine can run, and say which it cannot
    Test(commands::test::Args),
    /// Time the kernels on the GPU of this machine
    Bench(commands::bench::Args),
    /// Pack what a GPU machine without Rust needs into dist/
    Dist,
    /// Say what the build needs, what is found, and how to get what is missing
    Doctor(commands::doctor::Args),
    /// Say what the tests execute of every kernel's PTX, and hold it to the recorded figures
    Coverage(commands::coverage::Args),
    /// Break the kernels in known ways and see the tests notice
    Mutants(commands::mutants::Args),
    /// Run `ferroflash attend` on a real model's attention layer and compare with the model's own output
    Example(commands::example::Args),
    /// Write the output of the commands that docs/ names into it
    Docs(commands::docs::Args),
    /// Hold the workspace's modules to the table of who may import whom
    Tidy,
    /// Stage the crates that are published in target/publish, with compiled kernels, and try them as a user would
    Package,
    /// Build the Python package's wheel in target/python
    Wheel(commands::wheel::Args),
    /// Test the crate for candle, and type-check its CUDA half
    Candle,
    /// Formatting, lints, who may import whom, then everything `test` runs: what to do before offering a change
    Ci,
}

fn main() -> anyhow::Result<()> {
    let command = Cli::parse().command;
    // All other commands compile kernels somewhere, by build scripts, which install nothing themselves.
    if !matches!(command, Command::Doctor(_) | Command::Tidy) {
        cuda_builder::install::compiler(paths::root())?;
    }
    match command {
        Command::Build => tools::run_alone(&["build"]),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Test(args) => commands::test::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Dist => commands::dist::run(),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Coverage(args) => commands::coverage::run(&args),
        Command::Mutants(args) => commands::mutants::run(&args),
        Command::Example(args) => commands::example::run(&args),
        Command::Docs(args) => commands::docs::run(&args),
        Command::Tidy => tools::run_alone(&["tidy"]),
        Command::Package => tools::run_alone(&["package"]),
        Command::Wheel(args) => commands::wheel::run(&args),
        Command::Candle => commands::candle::run(),
        Command::Ci => commands::ci::run(),
    }
}
