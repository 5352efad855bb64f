mod check;

use kernels_gpu::abi::{Band, ForwardParams, TensorArg};

use check::{check_dims, check_options, check_output, check_sizes};

use crate::spec::{Shape, Strides, TensorSpec};
use crate::{Error, ForwardOptions, Mask, Variant};

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
    force: Option<Variant>,
}

/// Addresses of a problem's operands, in the memory of the backend that runs it.
///
/// Each is the address of element `[0, 0, 0, 0]`, aligned to its element's size. An operand
/// without elements is never read, whatever its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// q, `[batch, heads_q, seq_q, head_dim]`.
    pub q: u64,
    /// k, `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: u64,
    /// v, `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: u64,
    /// o, `[batch, heads_q, seq_q, head_dim_v]`; written.
    pub o: u64,
    /// lse, f32 `[batch, heads_q, seq_q]`, contiguous, in nats; written.
    pub lse: u64,
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
        let softmax_scale = options
            .softmax_scale
            .unwrap_or_else(|| (1.0 / (q.shape.dim as f64).sqrt()) as f32);
        Ok(Self {
            q,
            k,
            v,
            o,
            mask: options.mask,
            softmax_scale,
            softcap: options.softcap,
            force: options.force,
        })
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

    /// The variant that must run this problem, if the caller chose one.
    pub fn force(&self) -> Option<Variant> {
        self.force
    }

    /// Query heads that share one head of k and v.
    pub fn group(&self) -> usize {
        self.q.shape.heads / self.k.shape.heads
    }

    /// The mask as bounds on `j - i`, aligned to the bottom-right corner.
    pub fn band(&self) -> Band {
        self.mask.band(self.q.shape.seq, self.k.shape.seq)
    }

    /// Visible (query, key) pairs of one head.
    pub fn visible_pairs(&self) -> u64 {
        let band = self.band();
        let seq_kv = self.k.shape.seq as i64;
        let keys_seen = |i: i64| {
            let first = (i + i64::from(band.lower)).max(0);
            let last = (i + i64::from(band.upper)).min(seq_kv - 1);
            (last - first + 1).max(0) as u64
        };
        (0..self.q.shape.seq as i64).map(keys_seen).sum()
    }

    /// Floating-point operations of the two matrix products over visible pairs,
    /// `2 · pairs · (head_dim + head_dim_v)` a head.
    pub fn flops(&self) -> f64 {
        let heads = (self.q.shape.batch * self.q.shape.heads) as f64;
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
    pub fn forward_params(&self, operands: &Operands) -> ForwardParams {
        ForwardParams {
            q: tensor_arg(operands.q, self.q.strides),
            k: tensor_arg(operands.k, self.k.strides),
            v: tensor_arg(operands.v, self.v.strides),
            o: tensor_arg(operands.o, self.o.strides),
            lse: operands.lse,
            batch: self.q.shape.batch as u32,
            heads_q: self.q.shape.heads as u32,
            heads_kv: self.k.shape.heads as u32,
            seq_q: self.q.shape.seq as u32,
            seq_kv: self.k.shape.seq as u32,
            head_dim: self.q.shape.dim as u32,
            head_dim_v: self.v.shape.dim as u32,
            softmax_scale: self.softmax_scale,
            softcap: self.softcap.unwrap_or(0.0),
            band: self.band(),
            total_q: 0,
            alibi_slopes: 0,
            alibi_batch_stride: 0,
            cu_seqlens_q: 0,
            cu_seqlens_kv: 0,
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

    fn spec(heads: usize, seq: usize, dim: usize) -> TensorSpec {
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
        };
        let params = problem.forward_params(&operands);
        assert_eq!((params.q.address, params.o.address, params.lse), (1, 4, 5));
        assert_eq!((params.heads_q, params.heads_kv), (6, 3));
        assert_eq!((params.head_dim, params.head_dim_v), (4, 8));
        assert_eq!((params.softmax_scale, params.softcap), (0.5, 30.0));
        assert_eq!(params.band.upper, 2);
        assert_eq!(params.k.seq_stride, 12);
        // Rows see 3, 4, 5, 6 and 7 keys.
        assert_eq!(problem.visible_pairs(), 25);
        assert_eq!(problem.flops(), 2.0 * 12.0 * 25.0 * 12.0);
    }
}
