//! The rungs of attention: one head, f32, `o = dropout(softmax(mask(q kᵀ · scale))) v`.

use kernels_gpu::instances::INSTANCES;
use kernels_gpu::tile::block_range::visible_keys;
use serde::Serialize;

use super::dropout::Dropout;
use super::exact::Exact;
use super::global::{Matrix, Tile, Traffic};
use super::softmax::Softmax;
use super::{fa1, fa2, one_pass, unfused};
use crate::cost::Tiles;
use ferroflash::{DType, Error, Layout, MAX_HEAD_DIM, Mask, Shape};
use ferroflash_testing::cases;

/// One head.
#[derive(Clone)]
pub struct Head {
    /// `[seq][head_dim]`.
    pub q: Matrix,
    /// `[seq][head_dim]`.
    pub k: Matrix,
    /// `[seq][head_dim]`.
    pub v: Matrix,
    pub seq: usize,
    pub head_dim: usize,
    pub mask: Mask,
    pub dropout: Option<Dropout>,
    /// Tile sizes of FA1 and FA2.
    pub tiles: Tiles,
}

impl Head {
    /// A head with normally distributed q, k and v, and the tiles of the fp32 kernel that would run it.
    ///
    /// # Errors
    /// [`Error::Argument`] for a size of 0 or one beyond what a CPU computes in a minute.
    pub fn random(seq: usize, head_dim: usize, seed: u64) -> Result<Self, Error> {
        /// S has so many elements in each direction at most: three rungs store it, in f32.
        const MAX_SEQ: usize = 1 << 13;
        if !(1..=MAX_HEAD_DIM).contains(&head_dim) {
            return Err(Error::argument(
                "head_dim",
                format!("{head_dim} is out of range"),
                format!("1 to {MAX_HEAD_DIM}"),
            ));
        }
        let most = ((MAX_PRODUCTS / head_dim) as f64).sqrt() as usize;
        let most = most.min(MAX_SEQ);
        if !(1..=most).contains(&seq) {
            return Err(Error::argument(
                "seq",
                format!("{seq} is out of range"),
                format!("1 to {most} on the CPU with a head_dim of {head_dim}"),
            ));
        }
        let shape = Shape {
            batch: 1,
            heads: 1,
            seq,
            dim: head_dim,
        };
        let matrix = |index| -> Result<Matrix, Error> {
            let tensor = cases::normal(DType::F32, shape, Layout::Bhsd, seed ^ index)?;
            Ok(Matrix::new(tensor.to_f32(Layout::Bhsd), head_dim))
        };
        Ok(Self {
            q: matrix(0)?,
            k: matrix(1)?,
            v: matrix(2)?,
            seq,
            head_dim,
            mask: Mask::None,
            dropout: None,
            tiles: kernel_tiles(head_dim),
        })
    }

    /// Whether query `i` sees key `j`.
    pub(super) fn visible(&self, i: usize, j: usize) -> bool {
        let band = self.mask.band(self.seq, self.seq);
        let (first, last) = visible_keys(i as i32, band, self.seq as u32);
        (first..=last).contains(&(j as i32))
    }

    /// `1 / √head_dim`.
    pub fn scale(&self) -> f32 {
        (self.head_dim as f32).sqrt().recip()
    }

    /// Score of query `i` and key `j`, whose rows are given; −∞ if the key is hidden.
    pub(super) fn score(&self, i: usize, j: usize, q: &[f32], k: &[f32]) -> f32 {
        if self.visible(i, j) {
            dot(q, k) * self.scale()
        } else {
            f32::NEG_INFINITY
        }
    }

    /// Dropout factor of entry (`i`, `j`) of P; 1 without dropout.
    pub(super) fn dropout_factor(&self, i: usize, j: usize) -> f32 {
        self.dropout
            .map_or(1.0, |dropout| dropout.factor(i, j) as f32)
    }
}

/// Largest seq² · head_dim: the rungs are written to be read, and together take 13 ns for each of
/// these in a debug build on one core.
const MAX_PRODUCTS: usize = 1 << 32;

/// FA1 keeps as many keys on the chip as FA2 here, to compare their loops and nothing else.
fn kernel_tiles(head_dim: usize) -> Tiles {
    let of_f32 = INSTANCES.iter().filter(|row| row.dtype == DType::F32);
    let wide_enough = of_f32.filter(|row| row.head_dim as usize >= head_dim);
    let kernel = wide_enough.min_by_key(|row| row.head_dim);
    let kernel = kernel.expect("fp32 kernels take every head_dim");
    Tiles {
        fa1_block_n: u64::from(kernel.block_n),
        block_m: u64::from(kernel.block_m),
        block_n: u64::from(kernel.block_n),
    }
}

/// `a · b`.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The maximum to subtract: 0 as long as no key was visible, so that no ∞ − ∞ arises.
pub(super) fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// `o ← o · rescale + weight · v`.
pub(super) fn accumulate(o: &mut [f32], rescale: f32, weight: f32, v: &[f32]) {
    for (o, v) in o.iter_mut().zip(v) {
        *o = *o * rescale + weight * v;
    }
}

/// Output and log-sum-exp in memory, and the other matrices that a rung keeps there.
pub struct Run {
    pub o: Matrix,
    /// Log-sum-exp, in nats.
    pub lse: Matrix,
    /// S and P, where they are stored.
    pub scores: Vec<Matrix>,
    /// Row statistics other than lse that are stored.
    pub stats: Vec<Matrix>,
}

/// Traffic and error of a rung.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub rung: &'static str,
    pub formula: &'static str,
    /// Transfers of all of S between memory and chip, P counted as S; 0 if it never was moved.
    pub passes_over_scores: f64,
    /// Reads of all of K (and V).
    pub passes_over_keys: f64,
    /// Reads and writes of all of O.
    pub passes_over_output: f64,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Largest |o − o64|.
    pub largest_error: f64,
    /// Output, `[seq][head_dim]`.
    #[serde(skip)]
    pub o: Vec<f32>,
    /// Log-sum-exp, `[seq]`.
    #[serde(skip)]
    pub lse: Vec<f32>,
}

/// One rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// S, P and O by a kernel each.
    Unfused(Softmax),
    /// A row at a time, S never stored.
    OnePass,
    /// Key blocks outside, rows inside.
    Fa1,
    /// Row blocks outside, keys inside.
    Fa2,
}

impl Rung {
    /// From the bottom up.
    pub const ALL: [Self; 6] = [
        Self::Unfused(Softmax::Naive),
        Self::Unfused(Softmax::Safe),
        Self::Unfused(Softmax::Online),
        Self::OnePass,
        Self::Fa1,
        Self::Fa2,
    ];

    /// Name for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unfused(Softmax::Naive) => "unfused, naive softmax",
            Self::Unfused(Softmax::Safe) => "unfused, safe softmax",
            Self::Unfused(Softmax::Online) => "unfused, online softmax",
            Self::OnePass => "one pass",
            Self::Fa1 => "FA1 blocks",
            Self::Fa2 => "FA2 blocks",
        }
    }

    /// Its formula, for output.
    pub const fn formula(self) -> &'static str {
        match self {
            Self::Unfused(softmax) => softmax.formula(),
            Self::OnePass => "o ← o·exp(m − m') + exp(sⱼ − m')·vⱼ;  at the end o / l",
            Self::Fa1 => "for K, V blocks: for Q blocks: O ← (l·exp(m − m')·O + P̃ V) / l'",
            Self::Fa2 => "for Q blocks: for K, V blocks: O ← exp(m − m')·O + P̃ V;  once O / l",
        }
    }

    /// Computes `head`, without checking the result.
    pub fn compute(self, head: &Head) -> Run {
        match self {
            Self::Unfused(softmax) => unfused::run(head, softmax),
            Self::OnePass => one_pass::run(head),
            Self::Fa1 => fa1::run(head),
            Self::Fa2 => fa2::run(head),
        }
    }

    /// Computes `head`, counts, and compares with the formula in f64, whose result `exact` is.
    pub fn measure(self, head: &Head, exact: &Exact) -> Measured {
        // A clone starts from the same counts: those of a head that nobody has read yet.
        let head = head.clone();
        let run = self.compute(&head);
        let all = [&head.q, &head.k, &head.v, &run.o, &run.lse];
        let all = all.into_iter().chain(&run.scores).chain(&run.stats);
        let traffic = all.map(Matrix::traffic).sum();
        // An empty sum of floats is −0.
        let passes_over_scores = run
            .scores
            .iter()
            .map(Matrix::passes)
            .fold(0.0, |a, b| a + b);
        let passes_over_output = run.o.passes();
        let passes_over_keys = head.k.passes();
        let (o, lse) = (run.o.into_values(), run.lse.into_values());
        Measured {
            rung: self.name(),
            formula: self.formula(),
            passes_over_scores,
            passes_over_keys,
            passes_over_output,
            traffic,
            largest_error: exact.largest_error(&o),
            o,
            lse,
        }
    }
}

/// The tile of the query rows `begin..end` of a block of `block`, or of the keys.
pub(super) fn blocks(seq: usize, block: u64) -> impl Iterator<Item = std::ops::Range<usize>> {
    let block = block as usize;
    (0..seq)
        .step_by(block)
        .map(move |begin| begin..(begin + block).min(seq))
}

/// Scores of a block of queries and a block of keys.
pub(super) fn score_tile(
    head: &Head,
    rows: &std::ops::Range<usize>,
    keys: &std::ops::Range<usize>,
    q: &Tile,
    k: &Tile,
) -> Tile {
    let mut s = Tile::filled(0.0, rows.len(), keys.len());
    for i in 0..rows.len() {
        for j in 0..keys.len() {
            s.row_mut(i)[j] = head.score(rows.start + i, keys.start + j, q.row(i), k.row(j));
        }
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{self, Algorithm, Pass, Workload};
    use ferroflash::{ForwardOptions, HostTensor, Problem};
    use ferroflash_testing::oracle::{self, Inputs, Rows};

    const TILES: Tiles = Tiles {
        fa1_block_n: 24,
        block_m: 32,
        block_n: 16,
    };

    fn head(seq: usize, head_dim: usize) -> Head {
        let tiles = TILES;
        Head {
            tiles,
            ..Head::random(seq, head_dim, 7).unwrap()
        }
    }

    fn masks() -> [Mask; 3] {
        let window = Mask::Window {
            left: Some(3),
            right: Some(9),
        };
        [Mask::None, Mask::Causal, window]
    }

    /// Every rung is within the bound that the kernels are held to, masks and ragged tiles included.
    #[test]
    fn rungs_agree_with_the_oracle() {
        for mask in masks() {
            let head = Head {
                mask,
                ..head(50, 20)
            };
            let shape = Shape {
                batch: 1,
                heads: 1,
                seq: head.seq,
                dim: head.head_dim,
            };
            let tensor = |values: Vec<f32>, shape| {
                HostTensor::from_f32(&values, shape, Layout::Bhsd).unwrap()
            };
            let operand = |matrix: &Matrix| tensor(matrix.clone().into_values(), shape);
            let (q, k, v) = (operand(&head.q), operand(&head.k), operand(&head.v));
            let options = ForwardOptions::new().mask(mask);
            let problem =
                Problem::new(*q.spec(), *k.spec(), *v.spec(), *q.spec(), &options).unwrap();
            let inputs = Inputs {
                q: &q,
                k: &k,
                v: &v,
            };
            let exact = Exact::of(&head);
            for rung in Rung::ALL {
                let measured = rung.measure(&head, &exact);
                let o = tensor(measured.o, shape);
                let lse = tensor(measured.lse, Shape { dim: 1, ..shape });
                let verdict = oracle::check(&problem, inputs, &o, &lse, Rows::All);
                assert!(verdict.passed(), "{rung:?} {mask:?}: {verdict:?}");
                assert!(measured.largest_error < 2e-6, "{rung:?} {mask:?}");
            }
        }
    }

    /// Dropped entries are the same whatever the order; the sum below the line keeps them.
    #[test]
    fn rungs_agree_under_dropout() {
        for mask in masks() {
            let dropout = Some(Dropout::new(0.3, 11).unwrap());
            let head = Head {
                mask,
                dropout,
                ..head(50, 20)
            };
            let plain = Head {
                dropout: None,
                ..head.clone()
            };
            let (exact, exact_plain) = (Exact::of(&head), Exact::of(&plain));
            for rung in Rung::ALL {
                let measured = rung.measure(&head, &exact);
                assert!(measured.largest_error < 4e-6, "{rung:?} {mask:?}");
                let undropped = rung.measure(&plain, &exact_plain);
                assert_eq!(measured.lse, undropped.lse, "{rung:?} {mask:?}");
                assert_ne!(measured.o, undropped.o);
            }
        }
    }

    /// The cost model's bytes are those that the functions move.
    #[test]
    fn traffic_is_the_cost_models() {
        for (seq, head_dim) in [(96, 16), (50, 20)] {
            let head = head(seq, head_dim);
            let exact = Exact::of(&head);
            let work = Workload::new(1, seq as u64, head_dim as u64, DType::F32).unwrap();
            let row_wise = Tiles {
                block_m: 1,
                ..TILES
            };
            for (rung, algorithm, tiles) in [
                (Rung::Fa1, Algorithm::FlashAttention1, TILES),
                (Rung::Fa2, Algorithm::FlashAttention2, TILES),
                (Rung::OnePass, Algorithm::FlashAttention2, row_wise),
            ] {
                let cost: cost::Cost = cost::kernels(algorithm, Pass::Forward, &work, &tiles)
                    .into_iter()
                    .sum();
                let traffic = rung.measure(&head, &exact).traffic;
                assert_eq!(traffic.read_bytes, cost.read_bytes, "{rung:?}");
                assert_eq!(traffic.written_bytes, cost.written_bytes, "{rung:?}");
            }
        }
    }

    #[test]
    fn passes() {
        let head = head(96, 16);
        let exact = Exact::of(&head);
        let passes = |rung: Rung| {
            let measured = rung.measure(&head, &exact);
            (
                measured.passes_over_scores,
                measured.passes_over_keys,
                measured.passes_over_output,
            )
        };
        // S stored, then read by the softmax; P stored and read.
        assert_eq!(passes(Rung::Unfused(Softmax::Naive)), (5.0, 1.0, 1.0));
        assert_eq!(passes(Rung::Unfused(Softmax::Safe)), (6.0, 1.0, 1.0));
        assert_eq!(passes(Rung::Unfused(Softmax::Online)), (5.0, 1.0, 1.0));
        assert_eq!(passes(Rung::OnePass), (0.0, 96.0, 1.0));
        // Four key blocks: O initialised, then loaded and stored four times.
        assert_eq!(passes(Rung::Fa1), (0.0, 1.0, 9.0));
        assert_eq!(passes(Rung::Fa2), (0.0, 3.0, 1.0));
    }

    #[test]
    fn sizes_are_refused_by_name() {
        let message = |seq, head_dim| {
            let head = Head::random(seq, head_dim, 0);
            head.err().expect("refused").to_string()
        };
        assert_eq!(
            message(0, 4),
            "seq: 0 is out of range; 1 to 8192 on the CPU with a head_dim of 4"
        );
        assert!(message(4, 0).starts_with("head_dim: "));
    }
}
