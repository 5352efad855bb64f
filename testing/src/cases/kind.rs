use std::fmt;

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::fill::mix;
use super::planted::plant;
use super::spec::Case;
use super::stress::{self, Queries};
use ferroflash::{DType, HostTensor, Shape};

/// Contents of the inputs: N(0, 1), with changes.
///
/// The kinds from [`Large`](Self::Large) on make a softmax that keeps a row's first reference leave its fast path. They
/// are made for a softmax_scale of `1 / sqrt(head_dim)`; another one scales the amounts below. All of their values are
/// finite in every dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputKind {
    /// Nothing is changed.
    Random,
    /// Keys are made equal to queries at the edges of what those queries see: the last
    /// visible and the first hidden key then dominate their rows, and an edge that is off by one
    /// shows.
    Planted,
    /// A NaN and an infinity in each of q, k and v, which may reach only the rows that
    /// see them.
    NonFinite,
    /// q is multiplied by 60, and with it every score.
    Large,
    /// Every score is 8 nats lower, so that those of up to a thousand keys have a negative log-sum-exp.
    Low,
    /// An attention sink: the score of each sequence's first key exceeds all others of its row by 90 nats or more.
    SinkFirst,
    /// The same at a quarter of each sequence's keys.
    SinkMiddle,
    /// Scores grow by 113 nats from the first key of a sequence to its last.
    Growing,
    /// Scores grow by 2260 nats.
    GrowingFast,
    /// Scores grow by 113 nats from the last key of a sequence to its first, for kernels that begin with the last.
    Falling,
    /// Scores grow by 2260 nats from the last key to the first.
    FallingFast,
    /// The scores of two of sixteen queries grow by 2260 nats from the first key to the last; those of the others stay, so that all of
    /// their keys count where a tile is computed again for its neighbours' sake.
    GrowingSome,
    /// The same from the last key to the first.
    FallingSome,
    /// NaN and infinities in every third row of v, in every sixteenth component, others each time: of a row of o some components are not
    /// finite, and the others must be right. 144 rows have each of the values in each of the components.
    Scattered,
}

impl InputKind {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Random,
        Self::Planted,
        Self::NonFinite,
        Self::Large,
        Self::Low,
        Self::SinkFirst,
        Self::SinkMiddle,
        Self::Growing,
        Self::GrowingFast,
        Self::Falling,
        Self::FallingFast,
        Self::GrowingSome,
        Self::FallingSome,
        Self::Scattered,
    ];

    /// The kinds whose results are held to the oracle's bound in every dtype, under any options.
    pub const ANY_DTYPE: [Self; 3] = [Self::Random, Self::Planted, Self::NonFinite];

    /// In lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Planted => "planted",
            Self::NonFinite => "non-finite",
            Self::Large => "large",
            Self::Low => "low",
            Self::SinkFirst => "sink-first",
            Self::SinkMiddle => "sink-middle",
            Self::Growing => "growing",
            Self::GrowingFast => "growing-fast",
            Self::Falling => "falling",
            Self::FallingFast => "falling-fast",
            Self::GrowingSome => "growing-some",
            Self::FallingSome => "falling-some",
            Self::Scattered => "scattered",
        }
    }

    /// Whether results of `dtype` can be held to the oracle's bound: that of f32 ends at scores of 20.
    pub fn suits(self, dtype: DType) -> bool {
        let is_near_zero = matches!(self, Self::Low | Self::Scattered);
        dtype != DType::F32 || Self::ANY_DTYPE.contains(&self) || is_near_zero
    }

    /// Makes inputs of this kind from random ones; draws what is left open with `seed`.
    ///
    /// Does nothing to a case whose tensors do not fit together.
    pub fn apply(self, case: &mut Case, seed: u64) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(seed, 3));
        match self {
            Self::Random => {}
            Self::Planted => plant(case, &mut rng),
            Self::NonFinite => {
                for tensor in [&mut case.q, &mut case.k, &mut case.v] {
                    poison(tensor, f32::NAN, &mut rng);
                    poison(tensor, f32::INFINITY, &mut rng);
                }
            }
            Self::Large => stress::enlarge_q(case),
            Self::Low => stress::lower(case),
            Self::SinkFirst => stress::sink(case, |_| 0),
            Self::SinkMiddle => stress::sink(case, |seq_kv| seq_kv / 4),
            Self::Growing => stress::slope(case, Queries::All, stress::GROWTH),
            Self::GrowingFast => stress::slope(case, Queries::All, stress::FAST_GROWTH),
            Self::Falling => stress::slope(case, Queries::All, -stress::GROWTH),
            Self::FallingFast => stress::slope(case, Queries::All, -stress::FAST_GROWTH),
            Self::GrowingSome => stress::slope(case, Queries::SomeOfSixteen, stress::FAST_GROWTH),
            Self::FallingSome => stress::slope(case, Queries::SomeOfSixteen, -stress::FAST_GROWTH),
            Self::Scattered => scatter(&mut case.v),
        }
    }

    /// Makes the loss's gradient by o of this kind from a random one.
    pub(super) fn apply_to_gradient(self, d_o: &mut HostTensor, seed: u64) {
        if self == Self::NonFinite {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(seed, 5));
            poison(d_o, f32::NAN, &mut rng);
            poison(d_o, f32::INFINITY, &mut rng);
        }
    }
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Overwrites every sixteenth element of every third row, from one row to the next others of the sixteen.
pub fn scatter(tensor: &mut HostTensor) {
    const APART: usize = 16;
    /// Has no divisor in common with it, so that all have their turn.
    const STEP: usize = 5;
    const VALUES: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = tensor.spec().shape;
    for batch in 0..batch {
        for head in 0..heads {
            for row in (0..seq).step_by(3) {
                let number = row / 3;
                let first = number * STEP % APART;
                for (of_row, dim) in (first..dim).step_by(APART).enumerate() {
                    let value = VALUES[(number + of_row) % VALUES.len()];
                    tensor.set(batch, head, row, dim, value);
                }
            }
        }
    }
}

/// Overwrites one element.
fn poison(tensor: &mut HostTensor, value: f32, rng: &mut impl RngExt) {
    if tensor.spec().is_empty() {
        return;
    }
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = tensor.spec().shape;
    let mut below = |size| rng.random_range(0..size);
    let (batch, head, seq, dim) = (below(batch), below(heads), below(seq), below(dim));
    tensor.set(batch, head, seq, dim, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflash::Layout;
    use std::collections::BTreeSet;

    #[test]
    fn values_are_scattered_over_all_components() {
        let shape = Shape {
            batch: 1,
            heads: 1,
            seq: 144,
            dim: 64,
        };
        let zeros = vec![0.0; 144 * 64];
        let mut v = HostTensor::from_f32(&zeros, shape, Layout::Bshd).unwrap();
        scatter(&mut v);
        let mut seen = BTreeSet::new();
        for row in 0..144 {
            let of_row = (0..64).map(|dim| (dim, v.get(0, 0, row, dim)));
            let of_row: Vec<_> = of_row.filter(|(_, value)| !value.is_finite()).collect();
            assert_eq!(of_row.len(), if row % 3 == 0 { 4 } else { 0 });
            let kind = |value: f32| (value.is_nan(), value > 0.0);
            seen.extend(of_row.iter().map(|(dim, value)| (*dim, kind(*value))));
        }
        assert_eq!(seen.len(), 3 * 64);
    }
}
