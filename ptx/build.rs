//! Finds the PTX to embed: `prebuilt/`, which the published crate carries, or else the PTX that it compiles.
//!
//! Writes under `OUT_DIR` alone and installs nothing.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The table of modules compiled before; `cargo xtask package` puts it there.
const PREBUILT: &str = "prebuilt/modules.rs";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    match table() {
        Ok(table) => {
            println!(
                "cargo::rustc-env=FERROFLASH_PTX_MODULES={}",
                table.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            // The error in one line, after the output of a program that failed.
            let text = error.to_string();
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            eprintln!("{rest}");
            println!("cargo::error={first}");
            ExitCode::FAILURE
        }
    }
}

fn table() -> Result<PathBuf, Box<dyn Error>> {
    let prebuilt = Path::new(env!("CARGO_MANIFEST_DIR")).join(PREBUILT);
    match prebuilt.exists() {
        true => Ok(prebuilt),
        false => compiled(),
    }
}

#[cfg(feature = "compile")]
fn compiled() -> Result<PathBuf, Box<dyn Error>> {
    let archs = kernels_gpu::instances::Arch::ALL.map(|arch| arch.name());
    let others = [
        "../cuda/cuda_std",
        "../cuda/cuda_std_macros",
        "../Cargo.toml",
    ];
    let table = cuda_builder::build_script::embed(Path::new("../kernels-gpu"), &others, archs)?;
    Ok(table)
}

#[cfg(not(feature = "compile"))]
fn compiled() -> Result<PathBuf, Box<dyn Error>> {
    Err(format!("there is no {PREBUILT}, and the feature `compile` is off").into())
}
