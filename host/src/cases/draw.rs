use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};

use super::arrangement::Arrangement;
use super::spec::{CaseSpec, InputKind};
use crate::{DType, Layout, MAX_HEAD_DIM, Mask};

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
        seq: 1500,
        work: 200_000_000,
    };
    /// For the simulator, which takes seconds for what a processor does in milliseconds.
    pub const SIMULATED: Self = Self {
        seq: 300,
        work: 12_000_000,
    };

    /// Whether a case is small enough.
    pub fn allow(&self, case: &CaseSpec) -> bool {
        let tiles = |seq: usize| seq.next_multiple_of(Self::TILE);
        let pairs = tiles(case.seq_q) * tiles(case.seq_kv);
        let heads = case.batch * case.heads_kv * case.group;
        case.seq_q.max(case.seq_kv) <= self.seq
            && heads * pairs * (case.head_dim + case.head_dim_v) <= self.work
    }
}

/// Head dimensions that models use, and odd ones that peers test.
pub(super) const HEAD_DIMS: [usize; 16] = [
    1, 3, 8, 16, 32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256,
];

impl CaseSpec {
    /// A random case of element type `dtype` within `limits`.
    pub fn random(rng: &mut impl RngExt, dtype: DType, limits: &Limits) -> Self {
        loop {
            let case = Self::draw(rng, dtype, limits);
            if limits.allow(&case) {
                return case;
            }
        }
    }

    fn draw(rng: &mut impl RngExt, dtype: DType, limits: &Limits) -> Self {
        let head_dim = draw_head_dim(rng);
        let seq_q = draw_seq(rng, limits.seq);
        let seq_kv = match rng.random_bool(0.3) {
            true => seq_q,
            false => draw_seq(rng, limits.seq),
        };
        Self {
            dtype,
            batch: match rng.random_bool(0.02) {
                true => 0,
                false => rng.random_range(1..=3),
            },
            heads_kv: rng.random_range(1..=3),
            group: *[1, 1, 2, 3, 5].choose(rng).expect("not empty"),
            seq_q,
            seq_kv,
            head_dim,
            head_dim_v: match rng.random_bool(0.7) {
                true => head_dim,
                false => draw_head_dim(rng),
            },
            mask: draw_mask(rng, limits.seq as u32),
            scale_factor: *[None, None, Some(0.3), Some(2.0), Some(-1.0), Some(0.0)]
                .choose(rng)
                .expect("not empty"),
            softcap: *[None, None, Some(15.0), Some(50.0), Some(0.5)]
                .choose(rng)
                .expect("not empty"),
            kind: *InputKind::ALL.choose(rng).expect("not empty"),
            arrangements: std::array::from_fn(|_| draw_arrangement(rng)),
            o_layout: match rng.random_bool(0.5) {
                true => Layout::Bshd,
                false => Layout::Bhsd,
            },
            seed: rng.random(),
        }
    }
}

fn draw_head_dim(rng: &mut impl RngExt) -> usize {
    match rng.random_bool(0.8) {
        true => *HEAD_DIMS.choose(rng).expect("not empty"),
        false => rng.random_range(1..=MAX_HEAD_DIM),
    }
}

/// Lengths of every magnitude, and often one beside a multiple of 16, where tiles end.
fn draw_seq(rng: &mut impl RngExt, limit: usize) -> usize {
    let bits = (limit as f64).log2();
    let length = rng.random_range(0.0..bits).exp2() as usize;
    let length = match rng.random_bool(0.5) {
        true => length.next_multiple_of(16) + rng.random_range(0..3) - 1,
        false => length - usize::from(rng.random_bool(0.05)) * length,
    };
    length.min(limit)
}

fn draw_mask(rng: &mut impl RngExt, limit: u32) -> Mask {
    let mut side = || match rng.random_range(0..4) {
        0 => None,
        1 => Some(0),
        2 => Some(rng.random_range(0..40)),
        _ => Some(rng.random_range(0..limit)),
    };
    let (left, right) = (side(), side());
    match rng.random_range(0..3) {
        0 => Mask::None,
        1 => Mask::Causal,
        _ => Mask::Window { left, right },
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
