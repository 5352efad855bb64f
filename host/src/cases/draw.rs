use std::collections::BTreeSet;

use kernels_gpu::instances::INSTANCES;
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

use super::arrangement::Arrangement;
use super::kind::InputKind;
use super::lengths::Lengths;
use super::spec::{AlibiSpec, CaseSpec};
use crate::plan::preferred;
use crate::{
    Backend, DType, Error, ForwardOptions, Layout, MAX_HEAD_DIM, Mask, Problem, Shape, TensorSpec,
};

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

/// Head dimensions that models use, and odd ones that peers test.
pub(super) const HEAD_DIMS: [usize; 16] = [
    1, 3, 8, 16, 32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256,
];

impl CaseSpec {
    /// A random case of element type `dtype` within `limits`; half of all are such that TMA can reach their operands.
    pub fn random(rng: &mut impl RngExt, dtype: DType, limits: &Limits) -> Self {
        let mut seq_limit = limits.seq;
        loop {
            let mut case = Self::draw(rng, dtype, seq_limit);
            if rng.random_bool(0.5) {
                case = case.reachable_by_tma();
            }
            if limits.allow(&case) {
                return case;
            }
            // Where most cases are too large, those that are not would be mostly empty ones.
            seq_limit = (seq_limit * 3 / 4).max(Limits::TILE + 1);
        }
    }

    /// Any case of sequences up to `seq_limit`.
    fn draw(rng: &mut impl RngExt, dtype: DType, seq_limit: usize) -> Self {
        let head_dim = draw_head_dim(rng);
        Self {
            dtype,
            lengths: draw_lengths(rng, seq_limit),
            heads_kv: rng.random_range(1..=3),
            group: *[1, 1, 2, 3, 4, 5, 8, 16].choose(rng).expect("not empty"),
            head_dim,
            head_dim_v: match rng.random_bool(0.7) {
                true => head_dim,
                false => draw_head_dim(rng),
            },
            mask: draw_mask(rng, seq_limit as u32),
            scale_factor: *[None, None, Some(0.3), Some(2.0), Some(-1.0), Some(0.0)]
                .choose(rng)
                .expect("not empty"),
            softcap: *[None, None, Some(15.0), Some(50.0), Some(0.5)]
                .choose(rng)
                .expect("not empty"),
            alibi: draw_alibi(rng, seq_limit),
            kind: *InputKind::ANY_DTYPE.choose(rng).expect("not empty"),
            arrangements: std::array::from_fn(|_| draw_arrangement(rng)),
            o_layout: match rng.random_bool(0.5) {
                true => Layout::Bshd,
                false => Layout::Bhsd,
            },
            seed: rng.random(),
        }
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

fn draw_head_dim(rng: &mut impl RngExt) -> usize {
    match rng.random_bool(0.8) {
        true => *HEAD_DIMS.choose(rng).expect("not empty"),
        false => rng.random_range(1..=MAX_HEAD_DIM),
    }
}

/// Lengths at whose multiples tiles end: the tile sizes of every kernel, and of one matrix instruction.
pub fn tile_sizes() -> Vec<usize> {
    let of_kernels = INSTANCES
        .iter()
        .flat_map(|instance| [instance.block_m as usize, instance.block_n as usize]);
    let sizes: BTreeSet<usize> = of_kernels.chain([16]).collect();
    sizes.into_iter().collect()
}

/// Lengths of every magnitude, and often one beside the end of a tile.
fn draw_seq(rng: &mut impl RngExt, limit: usize) -> usize {
    let bits = (limit as f64).log2();
    let length = rng.random_range(0.0..bits).exp2() as usize;
    let length = match rng.random_range(0..20) {
        0 => 0,
        1..10 => length,
        _ => {
            let &tile = tile_sizes().choose(rng).expect("not empty");
            length.next_multiple_of(tile) + rng.random_range(0..3) - 1
        }
    };
    length.min(limit)
}

/// seq_q and seq_kv, often alike.
fn draw_seqs(rng: &mut impl RngExt, limit: usize) -> (usize, usize) {
    let seq_q = draw_seq(rng, limit);
    let seq_kv = match rng.random_bool(0.3) {
        true => seq_q,
        false => draw_seq(rng, limit),
    };
    (seq_q, seq_kv)
}

/// Half of all cases are packed, of more sequences and more often empty ones than the others.
fn draw_lengths(rng: &mut impl RngExt, limit: usize) -> Lengths {
    if rng.random_bool(0.5) {
        let batch = rng.random_range(0..=6);
        return Lengths::Varlen((0..batch).map(|_| draw_seqs(rng, limit)).collect());
    }
    let (seq_q, seq_kv) = draw_seqs(rng, limit);
    Lengths::Dense {
        batch: match rng.random_bool(0.02) {
            true => 0,
            false => rng.random_range(1..=3),
        },
        seq_q,
        seq_kv,
    }
}

/// Slopes of models, ones so gentle that planted keys keep dominating their rows, and ones that favour
/// what is far.
fn draw_alibi(rng: &mut impl RngExt, limit: usize) -> Option<AlibiSpec> {
    let gentle = 4.0 / limit as f32;
    let steepest = [
        None,
        None,
        None,
        None,
        None,
        Some(0.5),
        Some(1.0),
        Some(gentle),
        Some(-gentle),
        Some(-0.1),
    ];
    let is_batched = rng.random_bool(0.5);
    let steepest = *steepest.choose(rng).expect("not empty");
    steepest.map(|steepest| AlibiSpec {
        steepest,
        is_batched,
    })
}

fn draw_mask(rng: &mut impl RngExt, limit: u32) -> Mask {
    let mut side = || match rng.random_range(0..4) {
        0 => None,
        1 => Some(0),
        2 => Some(rng.random_range(0..40)),
        _ => Some(rng.random_range(0..limit)),
    };
    let (left, right) = (side(), side());
    match rng.random_range(0..6) {
        0 | 1 => Mask::None,
        2 | 3 => Mask::Causal,
        4 => Mask::Window { left, right },
        _ => {
            let lower = left.map(|left| -(left as i32));
            let upper = right.map(|right| right as i32);
            Mask::Band { lower, upper }
        }
    }
}

fn draw_arrangement(rng: &mut impl RngExt) -> Arrangement {
    if rng.random_bool(0.4) {
        return Arrangement::BSHD;
    }
    let mut arrangement = Arrangement::BSHD;
    arrangement.order.shuffle(rng);
    for axis in 0..4 {
        arrangement.padding[axis] = *[0, 0, 1, 4, 8].choose(rng).expect("not empty");
        arrangement.reversed[axis] = rng.random_bool(0.15);
    }
    arrangement
}

#[cfg(test)]
mod tests {
    use kernels_gpu::instances::Family;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;
    use crate::Sim;

    /// Heads that share a tile of the Hopper kernels, if they can run the case.
    fn heads_per_tile(sim: &Sim, spec: &CaseSpec) -> Option<u32> {
        let mut case = spec.build().unwrap();
        case.options.force = Some(crate::Variant::Kernels(Family::Wgmma));
        sim.plan(&case.problem().unwrap())
            .ok()
            .map(|plan| plan.heads_per_tile())
    }

    #[test]
    fn packed_gqa_is_drawn() {
        let sim = Sim::new();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(0);
        let mut cases = [0; 2];
        for _ in 0..400 {
            let spec = CaseSpec::random(&mut rng, DType::Bf16, &Limits::SIMULATED);
            if let Some(heads) = heads_per_tile(&sim, &spec) {
                cases[usize::from(heads > 1)] += 1;
            }
        }
        let [unpacked, packed] = cases;
        assert!(unpacked >= 20 && packed >= 20, "{cases:?}");
    }
}
