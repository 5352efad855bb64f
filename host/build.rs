//! Compiles the kernels to PTX and embeds one module per kernel (`src/modules.rs` reads the result).

use std::error::Error;
use std::fmt::Write;
use std::path::Path;
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

    let mut table = String::from("&[\n");
    for kernel in &build.kernels {
        writeln!(
            table,
            "    ({:?}, include_str!({:?})),",
            kernel.entry, kernel.ptx
        )?;
    }
    table.push_str("]\n");
    fs::write(Path::new(&out_dir).join("modules.rs"), table)?;
    Ok(())
}
