//! Compiles the kernels to a folder, with a manifest: `cargo xtask build`.

use crate::kernels;
use crate::kernels::Tools;
use cuda_builder::Build;
use xtask::paths;

pub fn run() -> anyhow::Result<()> {
    let mut build = kernels::compile()?;
    match Tools::find_or_install() {
        Ok(tools) => kernels::assemble(&mut build, &tools, |_| Ok(false))?,
        Err(error) => {
            eprintln!("no registers in the manifest: {error}");
            build.write(&paths::ptx())?;
        }
    }
    print_table(&build);
    println!(
        "compiled by {} into {}",
        build.compiler,
        paths::ptx().display()
    );
    Ok(())
}

fn print_table(build: &Build) {
    println!("| kernel | PTX for | threads | shared bytes | registers | spilled bytes |");
    println!("|---|---|---|---|---|---|");
    for kernel in &build.kernels {
        let shared = kernels::find(&kernel.entry).map_or(0, |instance| instance.shared_bytes);
        let worst = |figure: fn(&cuda_builder::manifest::Resources) -> u32| {
            kernel
                .resources
                .iter()
                .map(figure)
                .max()
                .map_or("not assembled".to_owned(), |n| n.to_string())
        };
        println!(
            "| {} | {} | {} | {shared} | {} | {} |",
            kernel.entry,
            kernel.arch,
            kernel.threads,
            worst(|r| r.registers),
            worst(|r| r.spilled_bytes()),
        );
    }
}
