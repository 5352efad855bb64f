mod check;
mod sequence;

use bytemuck::Zeroable;
use kernels_gpu::abi::{
    AttentionParams, Band, Corner, DeviceAddress, ForwardParams, LengthsParams, MaskParams,
    Positive, ScoreParams, TensorArg,
};

use check::{check_dims, check_options, check_output, check_packing, check_sizes};
pub use sequence::Sequence;

use crate::spec::{Shape, Strides, TensorSpec};
use crate::{AlibiSlopes, CuSeqlens, Error, ForwardOptions, Mask, Variant};

/// Largest head_dim and head_dim_v.
pub const MAX_HEAD_DIM: usize = 256;

/// Sequence lengths are below this, so that `j - i` and its bounds fit an i32.
pub const SEQ_LIMIT: usize = Band::OPEN as usize;

/// One checked forward problem: the operands' shapes and strides, and what to compute.
///
/// A value of this type is valid on every backend; only whether a kernel exists for it is left to
/// find out. It says nothing about where the operands lie: see [`Operands`].
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    o: TensorSpec,
    mask: Mask,
    softmax_scale: f32,
    softcap: Option<f32>,
    alibi: Option<AlibiSlopes>,
    cu_seqlens: Option<CuSeqlens>,
    force: Option<Variant>,
}

/// Addresses of a problem's operands, in the memory of the backend that runs it.
///
/// Each is the address of element `[0, 0, 0, 0]`, aligned to its element's size. An operand
/// without elements is never read, whatever its address. Shapes are those of a dense problem; packed
/// operands have batch 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// q, `[batch, heads_q, seq_q, head_dim]`.
    pub q: u64,
    /// k, `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: u64,
    /// v, `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: u64,
    /// o, `[batch, heads_q, seq_q, head_dim_v]`; written.
    pub o: u64,
    /// lse, f32 `[batch, heads_q, seq_q]`, varlen `[heads_q, total_q]`, contiguous, in nats; written.
    pub lse: u64,
    /// The values of the problem's [`AlibiSlopes`] in the backend's memory, f32. `None`: the backend uses a
    /// copy of its own, made at the first call with them.
    pub alibi_slopes: Option<u64>,
    /// [`CuSeqlens::q`] and [`CuSeqlens::kv`] in the backend's memory, i32 `[batch + 1]` each. `None`: as for
    /// the slopes. Not read by Hopper's kernels, which take a list of tiles that the backend makes.
    pub cu_seqlens: Option<[u64; 2]>,
}

impl Problem {
    /// Checks a problem.
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
        if let Some(packed) = &options.cu_seqlens {
            check_packing(packed, &q, &k)?;
        }
        let softmax_scale = options
            .softmax_scale
            .unwrap_or_else(|| (1.0 / (q.shape.dim as f64).sqrt()) as f32);
        let problem = Self {
            q,
            k,
            v,
            o,
            mask: options.mask,
            softmax_scale,
            softcap: options.softcap,
            alibi: options.alibi.clone(),
            cu_seqlens: options.cu_seqlens.clone(),
            force: options.force,
        };
        if let Some(slopes) = &problem.alibi {
            slopes.check_shape(&problem)?;
        }
        Ok(problem)
    }

    /// Checks a problem whose o is yet to be made: dense, in the layout of `options`, of q's dtype.
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
        &self.q
    }

    /// Shape, strides and dtype of k, `[batch, heads_kv, seq_kv, head_dim]`.
    pub fn k(&self) -> &TensorSpec {
        &self.k
    }

    /// Shape, strides and dtype of v, `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub fn v(&self) -> &TensorSpec {
        &self.v
    }

    /// Shape, strides and dtype of o, `[batch, heads_q, seq_q, head_dim_v]`.
    pub fn o(&self) -> &TensorSpec {
        &self.o
    }

    /// Which keys each query sees.
    pub fn mask(&self) -> Mask {
        self.mask
    }

    /// Multiplies `q · k`.
    pub fn softmax_scale(&self) -> f32 {
        self.softmax_scale
    }

    /// Scores become `softcap · tanh(score / softcap)`.
    pub fn softcap(&self) -> Option<f32> {
        self.softcap
    }

    /// Biases that grow with distance.
    pub fn alibi(&self) -> Option<&AlibiSlopes> {
        self.alibi.as_ref()
    }

    /// Where packed sequences lie, in a varlen problem.
    pub fn cu_seqlens(&self) -> Option<&CuSeqlens> {
        self.cu_seqlens.as_ref()
    }

    /// The variant that must run this problem, if the caller chose one.
    pub fn force(&self) -> Option<Variant> {
        self.force
    }

    /// Query heads that share one head of k and v.
    pub fn group(&self) -> usize {
        self.q.shape.heads / self.k.shape.heads
    }

    /// Floating-point operations of the two matrix products over visible pairs,
    /// `2 · pairs · (head_dim + head_dim_v)` a head.
    pub fn flops(&self) -> f64 {
        let heads = self.q.shape.heads as f64;
        let dims = (self.q.shape.dim + self.v.shape.dim) as f64;
        2.0 * heads * self.visible_pairs() as f64 * dims
    }

    /// Bytes of q, k and v read once and of o and lse written once.
    pub fn bytes(&self) -> f64 {
        let operands = [&self.q, &self.k, &self.v, &self.o];
        let elements = operands.map(|spec| {
            let [batch, heads, seq, dim] = spec.axes().map(|(size, _)| size as f64);
            batch * heads * seq * dim * spec.dtype.bytes() as f64
        });
        let rows = self.q.shape.batch * self.q.shape.heads * self.q.shape.seq;
        elements.iter().sum::<f64>() + (rows * size_of::<f32>()) as f64
    }

    /// What every forward kernel is launched with.
    ///
    /// Without addresses of slopes and cu_seqlens among the operands, those parameters are 0.
    pub fn forward_params(&self, operands: &Operands) -> ForwardParams {
        let (seq_q, seq_kv) = (self.seq_q(), self.seq_kv());
        let address = |of: Option<u64>| of.and_then(DeviceAddress::new);
        let cu_seqlens = |index: usize| address(operands.cu_seqlens.map(|both| both[index]));
        let (mask, lengths) = match &self.cu_seqlens {
            Some(packed) => (
                MaskParams::new(self.mask.unaligned_band(seq_q, seq_kv), Corner::BottomRight),
                LengthsParams {
                    total_q: packed.total_q() as u32,
                    total_kv: packed.total_kv() as u32,
                    cu_seqlens_q: cu_seqlens(0),
                    cu_seqlens_kv: cu_seqlens(1),
                    seqused_kv: None,
                },
            ),
            None => (
                MaskParams::new(self.mask.band(seq_q, seq_kv), Corner::TopLeft),
                LengthsParams::zeroed(),
            ),
        };
        let score = ScoreParams {
            softmax_scale: self.softmax_scale,
            softcap: self.softcap.and_then(Positive::new),
            alibi_slopes: address(operands.alibi_slopes).filter(|_| self.alibi.is_some()),
            alibi_batch_stride: self
                .alibi
                .as_ref()
                .map_or(0, |slopes| slopes.batch_stride()) as u64,
        };
        ForwardParams {
            attention: AttentionParams {
                q: tensor_arg(operands.q, self.q.strides),
                k: tensor_arg(operands.k, self.k.strides),
                v: tensor_arg(operands.v, self.v.strides),
                batch: self.batch() as u32,
                heads_q: self.q.shape.heads as u32,
                heads_kv: self.k.shape.heads as u32,
                seq_q: seq_q as u32,
                seq_kv: seq_kv as u32,
                head_dim: self.q.shape.dim as u32,
                head_dim_v: self.v.shape.dim as u32,
                mask,
                score,
                lengths,
            },
            o: tensor_arg(operands.o, self.o.strides),
            lse: operands.lse,
        }
    }
}

fn tensor_arg(address: u64, strides: Strides) -> TensorArg {
    TensorArg {
        address,
        batch_stride: strides.batch,
        head_stride: strides.head,
        seq_stride: strides.seq,
        dim_stride: strides.dim,
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
    fn launch_parameters_carry_the_problem() {
        let options = ForwardOptions::new().mask(Mask::Causal).softcap(30.0);
        let specs = [spec(6, 5, 4), spec(3, 7, 4), spec(3, 7, 8), spec(6, 5, 8)];
        let [q, k, v, o] = specs;
        let problem = Problem::new(q, k, v, o, &options).unwrap();
        let operands = Operands {
            q: 1,
            k: 2,
            v: 3,
            o: 4,
            lse: 5,
            ..Operands::default()
        };
        let params = problem.forward_params(&operands);
        let attention = &params.attention;
        let addresses = (attention.q.address, params.o.address, params.lse);
        assert_eq!(addresses, (1, 4, 5));
        assert_eq!((attention.heads_q, attention.heads_kv), (6, 3));
        assert_eq!((attention.head_dim, attention.head_dim_v), (4, 8));
        let score = &attention.score;
        assert_eq!(
            (score.softmax_scale, score.softcap),
            (0.5, Positive::new(30.0))
        );
        assert_eq!(attention.mask.band.upper, 2);
        assert_eq!(attention.k.seq_stride, 12);
        // Rows see 3, 4, 5, 6 and 7 keys, in each of two batch entries.
        assert_eq!(problem.visible_pairs(), 50);
        assert_eq!(problem.flops(), 2.0 * 6.0 * 50.0 * 12.0);
    }

    #[test]
    fn launch_parameters_carry_packed_sequences_and_slopes() {
        let packed = |total, heads| {
            let shape = Shape::packed(total, heads, 4);
            TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
        };
        let options = ForwardOptions::new()
            .mask(Mask::Causal)
            .cu_seqlens(CuSeqlens::from_lengths([(2, 5), (0, 1), (7, 3)]).unwrap())
            .alibi(AlibiSlopes::per_batch(&[0.5; 18], 6).unwrap());
        let (q, kv) = (packed(9, 6), packed(9, 3));
        let problem = Problem::new(q, kv, kv, q, &options).unwrap();
        assert_eq!(problem.batch(), 3);
        let last = problem.sequence(2);
        assert_eq!((last.batch, last.q_rows, last.kv_rows), (0, 2..9, 6..9));
        assert_eq!(last.band.upper, -4);
        // Rows see 4 and 5 keys, then none, then 1, 2 and 3.
        assert_eq!(problem.visible_pairs(), 9 + 6);
        let operands = Operands {
            alibi_slopes: Some(6),
            cu_seqlens: Some([7, 8]),
            ..Operands::default()
        };
        let params = problem.forward_params(&operands);
        let AttentionParams {
            batch,
            seq_q,
            seq_kv,
            mask,
            score,
            lengths,
            ..
        } = params.attention;
        assert_eq!((batch, seq_q, seq_kv), (3, 7, 5));
        assert_eq!((lengths.total_q, lengths.total_kv), (9, 9));
        assert_eq!((mask.band.upper, mask.corner()), (0, Corner::BottomRight));
        let cu_seqlens = (lengths.cu_seqlens_q, lengths.cu_seqlens_kv);
        assert_eq!(cu_seqlens, (DeviceAddress::new(7), DeviceAddress::new(8)));
        assert_eq!(score.alibi_slopes, DeviceAddress::new(6));
        assert_eq!(score.alibi_batch_stride, 6);
    }
}
