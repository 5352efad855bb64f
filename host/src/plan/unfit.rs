//! Why a kernel cannot run a problem, and the tables of those for problems with modifiers.

use kernels_gpu::instances::{Arch, Instance, MODIFIED};
use kernels_gpu::tile::grid::TileGrid;

use super::GpuCapabilities;
use crate::{Precision, Problem};

/// Why `instance` cannot run on `gpu`, or `None` if it can.
pub fn instance_unfit(instance: &Instance, gpu: &GpuCapabilities) -> Option<String> {
    if !instance.arch.runs_on(gpu.compute_capability) {
        let (major, minor) = gpu.compute_capability;
        let (oldest, oldest_minor) = instance.arch.oldest();
        let newer = if instance.arch == Arch::Sm90a {
            ""
        } else {
            " or newer"
        };
        return Some(format!(
            "it needs compute capability {oldest}.{oldest_minor}{newer}, this is {major}.{minor}"
        ));
    }
    if !gpu.families.contains(&instance.family) {
        return Some("its instructions are not simulated yet".to_owned());
    }
    (instance.shared_bytes > gpu.shared_bytes).then(|| {
        format!(
            "it needs {} bytes of shared memory, a block has {} here",
            instance.shared_bytes, gpu.shared_bytes
        )
    })
}

/// As [`instance_unfit`]; or that a score modification was not compiled into `instance`, which should have it; or that the tiles
/// are more than a launch has blocks.
pub(super) fn unfit(
    instance: &Instance,
    problem: &Problem,
    gpu: &GpuCapabilities,
) -> Option<String> {
    let own = problem.modifiers().score_mod.as_ref();
    let lacking = own.filter(|own| !own.ptx().has(instance.name)).map(|own| {
        let (name, arch) = (own.name(), instance.arch.name());
        format!("score modification {name} was not compiled for {arch}")
    });
    let too_many = || too_many_tiles(instance, problem);
    instance_unfit(instance, gpu)
        .or(lacking)
        .or_else(|| imprecise(instance, problem))
        .or_else(too_many)
}

/// Why `instance` does not follow f32's arithmetic as closely as `problem` asks, or `None` if it does.
fn imprecise(instance: &Instance, problem: &Problem) -> Option<String> {
    (instance.adds_parts() && problem.precision() == Precision::Ieee)
        .then(|| "its products are sums of tf32 parts, and precision is ieee".to_owned())
}

/// Why `instance` cannot have a block for each tile of queries or keys of `problem`, or `None` if it can.
fn too_many_tiles(instance: &Instance, problem: &Problem) -> Option<String> {
    let tiles = |heads: usize, seq: usize| {
        let heads = problem.batch() as u64 * heads as u64;
        heads.saturating_mul(seq.div_ceil(instance.block_m as usize) as u64)
    };
    let of_queries = tiles(problem.q().shape.heads, problem.seq_q());
    let of_keys = match problem.gradients() {
        Some(_) => tiles(problem.k().shape.heads, problem.seq_kv()),
        None => 0,
    };
    let most = of_queries.max(of_keys);
    (most > TileGrid::LARGEST).then(|| {
        let blocks = TileGrid::LARGEST;
        format!(
            "it has {most} tiles of {} rows, a launch has at most {blocks} blocks",
            instance.block_m
        )
    })
}

/// The kernels that may run `problem`, if it has modifiers.
pub(super) fn modified(problem: &Problem) -> Option<&'static [Instance]> {
    let modifiers = problem.modifiers();
    match &modifiers.score_mod {
        Some(own) => Some(own.instances()),
        None => (!modifiers.is_none()).then_some(MODIFIED),
    }
}

/// What a refusal adds where `problem` has modifiers.
pub(super) fn with_modifiers(problem: &Problem) -> String {
    let modifiers = problem.modifiers();
    match &modifiers.score_mod {
        Some(own) => format!(" with score modification {}", own.name()),
        None if modifiers.is_none() => String::new(),
        None => " with modifiers (masks, biases, sinks, dropout)".to_owned(),
    }
}
