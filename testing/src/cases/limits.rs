use std::collections::BTreeSet;

use ferroflash::plan::preferred;
use ferroflash::{Backend, DType, Error, ForwardOptions, Layout, Problem, Shape, TensorSpec};
use kernels_gpu::instances::INSTANCES;

use super::spec::CaseSpec;

/// How large a drawn case may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest sequence.
    pub seq: usize,
    /// Most multiply-adds of the two matrix products, with both sequences rounded up to
    /// [`TILE`](Self::TILE) as a kernel does.
    pub work: usize,
}

impl Limits {
    /// Sequences count as multiples of this: kernels compute whole tiles.
    pub const TILE: usize = 64;
    /// For backends that compute at full speed.
    pub const FAST: Self = Self {
        seq: 2500,
        work: 400_000_000,
    };
    /// For the simulator, which takes seconds for what a processor does in milliseconds.
    pub const SIMULATED: Self = Self {
        seq: 300,
        work: 12_000_000,
    };

    /// Whether a case is small enough.
    pub fn allow(&self, case: &CaseSpec) -> bool {
        let tiles = |seq: usize| seq.next_multiple_of(Self::TILE);
        let pairs: usize = case
            .lengths
            .each()
            .map(|(q, kv)| tiles(q) * tiles(kv))
            .sum();
        let heads = case.heads_kv * case.group;
        case.lengths.each().all(|(q, kv)| q.max(kv) <= self.seq)
            && heads * pairs * (case.head_dim + case.head_dim_v) <= self.work
    }
}

/// The dtypes that `backend` has a variant for.
///
/// # Errors
/// [`Error::Argument`] if it has none at all.
pub fn dtypes_of<B: Backend>(backend: &B) -> Result<Vec<DType>, Error> {
    let here = backend.capabilities();
    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: 1,
        dim: 64,
    };
    let mut dtypes = Vec::new();
    for dtype in DType::ALL {
        let spec = TensorSpec::contiguous(dtype, shape, Layout::Bshd)?;
        let probe = Problem::with_dense_output(spec, spec, spec, &ForwardOptions::new())?;
        if preferred(&probe, &here).is_some() {
            dtypes.push(dtype);
        }
    }
    if dtypes.is_empty() {
        return Err(Error::argument(
            "backend",
            format!("no variant runs on {}", backend.device_name()),
            "a backend that `ferroflash info` shows kernels for",
        ));
    }
    Ok(dtypes)
}

/// Lengths at whose multiples tiles end: the tile sizes of every kernel, and of one matrix instruction.
pub fn tile_sizes() -> Vec<usize> {
    let of_kernels = INSTANCES
        .iter()
        .flat_map(|instance| [instance.block_m as usize, instance.block_n as usize]);
    let sizes: BTreeSet<usize> = of_kernels.chain([16]).collect();
    sizes.into_iter().collect()
}
