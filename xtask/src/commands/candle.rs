//! `cargo xtask candle`: the tests of fronts/candle on the CPU, and the lints of its CUDA half, which are a type check too.

use xshell::{Shell, cmd};

use xtask::paths;
use xtask::report::{Outcome, Report};

pub fn run() -> anyhow::Result<()> {
    let mut report = Report::default();
    test(&mut report)?;
    report.finish("candle")
}

/// Lints and tests the crate; crates that cannot be had are no failure: it is then not run, for that reason.
fn test(report: &mut Report) -> anyhow::Result<()> {
    let shell = Shell::new()?;
    let folder = paths::root().join("fronts/candle");
    shell.change_dir(&folder);
    if let Err(error) = cmd!(shell, "cargo fetch --locked --quiet").run() {
        let reason = format!("tests of the crate for candle: {error}");
        report.add(Outcome::NotRun(reason));
        return Ok(());
    }
    let tested = || -> anyhow::Result<()> {
        cmd!(shell, "cargo fmt --check").run()?;
        // candle's build script compiles its kernels with nvcc, of which a check needs nothing but that it ends well.
        let path = format!("{}:{}", folder.join("tools").display(), shell.var("PATH")?);
        let lint = "clippy --locked --all-targets --features cuda -- --deny warnings";
        let lint = lint.split(' ');
        cmd!(shell, "cargo {lint...}")
            .env("PATH", path)
            .env("CUDA_COMPUTE_CAP", "90")
            .run()?;
        // The half without CUDA is linted by the compiler alone: candle is then checked once less.
        let tests = cmd!(shell, "cargo test --locked --quiet");
        Ok(tests.env("RUSTFLAGS", "--deny warnings").run()?)
    };
    report.add(match tested() {
        Ok(()) => {
            Outcome::Passed("the crate for candle: lints, tests, CUDA type-checked".to_owned())
        }
        Err(error) => Outcome::Failed(format!("the crate for candle: {error:#}")),
    });
    Ok(())
}
