//! `cargo xtask verify`

use xshell::{Shell, cmd};

use crate::kernels::Tools;
use crate::report::{Outcome, Report};
use crate::{budgets, kernels, paths, ptx_checks};

#[derive(clap::Args)]
pub struct Args {
    /// Where to run the kernels: auto (a GPU if there is one, else the simulator), cuda, sim or cpu
    #[arg(long, default_value = "auto")]
    backend: String,
    /// Problems to try
    #[arg(long, default_value_t = 64)]
    cases: u32,
    /// Seed of the problems
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Pin every kernel's registers and spills at what ptxas makes of it now
    #[arg(long)]
    pin_registers: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::default();
    check_ptx(args.pin_registers, &mut report)?;

    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let Args {
        backend,
        cases,
        seed,
        ..
    } = args;
    let (cases, seed) = (cases.to_string(), seed.to_string());
    let backends: &[&str] = if backend == "auto" {
        &["cuda", "sim", "cpu"]
    } else {
        &[backend]
    };
    for backend in backends {
        let verify = cmd!(
            sh,
            "cargo run --quiet --package ferroflash -- verify --backend {backend} --cases {cases} --seed {seed}"
        );
        if *backend == "cuda" && args.backend == "auto" && !has_gpu() {
            report.add(Outcome::NotRun(
                "verify on cuda: no NVIDIA driver here".to_owned(),
            ));
            continue;
        }
        report.add(match verify.quiet().run() {
            Ok(()) => Outcome::Passed(format!("verify on {backend}")),
            Err(error) => Outcome::Failed(format!("verify on {backend}: {error}")),
        });
    }
    report.finish("verify")
}

/// Whether this machine has an NVIDIA driver.
pub fn has_gpu() -> bool {
    std::path::Path::new("/proc/driver/nvidia/version").exists()
        || std::path::Path::new("/dev/nvidiactl").exists()
}

/// Builds the kernels and checks their PTX; without ptxas and nvdisasm what they tell is reported as not run.
pub fn check_ptx(pin_registers: bool, report: &mut Report) -> anyhow::Result<()> {
    let mut build = kernels::compile()?;
    println!(
        "{} kernels compiled by {}",
        build.kernels.len(),
        build.compiler
    );
    ptx_checks::check_text(&build, report)?;
    match Tools::find_or_install() {
        Ok(tools) => {
            kernels::assemble(&mut build, &tools)?;
            if pin_registers {
                budgets::write(&build)?;
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
