//! One attention problem: shapes and strides of its operands, the operation, and the lengths of its sequences.
//!
//! Independent of backends, kernels and addresses.

mod alibi;
mod append;
mod backward;
mod check;
mod cu_seqlens;
mod decode;
mod lengths;
mod mask;
mod modifiers;
mod options;
mod precision;
mod score;
mod sequence;
mod variant;

pub use alibi::AlibiSlopes;
pub use append::{AppendProblem, RotaryStyle};
pub(crate) use backward::Backward;
pub use backward::{BackwardOptions, DEFAULT_WORKSPACE_LIMIT_BYTES, GradientSpecs};
pub use cu_seqlens::CuSeqlens;
pub use decode::CacheLayout;
pub use lengths::{DeviceLengths, KnownArrays, Lengths};
pub use mask::Mask;
pub(crate) use modifiers::{Array, PairArray};
pub use modifiers::{
    BiasTensor, BlockMask, BoundScoreMod, Documents, Dropout, MaskTensor, Modifiers, PrefixLengths,
    ScoreModification, Sinks, TreeMask,
};
pub use options::ForwardOptions;
pub use precision::Precision;
pub use score::Score;
pub use sequence::Sequence;
pub use variant::Variant;

use kernels_gpu::abi::Band;

use crate::Error;
use crate::spec::{Shape, TensorSpec};
use check::{
    check_device_lengths, check_dims, check_options, check_output, check_packing, check_sizes,
};
use lengths::KnownLengths;

/// Largest head_dim and head_dim_v.
pub const MAX_HEAD_DIM: usize = 256;

/// Sequence lengths are below this, so that `j - i` and its bounds fit an i32.
pub const SEQ_LIMIT: usize = Band::OPEN as usize;

/// One checked problem: the operands' shapes and strides, and what to compute.
///
/// A value of this type is valid on every backend; what is left open is whether a kernel exists for it. It does not
/// hold the operands' addresses: see [`Operands`](crate::Operands).
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    attention: Attention,
    operation: Operation,
    force: Option<Variant>,
    precision: Precision,
}

/// Inputs and options that all operations share.
#[derive(Clone, Debug, PartialEq)]
struct Attention {
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    score: Score,
    mask: Mask,
    modifiers: Modifiers,
    lengths: Lengths,
}

/// The operation, with its outputs.
#[derive(Clone, Debug, PartialEq)]
enum Operation {
    /// o, and lse if it is wanted.
    Forward { o: TensorSpec, lse: bool },
    /// dq, dk and dv.
    Backward(Box<Backward>),
    /// o, and lse if it is wanted, of a cache's keys and values.
    Decode(decode::Decode),
}

impl Problem {
    /// Checks a problem.
    ///
    /// # Arguments
    /// * `q`: `[batch, heads_q, seq_q, head_dim]`; head_dim is 1 to 256.
    /// * `k`: `[batch, heads_kv, seq_kv, head_dim]` of q's dtype; heads_q is a multiple of heads_kv.
    /// * `v`: `[batch, heads_kv, seq_kv, head_dim_v]` of q's dtype; head_dim_v is 1 to 256.
    /// * `o`: `[batch, heads_q, seq_q, head_dim_v]` of q's dtype, in strides that keep its elements apart.
    ///
    /// Inputs may have any strides, those of 0 and negative ones included.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first operand or option that is refused.
    pub fn new(
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        o: TensorSpec,
        options: &ForwardOptions,
    ) -> Result<Self, Error> {
        check_dims(&q, &k, &v)?;
        check_output(&q, &v, &o)?;
        for (name, spec) in [("q", &q), ("k", &k), ("v", &v), ("o", &o)] {
            check_sizes(name, spec)?;
            spec.reach(name)?;
        }
        check_options(options)?;
        match &options.lengths {
            Lengths::Dense | Lengths::Known(_) => {}
            Lengths::Packed(packed) => check_packing(packed, &q, &k)?,
            Lengths::OnDevice(lengths) => check_device_lengths(lengths, &q)?,
        }
        let softmax_scale = options
            .softmax_scale
            .unwrap_or_else(|| (1.0 / (q.shape.dim as f64).sqrt()) as f32);
        let problem = Self {
            attention: Attention {
                q,
                k,
                v,
                score: Score {
                    softmax_scale,
                    softcap: options.softcap,
                    alibi: options.alibi.clone(),
                },
                mask: options.mask,
                modifiers: options.modifiers.clone(),
                lengths: options.lengths.clone(),
            },
            operation: Operation::Forward {
                o,
                lse: options.lse,
            },
            force: options.force,
            precision: options.precision,
        };
        if let Some(slopes) = problem.alibi() {
            slopes.check_shape(q.shape.heads, problem.batch())?;
        }
        problem.modifiers().check(&problem)?;
        Ok(problem)
    }

    /// Checks a problem whose o is not allocated yet: dense, in the layout of `options`, of q's dtype.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_dense_output(
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        options: &ForwardOptions,
    ) -> Result<Self, Error> {
        let shape = Shape {
            dim: v.shape.dim,
            ..q.shape
        };
        let o = TensorSpec::contiguous(q.dtype, shape, options.o_layout)?;
        Self::new(q, k, v, o, options)
    }

    /// Shape, strides and dtype of q, `[batch, heads_q, seq_q, head_dim]`.
    pub fn q(&self) -> &TensorSpec {
        &self.attention.q
    }

    /// Shape, strides and dtype of k, `[batch, heads_kv, seq_kv, head_dim]`.
    pub fn k(&self) -> &TensorSpec {
        &self.attention.k
    }

    /// Shape, strides and dtype of v, `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub fn v(&self) -> &TensorSpec {
        &self.attention.v
    }

    /// Shape, strides and dtype of o, `[batch, heads_q, seq_q, head_dim_v]`.
    pub fn o(&self) -> &TensorSpec {
        match &self.operation {
            Operation::Forward { o, .. } => o,
            Operation::Backward(backward) => &backward.specs.o,
            Operation::Decode(decode) => &decode.o,
        }
    }

    /// Whether a call that allocates its outputs returns lse.
    pub fn lse(&self) -> bool {
        match &self.operation {
            Operation::Forward { lse, .. } => *lse,
            Operation::Backward(_) => false,
            Operation::Decode(decode) => decode.lse,
        }
    }

    /// Which keys each query sees.
    pub fn mask(&self) -> Mask {
        self.attention.mask
    }

    /// Options that concern single pairs of a query and a key.
    pub fn modifiers(&self) -> &Modifiers {
        &self.attention.modifiers
    }

    /// How `q · k` becomes a score.
    #[doc(hidden)]
    pub fn score(&self) -> &Score {
        &self.attention.score
    }

    /// Multiplies `q · k`.
    pub fn softmax_scale(&self) -> f32 {
        self.attention.score.softmax_scale
    }

    /// Scores become `softcap · tanh(score / softcap)`.
    pub fn softcap(&self) -> Option<f32> {
        self.attention.score.softcap
    }

    /// Biases that grow with distance.
    pub fn alibi(&self) -> Option<&AlibiSlopes> {
        self.attention.score.alibi.as_ref()
    }

    /// How long the sequences are, and whether they are packed.
    pub fn lengths(&self) -> &Lengths {
        &self.attention.lengths
    }

    /// The variant that must run this problem, if the caller chose one.
    pub fn force(&self) -> Option<Variant> {
        self.force
    }

    /// How closely f32 products follow f32's own arithmetic.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Query heads that share one head of k and v.
    pub fn group(&self) -> usize {
        self.q().shape.heads / self.k().shape.heads
    }

    /// Floating-point operations of the matrix products over visible pairs: per head,
    /// `2 · pairs · (head_dim + head_dim_v)` for the two of the forward pass,
    /// `2 · pairs · (3 · head_dim + 2 · head_dim_v)` for the five of the backward pass.
    ///
    /// # Panics
    /// If only the device knows the lengths.
    pub fn flops(&self) -> f64 {
        let heads = self.q().shape.heads as f64;
        let (head_dim, head_dim_v) = (self.q().shape.dim, self.v().shape.dim);
        let dims = match self.operation {
            Operation::Forward { .. } | Operation::Decode(_) => head_dim + head_dim_v,
            // S and dP; dV, dK and dQ.
            Operation::Backward(_) => 3 * head_dim + 2 * head_dim_v,
        };
        2.0 * heads * self.visible_pairs() as f64 * dims as f64
    }

    /// Bytes of all operands, each read or written once.
    pub fn bytes(&self) -> f64 {
        let bytes = |spec: &TensorSpec| {
            let [batch, heads, seq, dim] = spec.axes().map(|(size, _)| size as f64);
            batch * heads * seq * dim * spec.dtype.bytes() as f64
        };
        let gradients = self.gradients().map_or(0.0, |specs| {
            let GradientSpecs {
                o: _,
                d_o,
                dq,
                dk,
                dv,
            } = specs;
            [d_o, dq, dk, dv].map(bytes).iter().sum()
        });
        let [batch, heads, seq, _] = self.q().axes().map(|(size, _)| size as f64);
        let lse = batch * heads * seq * size_of::<f32>() as f64;
        let forward = [self.q(), self.k(), self.v(), self.o()].map(bytes);
        forward.iter().sum::<f64>() + lse + gradients
    }

    /// The same problem with the values that its arrays in the backend's memory hold: the host then knows its sequences
    /// and slopes as kernels see them.
    ///
    /// # Panics
    /// If an array is shorter than it has to be.
    pub fn with_known_arrays(&self, arrays: &KnownArrays<'_>) -> Self {
        let mut known = self.clone();
        let batch = self.batch();
        if let Lengths::OnDevice(lengths) = self.lengths() {
            let rows = [self.q().shape.seq, self.k().shape.seq];
            known.attention.lengths =
                Lengths::Known(KnownLengths::new(lengths, arrays, batch, rows));
        }
        if let Some(slopes) = self.alibi().filter(|slopes| slopes.values().is_none()) {
            let values = &arrays.alibi_slopes[..slopes.count(batch)];
            known.attention.score.alibi = Some(slopes.with_values(values));
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout};

    /// A dense operand of batch 2.
    pub(super) fn spec(heads: usize, seq: usize, dim: usize) -> TensorSpec {
        let shape = Shape {
            batch: 2,
            heads,
            seq,
            dim,
        };
        TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
    }

    #[test]
    fn visible_pairs_and_flops_follow_from_the_mask() {
        let options = ForwardOptions::new().mask(Mask::Causal);
        let specs = [spec(6, 5, 4), spec(3, 7, 4), spec(3, 7, 8), spec(6, 5, 8)];
        let [q, k, v, o] = specs;
        let problem = Problem::new(q, k, v, o, &options).unwrap();
        // Rows see 3, 4, 5, 6 and 7 keys, in each of two batch entries.
        assert_eq!(problem.visible_pairs(), 50);
        assert_eq!(problem.flops(), 2.0 * 6.0 * 50.0 * 12.0);
    }

    fn packed(total: usize, heads: usize) -> TensorSpec {
        let shape = Shape::packed(total, heads, 4);
        TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
    }

    #[test]
    fn packed_sequences_are_problems_of_their_own() {
        let options = ForwardOptions::new()
            .mask(Mask::Causal)
            .cu_seqlens(CuSeqlens::from_lengths([(2, 5), (0, 1), (7, 3)]).unwrap());
        let (q, kv) = (packed(9, 6), packed(9, 3));
        let problem = Problem::new(q, kv, kv, q, &options).unwrap();
        assert_eq!(problem.batch(), 3);
        let last = problem.sequence(2);
        assert_eq!((last.batch, last.q_rows, last.kv_rows), (0, 2..9, 6..9));
        assert_eq!(last.band.upper, -4);
        // Rows see 4 and 5 keys, then none, then 1, 2 and 3.
        assert_eq!(problem.visible_pairs(), 9 + 6);
    }

    #[test]
    fn known_arrays_make_the_problem_that_kernels_see() {
        let lengths = DeviceLengths::cu_seqlens(3, 7, 5).unwrap();
        let options = ForwardOptions::new()
            .mask(Mask::Causal)
            .alibi(AlibiSlopes::on_device(6, true))
            .lengths(lengths);
        let (q, kv) = (packed(9, 6), packed(9, 3));
        let problem = Problem::new(q, kv, kv, q, &options).unwrap();
        assert_eq!(
            (problem.batch(), problem.seq_q(), problem.seq_kv()),
            (3, 7, 5)
        );
        let slopes: Vec<f32> = (0..18).map(|slope| slope as f32).collect();
        let known = problem.with_known_arrays(&KnownArrays {
            cu_seqlens: [&[0, 2, 2, 9], &[0, 5, 6, 9]],
            alibi_slopes: &slopes,
            ..KnownArrays::default()
        });
        assert_eq!(known.visible_pairs(), 9 + 6);
        assert_eq!(known.sequence(2).q_rows, 2..9);
        assert_eq!(known.alibi().unwrap().get(2, 5), 17.0);
    }

    #[test]
    fn a_cache_filled_in_part_is_aligned_to_what_is_used() {
        let options = ForwardOptions::new()
            .mask(Mask::Causal)
            .lengths(DeviceLengths::seqused_kv());
        let (q, kv) = (spec(6, 2, 4), spec(3, 7, 4));
        let problem = Problem::new(q, kv, kv, q, &options).unwrap();
        let known = problem.with_known_arrays(&KnownArrays {
            seqused_kv: &[3, 1],
            ..KnownArrays::default()
        });
        let second = known.sequence(1);
        assert_eq!(
            (second.batch, second.kv_rows, second.band.upper),
            (1, 0..1, -1)
        );
        // Rows see 2 and 3 keys, then none and 1.
        assert_eq!(known.visible_pairs(), 5 + 1);
    }
}
