//! `cargo xtask ci`

use xshell::{Shell, cmd};
use xtask::paths;
use xtask::report::Report;
use xtask::times::Times;

use crate::commands::beside::{self, Beside};
use crate::commands::{docs, test};
use crate::tools;

/// A step's name, and the function that runs it.
type Step = (&'static str, fn(&Shell) -> anyhow::Result<()>);

/// The steps before the tests in order: those that fail soonest come first.
const STEPS: [Step; 7] = [
    ("formatting", |sh| {
        Ok(cmd!(sh, "cargo fmt --all --check").run()?)
    }),
    ("lints", |sh| {
        let lint = cmd!(
            sh,
            "cargo clippy --workspace --all-targets -- --deny warnings"
        );
        Ok(lint.run()?)
    }),
    ("features", |sh| {
        // The other lints and the tests build the whole workspace, which unites its crates' features.
        for features in [&[][..], &["--no-default-features"]] {
            let lint = cmd!(
                sh,
                "cargo clippy --package ferroflash --all-targets {features...} -- --deny warnings"
            );
            lint.run()?;
        }
        Ok(())
    }),
    ("imports", |_| tools::run_alone(&["tidy"])),
    ("own tests", |sh| {
        // They take seconds, and say which planted fault points at text that a change moved: not after an hour.
        let test = cmd!(
            sh,
            "cargo test --quiet --package xtask --package xtask-tools"
        );
        Ok(test.run()?)
    }),
    ("rustdoc", |sh| {
        let _denied = sh.push_env("RUSTDOCFLAGS", "--deny warnings");
        Ok(cmd!(sh, "cargo doc --workspace --no-deps --quiet").run()?)
    }),
    ("docs", |_| docs::run(&docs::Args::check())),
];

/// What Python's tests need is downloaded while kernels are compiled.
const DOWNLOADS: [beside::Step; 1] = [("downloads", &["wheel", "--install"])];

/// The packages are tried as a user would, in build folders of their own.
const PACKAGES: [beside::Step; 1] = [("packages", &["package"])];

pub fn run() -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    let mut times = Times::default();
    let downloads = Beside::start(&DOWNLOADS);
    for (name, step) in STEPS {
        let outcome = times.of(name, || step(&sh));
        if outcome.is_err() {
            println!("ci: {times}; {name} failed");
        }
        outcome?;
    }
    if let Err(error) = downloads.finish(&mut Report::default(), &mut times) {
        // The tests say what they do not run for it.
        println!("{error:#}");
    }
    let packages = Beside::start(&PACKAGES);
    let tested = times.of("tests", || test::run(&test::Args::default()));
    let mut report = Report::default();
    let packed = packages.finish(&mut report, &mut times);
    println!("ci: {times}");
    tested.and(packed)?;
    report.finish("packages")
}
