//! The backward pass as a problem: options, operands and their checks.

use super::check::{check_equal, check_outer_shape};
use super::{ForwardOptions, Operation, Problem};
use crate::spec::{Shape, TensorSpec};
use crate::{DType, Error, Layout};

/// Default of [`BackwardOptions::workspace_limit_bytes`]: what the scores' gradients of a query head of 16,384 queries and keys
/// take.
pub const DEFAULT_WORKSPACE_LIMIT_BYTES: usize = 512 << 20;

/// The forward pass to differentiate, and how its gradients may be computed.
///
/// ```
/// use ferroflash::{BackwardOptions, ForwardOptions, Mask};
/// let forward = ForwardOptions::new().mask(Mask::Causal);
/// let options = BackwardOptions::of(&forward).deterministic(true);
/// assert_eq!(options.forward.mask, Mask::Causal);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BackwardOptions {
    /// The options of the forward pass whose gradients are asked for. dq, dk and dv get the axis order of its `o_layout`.
    pub forward: ForwardOptions,
    /// Whether two runs must give the same bits. If not, the order in which dq is summed may differ between runs.
    pub deterministic: bool,
    /// How many bytes of workspace kernels may ask for beyond a few for each row of q; kernels that need more are not run. In
    /// f16 and bf16, sums of dq in f32 are kept there, 4 bytes an element; in f32 the scores' gradients, of as many heads of k
    /// and v at a time as fit. Without them scores are computed twice. With dropout a bit for each pair lies beside dq's sums, of as many
    /// heads at a time as fit. For a head_dim beyond 128 on Hopper it is the scores'
    /// gradients too, in parts of a head if need be; dk and dv of one head may then lie beside them in f32.
    pub workspace_limit_bytes: usize,
    /// Whether the gradient by the slopes of ALiBi is computed too, in f32 and of their shape: `−Σ dz · |i + seq_kv − seq_q − j|`
    /// over the visible pairs of a head, and over batch entries where these share slopes. Two runs give the same bits. It costs
    /// two more matrix products beside the five of the other gradients.
    pub alibi_gradient: bool,
    /// Whether the gradient by sinks is computed too, in f32 `[heads_q]`: `−Σ exp(sink − lse) · delta` over the rows of a head.
    /// Two runs give the same bits.
    pub sink_gradient: bool,
    /// Whether the gradient by the bias is computed too, in f32 and of its shape: `dz` of each pair, summed over the axes along which
    /// the bias is 1. Two runs give the same bits. It costs two more matrix products beside the five of the other gradients.
    pub bias_gradient: bool,
}

impl Default for BackwardOptions {
    fn default() -> Self {
        Self {
            forward: ForwardOptions::new(),
            deterministic: false,
            workspace_limit_bytes: DEFAULT_WORKSPACE_LIMIT_BYTES,
            alibi_gradient: false,
            sink_gradient: false,
            bias_gradient: false,
        }
    }
}

impl BackwardOptions {
    /// Gradients of a forward pass with these options.
    pub fn of(forward: &ForwardOptions) -> Self {
        Self {
            forward: forward.clone(),
            ..Self::default()
        }
    }

    /// Sets [`deterministic`](Self::deterministic).
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.deterministic = deterministic;
        self
    }

    /// Sets [`workspace_limit_bytes`](Self::workspace_limit_bytes).
    pub fn workspace_limit_bytes(mut self, bytes: usize) -> Self {
        self.workspace_limit_bytes = bytes;
        self
    }

    /// Sets [`alibi_gradient`](Self::alibi_gradient).
    pub fn alibi_gradient(mut self, is_wanted: bool) -> Self {
        self.alibi_gradient = is_wanted;
        self
    }

    /// Sets [`sink_gradient`](Self::sink_gradient).
    pub fn sink_gradient(mut self, is_wanted: bool) -> Self {
        self.sink_gradient = is_wanted;
        self
    }

    /// Sets [`bias_gradient`](Self::bias_gradient).
    pub fn bias_gradient(mut self, is_wanted: bool) -> Self {
        self.bias_gradient = is_wanted;
        self
    }
}

impl From<&ForwardOptions> for BackwardOptions {
    fn from(forward: &ForwardOptions) -> Self {
        Self::of(forward)
    }
}

/// The tensors of the backward pass other than q, k and v.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientSpecs {
    /// Output of the forward pass, `[batch, heads_q, seq_q, head_dim_v]`.
    pub o: TensorSpec,
    /// The loss's gradient by o, of o's shape.
    pub d_o: TensorSpec,
    /// The loss's gradient by q, of q's shape; written.
    pub dq: TensorSpec,
    /// The loss's gradient by k, of k's shape; written.
    pub dk: TensorSpec,
    /// The loss's gradient by v, of v's shape; written.
    pub dv: TensorSpec,
}

/// A backward pass, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Backward {
    pub specs: GradientSpecs,
    pub deterministic: bool,
    pub workspace_limit_bytes: usize,
    pub d_alibi_slopes: Option<TensorSpec>,
    pub d_sinks: Option<TensorSpec>,
    pub d_bias: Option<TensorSpec>,
}

impl Problem {
    /// Checks a backward pass.
    ///
    /// # Errors
    /// [`Error::Argument`] naming the first operand or option that is refused.
    pub fn backward(
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        specs: GradientSpecs,
        options: &BackwardOptions,
    ) -> Result<Self, Error> {
        let mut problem = Self::new(q, k, v, input_like(&q, &v, &specs.o)?, &options.forward)?;
        check_gradients(&q, &k, &v, &specs)?;
        let d_alibi_slopes = match options.alibi_gradient {
            true => Some(problem.d_slopes_spec()?),
            false => None,
        };
        let d_sinks = match options.sink_gradient {
            true => Some(problem.d_sinks_spec()?),
            false => None,
        };
        let d_bias = match options.bias_gradient {
            true => Some(problem.d_bias_spec()?),
            false => None,
        };
        problem.operation = Operation::Backward(Box::new(Backward {
            specs,
            deterministic: options.deterministic,
            workspace_limit_bytes: options.workspace_limit_bytes,
            d_alibi_slopes,
            d_sinks,
            d_bias,
        }));
        Ok(problem)
    }

    /// Checks a backward pass whose gradients are not allocated yet: dense, in the layout of `options.forward`, of q's
    /// dtype.
    ///
    /// # Errors
    /// As for [`backward`](Self::backward).
    pub fn backward_with_dense_gradients(
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        o: TensorSpec,
        d_o: TensorSpec,
        options: &BackwardOptions,
    ) -> Result<Self, Error> {
        let dense = |like: &TensorSpec| {
            TensorSpec::contiguous(q.dtype, like.shape, options.forward.o_layout)
        };
        let specs = GradientSpecs {
            o,
            d_o,
            dq: dense(&q)?,
            dk: dense(&k)?,
            dv: dense(&v)?,
        };
        Self::backward(q, k, v, specs, options)
    }

    /// The tensors of a backward pass; `None` for a forward pass.
    pub fn gradients(&self) -> Option<&GradientSpecs> {
        self.as_backward().map(|backward| &backward.specs)
    }

    /// The gradient by ALiBi's slopes, if it is asked for: f32 `[1, heads_q, 1, 1]`, or `[batch, heads_q, 1, 1]` where each batch
    /// entry, or packed sequence, has slopes of its own; contiguous.
    pub fn d_alibi_slopes(&self) -> Option<&TensorSpec> {
        self.as_backward()?.d_alibi_slopes.as_ref()
    }

    /// The gradient by sinks, if it is asked for: f32 `[1, heads_q, 1, 1]`, contiguous.
    pub fn d_sinks(&self) -> Option<&TensorSpec> {
        self.as_backward()?.d_sinks.as_ref()
    }

    /// The gradient by the bias, if it is asked for: f32 of its shape, `[batch or 1, heads_q or 1, seq_q or 1, seq_kv]`, contiguous.
    /// Rows and keys are counted from the first of each sequence, as the bias's are; elements of none are 0.
    pub fn d_bias(&self) -> Option<&TensorSpec> {
        self.as_backward()?.d_bias.as_ref()
    }

    /// That gradient's spec.
    fn d_bias_spec(&self) -> Result<TensorSpec, Error> {
        let Some(bias) = &self.modifiers().bias else {
            let allowed = "a bias in the options of the forward pass, or no gradient by it";
            return Err(Error::argument(
                "bias_gradient",
                "there is no bias",
                allowed,
            ));
        };
        let [batch, heads, seq, dim] = bias.shape();
        let shape = Shape {
            batch,
            heads,
            seq,
            dim,
        };
        TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
    }

    /// The spec of the gradient by sinks.
    fn d_sinks_spec(&self) -> Result<TensorSpec, Error> {
        if self.modifiers().sinks.is_none() {
            let allowed = "sinks in the options of the forward pass, or no gradient by them";
            return Err(Error::argument(
                "sink_gradient",
                "there are no sinks",
                allowed,
            ));
        }
        let shape = Shape {
            batch: 1,
            heads: self.q().shape.heads,
            seq: 1,
            dim: 1,
        };
        TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
    }

    /// The spec of the gradient by slopes.
    fn d_slopes_spec(&self) -> Result<TensorSpec, Error> {
        let Some(slopes) = self.alibi() else {
            let allowed = "slopes in the options of the forward pass, or no gradient by them";
            return Err(Error::argument(
                "alibi_gradient",
                "there are no slopes",
                allowed,
            ));
        };
        let shape = Shape {
            batch: if slopes.is_batched() { self.batch() } else { 1 },
            heads: self.q().shape.heads,
            seq: 1,
            dim: 1,
        };
        TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
    }

    pub(crate) fn as_backward(&self) -> Option<&Backward> {
        match &self.operation {
            Operation::Forward { .. } | Operation::Decode(_) => None,
            Operation::Backward(backward) => Some(backward),
        }
    }
}

/// Refuses an `o` that is not the output of q and v, and returns a spec of its shape that a forward pass could write: one
/// that is only read may have several elements at one address.
fn input_like(q: &TensorSpec, v: &TensorSpec, o: &TensorSpec) -> Result<TensorSpec, Error> {
    check_outer_shape("o", o, q)?;
    check_equal("o", "head_dim_v", o.shape.dim, v.shape.dim, "v")?;
    TensorSpec::contiguous(o.dtype, o.shape, Layout::Bhsd)
}

fn check_gradients(
    q: &TensorSpec,
    k: &TensorSpec,
    v: &TensorSpec,
    specs: &GradientSpecs,
) -> Result<(), Error> {
    let GradientSpecs { o, d_o, dq, dk, dv } = specs;
    for (argument, spec, of, like) in [
        ("d_o", d_o, "o", o),
        ("dq", dq, "q", q),
        ("dk", dk, "k", k),
        ("dv", dv, "v", v),
    ] {
        check_equal(argument, "dtype", spec.dtype.name(), q.dtype.name(), "q")?;
        check_shape(argument, spec.shape, like.shape, of)?;
    }
    for (argument, spec) in [("o", o), ("d_o", d_o), ("dq", dq), ("dk", dk), ("dv", dv)] {
        spec.reach(argument)?;
    }
    for (argument, spec) in [("dq", dq), ("dk", dk), ("dv", dv)] {
        super::check::check_apart(argument, spec)?;
    }
    Ok(())
}

fn check_shape(argument: &'static str, found: Shape, of: Shape, name: &str) -> Result<(), Error> {
    if found == of {
        return Ok(());
    }
    Err(Error::argument(
        argument,
        format!("its shape is {found:?}"),
        format!("{of:?}, the shape of {name}"),
    ))
}
