//! The command `ferroflash`: attention on files, and what tells whether to trust it.
//!
//! One file a subcommand. Results go to standard output, everything else to standard error.

mod arguments;
mod attend;
mod backends;
mod bench;
mod failure;
mod file;
mod info;
mod progress;
mod usage;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exact fused attention, with GPU kernels written in Rust
#[derive(Parser)]
#[command(version, infer_long_args = false, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compute o and lse from the tensors q, k and v of a safetensors file
    Attend(attend::Args),
    /// Compare a backend with an f64 oracle on random and planted problems
    Verify(verify::Args),
    /// Time one problem, after checking its result
    Bench(bench::Args),
    /// Show devices, driver, and which embedded kernels can run here
    Info(info::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => run(&cli.command),
        Err(error) if !error.use_stderr() => {
            // --help and --version
            print!("{}", error.render().ansi());
            Ok(())
        }
        Err(error) => Err(usage::failure(&error)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: &Command) -> Result<(), failure::Failure> {
    match command {
        Command::Attend(args) => attend::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Info(args) => info::run(args),
    }
}
