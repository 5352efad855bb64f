//! Calling the program in `tools/`.

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

/// Runs it, and adds the outcomes it prints to `report`.
pub fn run(arguments: &[&str], report: &mut Report) -> anyhow::Result<()> {
    let mut child = command(arguments).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("it is piped")?;
    for line in BufReader::new(output).lines() {
        report.add_line(&line?);
    }
    let status = child.wait()?;
    // A failed check is in the report; anything else is not.
    anyhow::ensure!(
        status.success() || report.has_failed(),
        "xtask-tools {}: {status}",
        arguments.join(" ")
    );
    Ok(())
}

/// Runs it on its own account.
pub fn run_alone(arguments: &[&str]) -> anyhow::Result<()> {
    let status = command(arguments).status()?;
    anyhow::ensure!(status.success(), "{}: {status}", arguments.join(" "));
    Ok(())
}
