//! `cargo xtask verify`

use xshell::{Shell, cmd};

use xtask::paths;
use xtask::report::{Outcome, Report};

use crate::tools;

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
    /// Pin every kernel's registers at what ptxas makes of it now
    #[arg(long)]
    pin_registers: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::default();
    let pin: &[&str] = if args.pin_registers {
        &["--pin-registers"]
    } else {
        &[]
    };
    tools::run(&[&["ptx"], pin].concat(), &mut report)?;

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
            "cargo run --quiet --package ferroflash-cli -- verify --backend {backend} --cases {cases} --seed {seed}"
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
