//! Installing what a build or a check needs: the only code of this crate that changes the machine it runs on.
//!
//! For commands that people call, which say what they do. A build script cannot reach this module: it is behind the
//! feature `install`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compiler::RUSTC_VAR;
use crate::{Compiler, Error, Tool, run};

/// The commands that install a GPU compiler, in the order they are tried.
pub const COMPILER_COMMANDS: [&str; 2] = [
    "rustup component add rust-src",
    "apt-get update && apt-get install -y --no-install-recommends rustc-web rust-web-src libstd-rust-web-dev",
];

/// [`Compiler::find`], or else installs one by the first of [`COMPILER_COMMANDS`] that does it here. Says so on standard
/// error.
///
/// # Errors
/// [`Error::NoCompiler`] if none could be installed, or the one that `$FERROFLASH_RUSTC` names will not do.
pub fn compiler(workspace: &Path) -> Result<Compiler, Error> {
    let found = Compiler::find(workspace);
    // A compiler the user named is the one they want: do not install another behind their back.
    if found.is_ok() || std::env::var_os(RUSTC_VAR).is_some() {
        return found;
    }
    for command in COMPILER_COMMANDS {
        if install(command, workspace)
            && let Ok(compiler) = Compiler::find(workspace)
        {
            return Ok(compiler);
        }
    }
    found
}

/// [`Tool::find`], or else installs the tool's package into a virtual environment in `venv`. Says so on standard error.
///
/// # Errors
/// [`Error::Spawn`], [`Error::Failed`] or [`Error::NoTool`] if it could not be installed.
pub fn tool(tool: &Tool, venv: &Path) -> Result<PathBuf, Error> {
    if let Some(path) = tool.find(venv) {
        return Ok(path);
    }
    let Tool { name, package, .. } = tool;
    eprintln!("installing {name}: {}", tool.install_command(venv));
    run::checked(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    run::checked(Command::new(venv.join("bin/pip")).args(["install", "--quiet", package]))?;
    tool.find(venv).ok_or(Error::NoTool { name, package })
}

/// Runs one of [`COMPILER_COMMANDS`] if this machine has what it needs. Its output goes to stderr.
fn install(command: &str, workspace: &Path) -> bool {
    let program = command.split_whitespace().next().unwrap_or_default();
    if which::which(program).is_err() || (program == "apt-get" && !is_root()) {
        return false;
    }
    eprintln!("installing a GPU compiler: {command}");
    let result = run::output(
        Command::new("sh")
            .args(["-c", command])
            .current_dir(workspace)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    );
    match result {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            eprintln!("it failed: {}", text.lines().last().unwrap_or("no message"));
            false
        }
        Err(error) => {
            eprintln!("it failed: {error}");
            false
        }
    }
}

fn is_root() -> bool {
    run::checked(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
