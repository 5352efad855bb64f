//! CI's checks of the kernels and of the workspace's imports, and the staging of the published crates. `cargo xtask`
//! runs it as a program of its own, since it depends on the simulator and parsers, which most commands need not build.

mod budgets;
mod build;
mod coverage;
mod json;
mod kernels;
mod mutants;
mod package;
mod passed;
mod ptx_checks;
mod sass;
mod tidy;

use clap::Parser;
use cuda_builder::compiler::RUSTC_VAR;
use xtask::report::{Outcome, Report};

use kernels::Tools;
use passed::Passed;

#[derive(Parser)]
enum Command {
    /// Compile the kernels to PTX in target/ptx, with a manifest
    Build,
    /// Compile the kernels and check their PTX
    Ptx {
        /// Pin every kernel's registers at what ptxas makes of it now
        #[arg(long)]
        pin_registers: bool,
    },
    /// Stage the crates that are published in target/publish, and try them
    Package {
        /// Do not try them
        #[arg(long)]
        no_smoke_test: bool,
    },
    /// Say what the tests that ran last executed of the kernels' PTX
    Coverage(coverage::Args),
    /// Break the kernels' PTX, and see the tests that ran last notice
    Mutants(mutants::Args),
    /// Hold the workspace's modules to the table of who may import whom
    Tidy,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Build => build::run(),
        Command::Ptx { pin_registers } => {
            let mut report = Report::default();
            check_ptx(pin_registers, &mut report)?;
            report.finish("ptx")
        }
        Command::Package { no_smoke_test } => package::run(!no_smoke_test),
        Command::Coverage(args) => coverage::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Tidy => tidy::run(),
    }
}

/// Builds the kernels and checks their PTX. Without ptxas and nvdisasm, checks that need them are reported as not run.
fn check_ptx(pin_registers: bool, report: &mut Report) -> anyhow::Result<()> {
    let mut build = kernels::compile()?;
    println!(
        "{} kernels compiled by {}",
        build.kernels.len(),
        build.compiler
    );
    ptx_checks::check_text(&build, report)?;
    match Tools::find_or_install() {
        Ok(tools) => {
            let budgets = budgets::read()?;
            let passed = Passed::read()?;
            kernels::assemble(&mut build, &tools, |kernel| {
                passed.holds(kernel, &tools, &budgets)
            })?;
            if pin_registers {
                budgets::write(&build)?;
                // A second compiler's PTX is not what CI assembles.
                if std::env::var_os(RUSTC_VAR).is_none() {
                    passed.write(&build, &tools, &budgets::read()?)?;
                }
            }
            ptx_checks::check_resources(&build, &budgets::read()?, report);
        }
        Err(error) => {
            let reason = format!("registers, spills and main loops: {error}");
            report.add(Outcome::NotRun(reason));
        }
    }
    Ok(())
}
