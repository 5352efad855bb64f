//! The command `ferroflash`: attention on files, and tools to verify, time and explain it.
//!
//! A file or a folder a subcommand. Results go to standard output, everything else to standard error.

mod arguments;
mod attend;
mod backends;
mod bench;
mod completions;
mod failure;
mod info;
mod ladder;
mod ladder_gpu;
mod layout;
mod memory;
mod modifiers;
mod output;
mod picture;
mod progress;
mod roofline;
mod say;
mod signals;
mod sim_report;
mod table;
mod threads;
mod usage;
mod verify;
mod whole_file;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Exact fused attention, with GPU kernels written in Rust
#[derive(Parser)]
#[command(version, infer_long_args = false)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Threads of everything that runs on the CPU, the simulator included [default: RAYON_NUM_THREADS, else one a core]
    #[arg(long, value_name = "N", global = true, value_parser = arguments::positive, allow_hyphen_values = true)]
    threads: Option<usize>,
}

#[derive(Subcommand)]
enum Command {
    /// Compute o and lse from the tensors q, k and v of a safetensors file
    Attend(attend::Args),
    /// Compare a backend with an f64 oracle on random and planted problems
    Verify(verify::Args),
    /// Time one problem, after checking its result: sustained without a pause, which rates are of, and in bursts
    Bench(bench::Args),
    /// Show devices, driver, and which embedded kernels can run here
    Info(info::Args),
    /// Show what limits attention on a GPU: FLOPs, bytes, and the least time of each algorithm
    Roofline(roofline::Args),
    /// Climb from the textbook's softmax to FlashAttention-2, counting what each step moves
    Ladder(ladder::Args),
    /// Show which thread holds which element, and how tiles lie in shared memory
    Layout(layout::Args),
    /// Run one problem in the simulator and show what its kernel did: instructions, memory traffic, bank conflicts
    SimReport(sim_report::Args),
    /// Print a script that completes this command's arguments in a shell
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse() {
        Ok(cli) => threads::run(cli.threads, || run(&cli.command)),
        Err(error) if !error.use_stderr() => {
            // --help and --version, which succeed even if the pipe is closed.
            let _ = error.print();
            Ok(())
        }
        Err(error) => Err(usage::failure(&error)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
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
        Command::Roofline(args) => roofline::run(args),
        Command::Ladder(args) => ladder::run(args),
        Command::Layout(args) => layout::run(args),
        Command::SimReport(args) => sim_report::run(args),
        Command::Completions(args) => completions::run(args),
    }
}
