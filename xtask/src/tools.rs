//! Runs the program in `tools/`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::Context;
use xtask::paths;
use xtask::report::Report;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(["run", "--quiet", "--package", "xtask-tools", "--"])
        .args(arguments)
        .current_dir(paths::root());
    command
}

/// Runs the program, and adds the outcomes that it prints to `report`.
pub fn run(arguments: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let mut child = command(arguments).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("it is piped")?;
    for line in BufReader::new(output).lines() {
        report.add_line(&line?);
    }
    let status = child.wait()?;
    // The report holds failed checks, but no other failure of the program.
    anyhow::ensure!(
        status.success() || report.has_failed(),
        "xtask-tools {}: {status}",
        arguments.join(" ")
    );
    Ok(())
}

/// Runs the program with its output printed directly.
pub fn run_alone(arguments: &[&str]) -> anyhow::Result<()> {
    let status = command(arguments).status()?;
    anyhow::ensure!(status.success(), "{}: {status}", arguments.join(" "));
    Ok(())
}
