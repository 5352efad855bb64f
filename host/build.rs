//! Compiles the kernels to PTX and embeds one compressed module per kernel (`src/modules.rs` reads the result).

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use cuda_builder::CudaBuilder;

/// What the kernels are made from, relative to this package.
const SOURCES: [&str; 4] = [
    "../kernels-gpu",
    "../cuda/cuda_std",
    "../cuda/cuda_std_macros",
    "../Cargo.toml",
];

fn main() -> Result<(), Box<dyn Error>> {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!(
        "cargo::rerun-if-env-changed={}",
        cuda_builder::compiler::RUSTC_VAR
    );

    let out_dir = env::var("OUT_DIR")?;
    let mut builder = CudaBuilder::new("../kernels-gpu").copy_to(Path::new(&out_dir).join("ptx"));
    for arch in kernels_gpu::instances::Arch::ALL {
        if kernels_gpu::instances::INSTANCES
            .iter()
            .any(|instance| instance.arch == arch)
        {
            builder = builder.arch(arch.name());
        }
    }
    let build = builder.build()?;

    let mut table = format!("static MODULES: [Module; {}] = [\n", build.kernels.len());
    for kernel in &build.kernels {
        let (bytes, deflated) = deflate(&kernel.ptx)?;
        writeln!(
            table,
            "    Module::new({:?}, {bytes}, include_bytes!({deflated:?})),",
            kernel.entry
        )?;
    }
    table.push_str("];\n");
    fs::write(Path::new(&out_dir).join("modules.rs"), table)?;
    Ok(())
}

/// Beyond this level modules get one part in fifty smaller, in three times the time.
const LEVEL: u8 = 6;

/// Compresses the file `ptx` beside it, unless that was done since it changed; returns its size and the result's path.
fn deflate(ptx: &Path) -> Result<(usize, PathBuf), Box<dyn Error>> {
    let deflated = ptx.with_extension("ptx.deflate");
    let text = fs::read(ptx)?;
    let age = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let is_current = age(&deflated).is_ok_and(|done| age(ptx).is_ok_and(|changed| changed < done));
    if !is_current {
        fs::write(
            &deflated,
            miniz_oxide::deflate::compress_to_vec(&text, LEVEL),
        )?;
    }
    Ok((text.len(), deflated))
}
