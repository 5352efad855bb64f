//! The project's own commands: `cargo xtask <command>`. One file a command.

mod budgets;
mod commands;
mod kernels;
mod paths;
mod ptx_checks;
mod report;
mod sass;
mod tidy;

use clap::{Parser, Subcommand};

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
    Doctor,
    /// Break the kernels in known ways and see the tests notice
    Mutants(commands::mutants::Args),
    /// Run `ferroflash attend` on a real model's attention layer and compare with the model's own output
    Example(commands::example::Args),
    /// Write the output of the commands that docs/ names into it
    Docs(commands::docs::Args),
    /// Hold the workspace's modules to the table of who may import whom
    Tidy,
    /// Formatting, lints, who may import whom, then everything `test` runs: what to do before offering a change
    Ci,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Build => commands::build::run(),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Test(args) => commands::test::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Dist => commands::dist::run(),
        Command::Doctor => commands::doctor::run(),
        Command::Mutants(args) => commands::mutants::run(&args),
        Command::Example(args) => commands::example::run(&args),
        Command::Docs(args) => commands::docs::run(&args),
        Command::Tidy => commands::tidy::run(),
        Command::Ci => commands::ci::run(),
    }
}
