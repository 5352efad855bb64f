//! `cargo xtask bench`

use xshell::{Shell, cmd};

use xtask::paths;

#[derive(clap::Args)]
pub struct Args {
    /// Passed on to bench/side_by_side.py: --old, --dims, --seqs, --masks, --dtype, --peers, --json, …
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    side_by_side: Vec<String>,
}

/// Times the kernels beside their peers in one run; needs a GPU and PyTorch.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sh = Shell::new()?;
    sh.change_dir(paths::root());
    cmd!(sh, "cargo build --release --package ferroflash-cli").run()?;
    let binary = paths::target().join("release/ferroflash");
    let arguments = &args.side_by_side;
    cmd!(sh, "python3 bench/side_by_side.py {binary} {arguments...}").run()?;
    Ok(())
}
