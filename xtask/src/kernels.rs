//! Building the kernels, and what NVIDIA's programs say of them.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use cuda_builder::manifest::{FILE_NAME, Resources};
use cuda_builder::{Build, CudaBuilder, Error, Kernel, nvdisasm, ptxas, tool};
use kernels_gpu::instances::{self, Arch, INSTANCES};

use crate::{paths, sass};

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

/// The programs that checks need beside the compiler.
pub struct Tools {
    ptxas: PathBuf,
    nvdisasm: PathBuf,
}

impl Tools {
    /// Finds or installs them.
    pub fn find_or_install() -> Result<Self, Error> {
        let venv = paths::tools_venv();
        Ok(Self {
            ptxas: tool::PTXAS.find_or_install(&venv)?,
            nvdisasm: tool::NVDISASM.find_or_install(&venv)?,
        })
    }
}

/// Fills in what ptxas reports and what its machine code is, and writes the manifest. Kernels whose PTX is older than
/// the last manifest keep its figures.
pub fn assemble(build: &mut Build, tools: &Tools) -> anyhow::Result<()> {
    let manifest = paths::ptx().join(FILE_NAME);
    let last = Build::read(&paths::ptx()).unwrap_or_default();
    let last_age = fs::metadata(&manifest).and_then(|file| file.modified());
    for kernel in &mut build.kernels {
        let age = fs::metadata(&kernel.ptx)?.modified()?;
        let known = last
            .kernels
            .iter()
            .find(|old| old.entry == kernel.entry && is_complete(old));
        if let (Some(known), Ok(last_age)) = (known, &last_age)
            && age < *last_age
        {
            kernel.resources = known.resources.clone();
            continue;
        }
        for arch in assembled_archs(&kernel.arch) {
            let resources = assemble_one(kernel, arch, tools)
                .with_context(|| format!("{} for {arch}", kernel.entry))?;
            kernel.resources.push(resources);
        }
    }
    build.write(&paths::ptx())?;
    Ok(())
}

/// The matrix instruction that the main loop of `kernel` is known by.
fn matrix_instruction(kernel: &Kernel) -> Option<&'static str> {
    instances::find(&kernel.entry).and_then(sass::matrix_instruction)
}

/// Whether a manifest says all of `kernel` that is asked for now.
fn is_complete(kernel: &Kernel) -> bool {
    let instruction = matrix_instruction(kernel);
    let has_loops = |resources: &Resources| {
        let loops = resources.main_loops.as_ref();
        loops.map(|loops| loops.instruction.as_str()) == instruction
    };
    !kernel.resources.is_empty() && kernel.resources.iter().all(has_loops)
}

fn assemble_one(kernel: &Kernel, arch: &str, tools: &Tools) -> anyhow::Result<Resources> {
    let cubin = paths::target().join("checked.cubin");
    let mut resources = ptxas::assemble(&tools.ptxas, &kernel.ptx, arch, &cubin)?;
    if let Some(instruction) = matrix_instruction(kernel) {
        let graph = nvdisasm::control_flow(&tools.nvdisasm, &cubin)?;
        resources.main_loops = Some(sass::main_loops(&graph, instruction)?);
    }
    Ok(resources)
}
