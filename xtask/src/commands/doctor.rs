//! `cargo xtask doctor`

use std::path::Path;

use cuda_builder::{Compiler, compiler, install, tool};

use crate::commands::verify::has_gpu;
use xtask::paths;

#[derive(clap::Args)]
pub struct Args {
    /// Install what is missing first: a GPU compiler, ptxas and nvdisasm
    #[arg(long)]
    install: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let workspace = paths::root();
    if args.install {
        install::compiler(workspace)?;
        for tool in [tool::PTXAS, tool::NVDISASM] {
            if let Err(error) = install::tool(&tool, &paths::tools_venv()) {
                println!("not installed: {error}");
            }
        }
    }
    println!(
        "GPU compiler (rustc ≥ {}.{} with rust-src), in order:",
        compiler::OLDEST.0,
        compiler::OLDEST.1
    );
    for (origin, candidate) in compiler::candidates(workspace) {
        match candidate {
            Ok(found) => println!(
                "  found    {origin}: {} at {}",
                found.version,
                found.rustc.display()
            ),
            Err(why) => println!("  no       {origin}: {why}"),
        }
    }
    if Compiler::find(workspace).is_err() {
        println!(
            "  MISSING  `cargo xtask doctor --install` runs `{}`",
            install::COMPILER_COMMANDS.join("`, or `")
        );
    }

    let venv = paths::tools_venv();
    for program in [tool::PTXAS, tool::NVDISASM] {
        let name = program.name;
        println!("{name} (for PTX checks; kernels build without it):");
        match program.find(&venv) {
            Some(path) => println!("  found    {} at {}", tool::version(&path)?, path.display()),
            None => println!(
                "  MISSING  install with `{}`",
                program.install_command(&venv)
            ),
        }
    }

    println!("NVIDIA driver (to run on a GPU; everything else works without):");
    match std::fs::read_to_string("/proc/driver/nvidia/version") {
        Ok(version) => println!("  found    {}", version.lines().next().unwrap_or_default()),
        Err(_) if has_gpu() => println!("  found    a device, of unknown driver version"),
        Err(_) => println!(
            "  MISSING  install it from your distribution; tests on a GPU will print NOT RUN"
        ),
    }
    let python = which_python();
    println!(
        "python3 (to install these, for the scripts in bench/ and examples/, and for fronts/python):"
    );
    println!(
        "  {}",
        if python {
            "found"
        } else {
            "MISSING  install it from your distribution"
        }
    );
    Ok(())
}

fn which_python() -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| Path::new(&dir).join("python3").exists())
    })
}
