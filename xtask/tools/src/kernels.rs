//! Builds the kernels, and fills in the figures of NVIDIA's programs.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use cuda_builder::manifest::{FILE_NAME, Resources};
use cuda_builder::{Build, CudaBuilder, Error, Kernel, install, nvdisasm, ptxas, tool};
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};
use kernels_gpu::instances::{Arch, Instance};
use rayon::prelude::*;

use crate::sass;
use xtask::paths;

/// Every generation that PTX for `sm_80` is meant to run on, oldest first, and its shared memory of a block.
const GENERATIONS: [(&str, u32); 6] = [
    ("sm_80", SM80_SHARED_BYTES),
    ("sm_86", SM86_SHARED_BYTES),
    ("sm_89", SM86_SHARED_BYTES),
    ("sm_90", SM90_SHARED_BYTES),
    ("sm_100", SM90_SHARED_BYTES),
    ("sm_120", SM86_SHARED_BYTES),
];

/// Architectures ptxas assembles a kernel for: every generation that it can run on.
pub fn assembled_archs(kernel: &Kernel) -> Vec<&'static str> {
    if kernel.arch == Arch::Sm90a.name() {
        return vec!["sm_90a"];
    }
    let needed = kernel.dynamic_shared_bytes.unwrap_or(0);
    let newer = GENERATIONS
        .iter()
        .skip_while(|(arch, _)| *arch != kernel.arch);
    let fitting = newer.filter(|(_, shared)| needed <= *shared);
    fitting.map(|(arch, _)| *arch).collect()
}

/// The kernel crates, the product's first.
pub const CRATES: [&str; 2] = ["kernels-gpu", "insight/kernels"];

/// The instance of the kernel `entry`, in either crate.
pub fn find(entry: &str) -> Option<&'static Instance> {
    kernels_gpu::instances::find(entry).or_else(|| kernels_insight::instances::find(entry))
}

/// Compiles all kernels to `target/ptx`.
pub fn compile() -> anyhow::Result<Build> {
    let mut build = Build::default();
    for crate_dir in CRATES {
        let of_crate = compile_crate(crate_dir)?;
        build.compiler = of_crate.compiler;
        build.kernels.extend(of_crate.kernels);
    }
    for kernel in &mut build.kernels {
        let Some(instance) = find(&kernel.entry) else {
            anyhow::bail!("kernel {} is not in the instance table", kernel.entry);
        };
        kernel.dynamic_shared_bytes = Some(instance.shared_bytes);
    }
    Ok(build)
}

/// Compiles the product's kernels, which users get.
pub fn compile_product() -> Result<Build, Error> {
    compile_crate(CRATES[0])
}

/// Compiles the kernels of one crate, as a build script does, into the shared folder.
fn compile_crate(crate_dir: &str) -> Result<Build, Error> {
    let builder = CudaBuilder::new(paths::root().join(crate_dir))
        .target_dir(paths::gpu())
        .source_lines(true)
        .copy_to(paths::ptx());
    let archs = Arch::ALL.into_iter().map(Arch::name);
    archs.fold(builder, CudaBuilder::arch).build()
}

/// The programs that checks need in addition to the compiler.
pub struct Tools {
    ptxas: PathBuf,
    nvdisasm: PathBuf,
    /// Both programs' releases.
    pub releases: String,
}

impl Tools {
    /// Programs that are not there, of these releases.
    #[cfg(test)]
    pub fn named(releases: &str) -> Self {
        Self {
            ptxas: PathBuf::new(),
            nvdisasm: PathBuf::new(),
            releases: releases.to_owned(),
        }
    }

    /// Finds the programs, or installs them.
    pub fn find_or_install() -> Result<Self, Error> {
        let venv = paths::tools_venv();
        let ptxas = install::tool(&tool::PTXAS, &venv)?;
        let nvdisasm = install::tool(&tool::NVDISASM, &venv)?;
        let releases = [tool::version(&ptxas)?, tool::version(&nvdisasm)?];
        Ok(Self {
            ptxas,
            nvdisasm,
            releases: releases.join("; "),
        })
    }
}

/// Fills in the figures of ptxas and of its machine code, and writes the manifest. Kernels whose PTX is older than the
/// last manifest keep its figures, if they are complete. Of kernels that `passed` none are filled in.
pub fn assemble(
    build: &mut Build,
    tools: &Tools,
    passed: impl Fn(&Kernel) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let manifest = paths::ptx().join(FILE_NAME);
    let last = Build::read(&paths::ptx()).unwrap_or_default();
    let last_age = fs::metadata(&manifest).and_then(|file| file.modified());
    let mut wanted = Vec::new();
    for (index, kernel) in build.kernels.iter_mut().enumerate() {
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
        if passed(kernel)? {
            continue;
        }
        let archs = assembled_archs(kernel).into_iter();
        wanted.extend(archs.map(|arch| (index, arch)));
    }
    // ptxas keeps one core busy: each core runs its own.
    let assembled: Vec<_> = wanted
        .par_iter()
        .map(|&(index, arch)| {
            let kernel = &build.kernels[index];
            assemble_one(kernel, arch, tools)
                .with_context(|| format!("{} for {arch}", kernel.entry))
        })
        .collect::<anyhow::Result<_>>()?;
    for ((index, _), resources) in wanted.into_iter().zip(assembled) {
        build.kernels[index].resources.push(resources);
    }
    build.write(&paths::ptx())?;
    Ok(())
}

/// The matrix instruction by which the main loop of `kernel` is recognised.
fn matrix_instruction(kernel: &Kernel) -> Option<&'static str> {
    find(&kernel.entry).and_then(sass::matrix_instruction)
}

/// Whether a manifest's entry has all figures of `kernel` that are wanted now.
fn is_complete(kernel: &Kernel) -> bool {
    let instruction = matrix_instruction(kernel);
    let has_loops = |resources: &Resources| {
        let loops = resources.main_loops.as_ref();
        loops.map(|loops| loops.instruction.as_str()) == instruction
    };
    !kernel.resources.is_empty() && kernel.resources.iter().all(has_loops)
}

fn assemble_one(kernel: &Kernel, arch: &str, tools: &Tools) -> anyhow::Result<Resources> {
    let cubin = kernel.ptx.with_extension(format!("{arch}.cubin"));
    let mut resources = ptxas::assemble(&tools.ptxas, &kernel.ptx, arch, &cubin)?;
    if let Some(instruction) = matrix_instruction(kernel) {
        let graph = nvdisasm::control_flow(&tools.nvdisasm, &cubin)?;
        resources.main_loops = Some(sass::main_loops(&graph, instruction)?);
    }
    fs::remove_file(&cubin)?;
    Ok(resources)
}
