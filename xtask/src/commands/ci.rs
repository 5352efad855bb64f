//! `cargo xtask ci`

use xshell::{Shell, cmd};

use crate::commands::test;
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
    test::run(&test::Args::default())
}
