//! `ferroflash completions`: a script for a shell.

use std::io::{Write, stdout};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use crate::failure::Failure;

#[derive(clap::Args)]
pub struct Args {
    /// For this shell
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    // Generated in memory first: clap_complete panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ferroflash", &mut script);
    stdout().write_all(&script)?;
    Ok(())
}
