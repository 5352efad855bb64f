//! The rungs of the backward pass: dq, dk and dv of one head in f32, by matrices in memory and by recomputing P.
//!
//! With P̃ = P ∘ D, where D holds the dropout factors (1 without dropout), `o = P̃ v` and
//!
//! ```text
//! dv = P̃ᵀ do      dP = D ∘ (do vᵀ)      dS = P ∘ (dP − delta)      dq = scale · dS k      dk = scale · dSᵀ q
//! delta = rowsum(P ∘ dP) = rowsum(do ∘ o)
//! ```

mod exact;
mod recompute;
mod unfused;

use serde::Serialize;

pub use self::exact::ExactGradients;
use super::attention::Rung;
use super::global::{Matrix, Traffic};
use super::head::Head;
use ferroflash::{DType, Error, Layout, Shape};
use ferroflash_testing::cases;

/// A head after its forward pass, and the loss's gradient by its output.
#[derive(Clone)]
pub struct BackwardHead {
    pub head: Head,
    /// `[seq][head_dim]`.
    pub o: Matrix,
    /// Log-sum-exp in nats, `[seq][1]`.
    pub lse: Matrix,
    /// `[seq][head_dim]`.
    pub d_o: Matrix,
}

impl BackwardHead {
    /// `head` and a normally distributed gradient.
    ///
    /// # Errors
    /// Those of drawing it.
    pub fn random(head: &Head, seed: u64) -> Result<Self, Error> {
        let shape = Shape {
            batch: 1,
            heads: 1,
            seq: head.seq,
            dim: head.head_dim,
        };
        // q, k and v were drawn by the seeds before.
        let d_o = cases::normal(DType::F32, shape, Layout::Bhsd, seed ^ 3)?;
        let forward = Rung::Fa2.compute(&head.clone());
        let uncounted = |matrix: Matrix, columns| Matrix::new(matrix.into_values(), columns);
        Ok(Self {
            head: head.clone(),
            o: uncounted(forward.o, head.head_dim),
            lse: uncounted(forward.lse, 1),
            d_o: Matrix::new(d_o.to_f32(Layout::Bhsd), head.head_dim),
        })
    }
}

/// Gradients in memory, and the other matrices that a rung has there.
struct Run {
    dq: Matrix,
    dk: Matrix,
    dv: Matrix,
    /// P, dP and dS, where they are stored.
    scores: Vec<Matrix>,
    /// delta, and dq before it is scaled.
    others: Vec<Matrix>,
}

/// Traffic and error of a rung.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasuredBackward {
    pub rung: &'static str,
    pub formula: &'static str,
    /// Transfers of all of P, dP and dS, each counted as one; 0 if none ever was in memory.
    pub passes_over_scores: f64,
    /// Reads of all of Q (and dO).
    pub passes_over_queries: f64,
    /// Reads of all of K.
    pub passes_over_keys: f64,
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Largest difference from the gradients in f64.
    pub largest_error: f64,
}

/// One rung of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackwardRung {
    /// Five kernels, with P from the forward pass, dP and dS in memory.
    Unfused,
    /// FlashAttention-2: P is formed again from lse, block by block.
    Recompute,
}

impl BackwardRung {
    /// From the bottom up.
    pub const ALL: [Self; 2] = [Self::Unfused, Self::Recompute];

    /// Name for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unfused => "unfused, P stored",
            Self::Recompute => "FA2 blocks, P recomputed",
        }
    }

    /// Its formula, for output.
    pub const fn formula(self) -> &'static str {
        match self {
            Self::Unfused => "dS = P ∘ (dP − rowsum(P ∘ dP)), each matrix stored",
            Self::Recompute => {
                "for K, V blocks: for Q blocks: P = exp(S − lse);  dV += Pᵀ dO;  dS = P ∘ (dO Vᵀ − delta);  dK += dSᵀ Q;  dQ += dS K"
            }
        }
    }

    fn compute(self, pass: &BackwardHead) -> Run {
        match self {
            Self::Unfused => unfused::run(pass),
            Self::Recompute => recompute::run(pass),
        }
    }

    /// Computes the gradients, counts, and compares with those in f64.
    pub fn measure(self, pass: &BackwardHead, exact: &ExactGradients) -> MeasuredBackward {
        // A clone starts from the counts of matrices that nobody has read yet.
        let pass = pass.clone();
        let run = self.compute(&pass);
        let BackwardHead { head, o, lse, d_o } = &pass;
        let inputs = [&head.q, &head.k, &head.v, o, lse, d_o];
        let outputs = [&run.dq, &run.dk, &run.dv];
        let all = inputs.into_iter().chain(outputs);
        let all = all.chain(&run.scores).chain(&run.others);
        let traffic = all.map(Matrix::traffic).sum();
        let passes_over_scores = run.scores.iter().map(Matrix::passes);
        let passes_over_scores = passes_over_scores.fold(0.0, |a, b| a + b);
        let (passes_over_queries, passes_over_keys) = (head.q.passes(), head.k.passes());
        let gradients = [run.dq, run.dk, run.dv].map(Matrix::into_values);
        MeasuredBackward {
            rung: self.name(),
            formula: self.formula(),
            passes_over_scores,
            passes_over_queries,
            passes_over_keys,
            traffic,
            largest_error: exact.largest_error(&gradients),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{self, Algorithm, Cost, Pass, Tiles, Workload};
    use crate::ladder::dropout::Dropout;
    use ferroflash::Mask;

    fn pass(mask: Mask, dropout: Option<Dropout>) -> BackwardHead {
        let tiles = Tiles {
            fa1_block_n: 24,
            block_m: 16,
            block_n: 12,
        };
        let head = Head {
            tiles,
            mask,
            dropout,
            ..Head::random(50, 20, 7).unwrap()
        };
        BackwardHead::random(&head, 7).unwrap()
    }

    #[test]
    fn rungs_agree_with_masks_and_dropout() {
        let window = Mask::Window {
            left: Some(3),
            right: Some(9),
        };
        for mask in [Mask::None, Mask::Causal, window] {
            for dropout in [None, Some(Dropout::new(0.3, 11).unwrap())] {
                let pass = pass(mask, dropout);
                let exact = ExactGradients::of(&pass);
                for rung in BackwardRung::ALL {
                    let error = rung.measure(&pass, &exact).largest_error;
                    assert!(error < 1e-5, "{rung:?} {mask:?} {dropout:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn the_library_agrees_with_the_ladder() {
        let pass = pass(Mask::Causal, None);
        let exact = ExactGradients::of(&pass);
        let error = crate::ladder::product::largest_gradient_error(&pass, &exact);
        assert!(error.unwrap().expect("no dropout") < 1e-5);
    }

    /// The cost model's bytes are those that the functions move.
    #[test]
    fn traffic_is_the_cost_models() {
        let pass = pass(Mask::None, None);
        let exact = ExactGradients::of(&pass);
        let work = Workload::new(1, 50, 20, DType::F32).unwrap();
        for (rung, algorithm) in [
            (BackwardRung::Unfused, Algorithm::Unfused),
            (BackwardRung::Recompute, Algorithm::FlashAttention2),
        ] {
            let kernels = cost::kernels(algorithm, Pass::Backward, &work, &pass.head.tiles);
            let cost: Cost = kernels.into_iter().sum();
            let traffic = rung.measure(&pass, &exact).traffic;
            assert_eq!(traffic.read_bytes, cost.read_bytes, "{rung:?}");
            assert_eq!(traffic.written_bytes, cost.written_bytes, "{rung:?}");
        }
    }

    #[test]
    fn passes() {
        let pass = pass(Mask::None, None);
        let exact = ExactGradients::of(&pass);
        let passes = |rung: BackwardRung| {
            let measured = rung.measure(&pass, &exact);
            (measured.passes_over_scores, measured.passes_over_queries)
        };
        // P read twice, dP stored and read, dS stored and read twice.
        assert_eq!(passes(BackwardRung::Unfused), (7.0, 1.0));
        // 50 keys in blocks of 12.
        assert_eq!(passes(BackwardRung::Recompute), (0.0, 5.0));
    }
}
