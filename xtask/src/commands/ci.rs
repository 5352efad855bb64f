//! `cargo xtask ci`

use xshell::{Shell, cmd};

use crate::commands::{docs, test, tidy};
use crate::paths;

pub fn run() -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    cmd!(sh, "cargo fmt --all --check").run()?;
    cmd!(
        sh,
        "cargo clippy --workspace --all-targets -- --deny warnings"
    )
    .run()?;
    tidy::run()?;
    docs::run(&docs::Args::check())?;
    test::run(&test::Args::default())
}
