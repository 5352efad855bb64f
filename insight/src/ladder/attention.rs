//! The rungs of attention: one head, f32, `o = dropout(softmax(mask(q kᵀ · scale))) v`.

use serde::Serialize;

use super::exact::Exact;
use super::global::{Matrix, Traffic};
use super::head::{Head, Run};
use super::softmax::Softmax;
use super::{fa1, fa2, one_pass, unfused};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Tiles;
    use crate::cost::{self, Algorithm, Pass, Workload};
    use crate::ladder::dropout::Dropout;
    use ferroflash::{DType, ForwardOptions, HostTensor, Layout, Mask, Problem, Shape};
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
