//! Building the kernels, and what ptxas says of them.

use std::fs;
use std::path::Path;

use anyhow::Context;
use cuda_builder::manifest::FILE_NAME;
use cuda_builder::{Build, CudaBuilder, ptxas};
use kernels_gpu::instances::{self, Arch, INSTANCES};

use crate::paths;

/// Architectures ptxas assembles a kernel for: every generation its PTX is meant to run on.
fn assembled_archs(arch: &str) -> &'static [&'static str] {
    if arch == Arch::Sm90a.name() {
        &["sm_90a"]
    } else {
        &["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]
    }
}

/// Compiles the kernels to `target/ptx`.
pub fn compile() -> anyhow::Result<Build> {
    let mut builder = CudaBuilder::new(paths::root().join("kernels-gpu"))
        .target_dir(paths::target().join("gpu"))
        .copy_to(paths::ptx());
    for arch in Arch::ALL {
        if INSTANCES.iter().any(|instance| instance.arch == arch) {
            builder = builder.arch(arch.name());
        }
    }
    let mut build = builder.build()?;
    for kernel in &mut build.kernels {
        let Some(instance) = instances::find(&kernel.entry) else {
            anyhow::bail!("kernel {} is not in the instance table", kernel.entry);
        };
        kernel.dynamic_shared_bytes = Some(instance.shared_bytes);
    }
    Ok(build)
}

/// Fills in what ptxas reports, and writes the manifest. Kernels whose PTX is older than the last manifest
/// keep its figures.
pub fn assemble(build: &mut Build, program: &Path) -> anyhow::Result<()> {
    let manifest = paths::ptx().join(FILE_NAME);
    let last = Build::read(&paths::ptx()).unwrap_or_default();
    let last_age = fs::metadata(&manifest).and_then(|file| file.modified());
    let cubin = paths::target().join("checked.cubin");
    for kernel in &mut build.kernels {
        let age = fs::metadata(&kernel.ptx)?.modified()?;
        let known = last
            .kernels
            .iter()
            .find(|old| old.entry == kernel.entry && !old.resources.is_empty());
        if let (Some(known), Ok(last_age)) = (known, &last_age)
            && age < *last_age
        {
            kernel.resources = known.resources.clone();
            continue;
        }
        for arch in assembled_archs(&kernel.arch) {
            let resources = ptxas::assemble(program, &kernel.ptx, arch, &cubin)
                .with_context(|| format!("{} for {arch}", kernel.entry))?;
            kernel.resources.push(resources);
        }
    }
    build.write(&paths::ptx())?;
    Ok(())
}
