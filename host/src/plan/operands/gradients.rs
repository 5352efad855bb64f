//! Addresses of a backward pass.

/// Addresses that a backward pass has in addition to those of [`Operands`](crate::Operands).
///
/// A plan of a backward pass is launched as one of a forward pass is ([`Backend::launch`](crate::Backend::launch)), with the
/// caller's workspace or the backend's, in the backend's stream.
///
/// ```
/// use ferroflash::{Backend, BackwardOptions, Cpu, GradientOperands, Layout, Operands, Problem};
/// use ferroflash::{DType, Shape, TensorSpec};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// // Buffers of another framework: here plain vectors, on a GPU its device pointers.
/// let shape = Shape { batch: 1, heads: 2, seq: 5, dim: 8 };
/// let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)?;
/// let x = vec![0.5f32; 80];
/// // Of a forward pass: all keys are alike, so o is v, and lse is score + ln 5 with score = 8 · 0.25 / √8.
/// let lse = vec![8f32.sqrt() / 4.0 + 5f32.ln(); 10];
/// let mut gradients = [(); 3].map(|()| vec![0f32; 80]);
///
/// let options = BackwardOptions::default();
/// let problem = Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options)?;
/// let mut backend = Cpu::new();
/// let plan = backend.plan(&problem)?; // once, for any number of launches
/// let x_address = x.as_ptr().expose_provenance() as u64;
/// let [dq, dk, dv] = gradients.each_mut().map(|x| x.as_mut_ptr().expose_provenance() as u64);
/// let operands = Operands::new(x_address, x_address, x_address, x_address)
///     .lse(lse.as_ptr().expose_provenance() as u64)
///     .gradients(GradientOperands::new(x_address, dq, dk, dv));
/// // SAFETY: the vectors hold as many elements as the problem reaches, and outlive the call, which
/// // on this backend returns when the work is done.
/// unsafe { backend.launch(&plan, &operands)? };
/// // Each query gives a key a fifth of its d_o.
/// assert!(gradients[2].iter().all(|dv| (dv - 0.5).abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GradientOperands {
    /// The loss's gradient by o, of o's shape.
    pub d_o: u64,
    /// The loss's gradient by lse, f32 of lse's shape. `None`: 0, as where the loss does not depend on lse.
    pub d_lse: Option<u64>,
    /// dq, of q's shape; written.
    pub dq: u64,
    /// dk, of k's shape; written.
    pub dk: u64,
    /// dv, of v's shape; written.
    pub dv: u64,
    /// The gradient by ALiBi's slopes, laid out as [`Problem::d_alibi_slopes`](crate::Problem::d_alibi_slopes) says; written. Needed where it
    /// is asked for ([`BackwardOptions::alibi_gradient`](crate::BackwardOptions::alibi_gradient)), and ignored otherwise.
    pub d_alibi_slopes: Option<u64>,
    /// The gradient by sinks, f32 `[heads_q]`; written. Needed where it is asked for
    /// ([`BackwardOptions::sink_gradient`](crate::BackwardOptions::sink_gradient)), and ignored otherwise.
    pub d_sinks: Option<u64>,
    /// The gradient by the bias, laid out as [`Problem::d_bias`](crate::Problem::d_bias) says; written. Needed where it
    /// is asked for ([`BackwardOptions::bias_gradient`](crate::BackwardOptions::bias_gradient)), and ignored otherwise.
    pub d_bias: Option<u64>,
}

impl GradientOperands {
    /// The addresses for a loss that does not depend on lse, without a gradient by slopes.
    pub const fn new(d_o: u64, dq: u64, dk: u64, dv: u64) -> Self {
        Self {
            d_o,
            d_lse: None,
            dq,
            dk,
            dv,
            d_alibi_slopes: None,
            d_sinks: None,
            d_bias: None,
        }
    }

    /// Sets [`d_lse`](Self::d_lse).
    pub fn d_lse(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_lse = address.into();
        self
    }

    /// Sets [`d_alibi_slopes`](Self::d_alibi_slopes).
    pub fn d_alibi_slopes(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_alibi_slopes = address.into();
        self
    }

    /// Sets [`d_sinks`](Self::d_sinks).
    pub fn d_sinks(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_sinks = address.into();
        self
    }

    /// Sets [`d_bias`](Self::d_bias).
    pub fn d_bias(mut self, address: impl Into<Option<u64>>) -> Self {
        self.d_bias = address.into();
        self
    }
}
