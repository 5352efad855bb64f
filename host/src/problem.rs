use kernels_gpu::abi::{Band, ForwardParams, TensorArg};

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

/// Refuses `argument` unless its `what` equals that of another operand.
fn check_equal<T: PartialEq + std::fmt::Display>(
    argument: &'static str,
    what: &str,
    found: T,
    expected: T,
    of: &str,
) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::argument(
        argument,
        format!("{what} is {found}"),
        format!("{expected}, the {what} of {of}"),
    ))
}

fn check_dims(q: &TensorSpec, k: &TensorSpec, v: &TensorSpec) -> Result<(), Error> {
    for (argument, what, dim) in [
        ("q", "head_dim", q.shape.dim),
        ("v", "head_dim_v", v.shape.dim),
    ] {
        if !(1..=MAX_HEAD_DIM).contains(&dim) {
            return Err(Error::argument(
                argument,
                format!("{what} is {dim}"),
                format!("1 to {MAX_HEAD_DIM}"),
            ));
        }
    }
    check_equal("k", "head_dim", k.shape.dim, q.shape.dim, "q")?;
    for (argument, spec) in [("k", k), ("v", v)] {
        check_equal(argument, "dtype", spec.dtype.name(), q.dtype.name(), "q")?;
        check_equal(argument, "batch", spec.shape.batch, q.shape.batch, "q")?;
    }
    check_equal("v", "seq_kv", v.shape.seq, k.shape.seq, "k")?;
    check_equal("v", "heads_kv", v.shape.heads, k.shape.heads, "k")?;
    let (heads_q, heads_kv) = (q.shape.heads, k.shape.heads);
    if heads_kv == 0 {
        return Err(Error::argument("k", "heads_kv is 0", "1 or more"));
    }
    if heads_q == 0 || !heads_q.is_multiple_of(heads_kv) {
        return Err(Error::argument(
            "q",
            format!("heads_q is {heads_q}"),
            format!("a positive multiple of heads_kv, which is {heads_kv}"),
        ));
    }
    Ok(())
}

fn check_output(q: &TensorSpec, v: &TensorSpec, o: &TensorSpec) -> Result<(), Error> {
    check_equal("o", "dtype", o.dtype.name(), q.dtype.name(), "q")?;
    check_equal("o", "batch", o.shape.batch, q.shape.batch, "q")?;
    check_equal("o", "heads_q", o.shape.heads, q.shape.heads, "q")?;
    check_equal("o", "seq_q", o.shape.seq, q.shape.seq, "q")?;
    check_equal("o", "head_dim_v", o.shape.dim, v.shape.dim, "v")?;
    if o.may_overlap() {
        return Err(Error::argument(
            "o",
            "its strides place several elements at one address",
            "strides that keep all elements apart",
        ));
    }
    Ok(())
}

fn check_sizes(argument: &'static str, spec: &TensorSpec) -> Result<(), Error> {
    let shape = spec.shape;
    for (what, size, limit) in [
        ("batch", shape.batch, u32::MAX as usize),
        ("heads", shape.heads, u32::MAX as usize),
        ("seq", shape.seq, SEQ_LIMIT - 1),
    ] {
        if size > limit {
            return Err(Error::argument(
                argument,
                format!("{what} is {size}"),
                format!("at most {limit}"),
            ));
        }
    }
    Ok(())
}

fn check_options(options: &ForwardOptions) -> Result<(), Error> {
    if let Some(scale) = options.softmax_scale.filter(|scale| !scale.is_finite()) {
        return Err(Error::argument(
            "softmax_scale",
            format!("it is {scale}"),
            "any finite number",
        ));
    }
    if let Some(softcap) = options
        .softcap
        .filter(|cap| !(cap.is_finite() && *cap > 0.0))
    {
        return Err(Error::argument(
            "softcap",
            format!("it is {softcap}"),
            "a finite number above 0",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout, Shape};

    fn spec(heads: usize, seq: usize, dim: usize) -> TensorSpec {
        let shape = Shape {
            batch: 2,
            heads,
            seq,
            dim,
        };
        TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
    }

    fn refused(edit: impl FnOnce(&mut [TensorSpec; 4], &mut ForwardOptions)) -> (String, String) {
        let mut specs = [spec(6, 5, 8), spec(3, 7, 8), spec(3, 7, 4), spec(6, 5, 4)];
        let mut options = ForwardOptions::new();
        edit(&mut specs, &mut options);
        let [q, k, v, o] = specs;
        match Problem::new(q, k, v, o, &options) {
            Err(Error::Argument {
                argument, wrong, ..
            }) => (argument.into_owned(), wrong),
            other => panic!("expected a refused argument, got {other:?}"),
        }
    }

    #[test]
    fn every_mismatch_names_its_operand() {
        let message = |argument: &str, wrong: &str| (argument.to_owned(), wrong.to_owned());
        assert_eq!(
            refused(|s, _| s[0].shape.dim = 257),
            message("q", "head_dim is 257")
        );
        assert_eq!(
            refused(|s, _| s[2].shape.dim = 0),
            message("v", "head_dim_v is 0")
        );
        assert_eq!(
            refused(|s, _| s[1].shape.dim = 9),
            message("k", "head_dim is 9")
        );
        assert_eq!(
            refused(|s, _| s[2].dtype = DType::F16),
            message("v", "dtype is f16")
        );
        assert_eq!(
            refused(|s, _| s[1].shape.batch = 1),
            message("k", "batch is 1")
        );
        assert_eq!(
            refused(|s, _| s[2].shape.seq = 6),
            message("v", "seq_kv is 6")
        );
        assert_eq!(
            refused(|s, _| s[2].shape.heads = 2),
            message("v", "heads_kv is 2")
        );
        assert_eq!(
            refused(|s, _| s[0].shape.heads = 5),
            message("q", "heads_q is 5")
        );
        assert_eq!(
            refused(|s, _| s[3].shape.seq = 6),
            message("o", "seq_q is 6")
        );
        assert_eq!(refused(|s, _| s[3].strides.seq = 0).0, "o");
        assert_eq!(refused(|s, _| s[0].strides.batch = i64::MIN).0, "q");
        assert_eq!(
            refused(|s, _| {
                s[1].shape.seq = SEQ_LIMIT;
                s[2].shape.seq = SEQ_LIMIT;
            }),
            message("k", &format!("seq is {SEQ_LIMIT}"))
        );
    }

    #[test]
    fn options_must_be_usable_numbers() {
        for scale in [f32::NAN, f32::INFINITY] {
            assert_eq!(
                refused(|_, o| o.softmax_scale = Some(scale)).0,
                "softmax_scale"
            );
        }
        for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(refused(|_, o| o.softcap = Some(cap)).0, "softcap");
        }
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
