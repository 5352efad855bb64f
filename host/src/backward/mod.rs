mod check;

use check::{check_gradients, check_parameters, check_rows, inputs};

use crate::tensor::{allocate, check_planned};
use crate::{
    Backend, BackwardOptions, Error, GradientSpecs, Memory, Operands, Output, Plan, Problem,
    Tensor, TensorSpec,
};

/// Gradients of q, k and v, as [`backward`] computes them: each in q's dtype.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gradients<M: Memory> {
    /// The loss's gradient by q, `[batch, heads_q, seq_q, head_dim]`. Rows that see no key are 0.
    pub dq: Tensor<M>,
    /// The loss's gradient by k, `[batch, heads_kv, seq_kv, head_dim]`, summed over the query heads that share a head of k.
    /// Keys that no query sees are 0.
    pub dk: Tensor<M>,
    /// The loss's gradient by v, `[batch, heads_kv, seq_kv, head_dim_v]`, summed as dk.
    pub dv: Tensor<M>,
    /// The loss's gradient by the slopes of ALiBi, f32 and of their shape: `[1, heads_q, 1, 1]`, or `[batch, heads_q, 1, 1]` where
    /// each batch entry has slopes of its own ([`Problem::d_alibi_slopes`]). `Some` exactly if
    /// [`BackwardOptions::alibi_gradient`] asks for it.
    pub d_alibi_slopes: Option<Tensor<M>>,
    /// The loss's gradient by sinks, f32 `[1, heads_q, 1, 1]`. `Some` exactly if [`BackwardOptions::sink_gradient`] asks for it.
    pub d_sinks: Option<Tensor<M>>,
    /// The loss's gradient by the bias, f32 and of its shape, summed over axes of 1 ([`Problem::d_bias`]). `Some` exactly if
    /// [`BackwardOptions::bias_gradient`] asks for it.
    pub d_bias: Option<Tensor<M>>,
}

impl<M: Memory> Gradients<M> {
    /// Tensors for [`backward_into`] to write to.
    pub fn new(dq: Tensor<M>, dk: Tensor<M>, dv: Tensor<M>) -> Self {
        Self {
            dq,
            dk,
            dv,
            d_alibi_slopes: None,
            d_sinks: None,
            d_bias: None,
        }
    }

    /// Sets [`d_alibi_slopes`](Self::d_alibi_slopes).
    pub fn d_alibi_slopes(mut self, tensor: impl Into<Option<Tensor<M>>>) -> Self {
        self.d_alibi_slopes = tensor.into();
        self
    }

    /// Sets [`d_sinks`](Self::d_sinks).
    pub fn d_sinks(mut self, tensor: impl Into<Option<Tensor<M>>>) -> Self {
        self.d_sinks = tensor.into();
        self
    }

    /// Sets [`d_bias`](Self::d_bias).
    pub fn d_bias(mut self, tensor: impl Into<Option<Tensor<M>>>) -> Self {
        self.d_bias = tensor.into();
        self
    }

    /// The tensors, by name.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Tensor<M>)> {
        let Self {
            dq,
            dk,
            dv,
            d_alibi_slopes,
            d_sinks,
            d_bias,
        } = self;
        let slopes = d_alibi_slopes.iter();
        let slopes = slopes.map(|tensor| ("d_alibi_slopes", tensor));
        let sinks = d_sinks.iter().map(|tensor| ("d_sinks", tensor));
        let bias = d_bias.iter().map(|tensor| ("d_bias", tensor));
        [("dq", dq), ("dk", dk), ("dv", dv)]
            .into_iter()
            .chain(slopes)
            .chain(sinks)
            .chain(bias)
    }
}

/// The loss's gradients by what the forward pass computed.
#[derive(Debug)]
#[non_exhaustive]
pub struct OutputGradients<'a, M: Memory> {
    /// By o: of o's shape and dtype, with any strides.
    pub d_o: &'a Tensor<M>,
    /// By lse: of lse's shape, f32, contiguous. `None` where the loss does not depend on lse; where partial results are
    /// merged, as in ring attention, it does.
    pub d_lse: Option<&'a Tensor<M>>,
}

impl<'a, M: Memory> OutputGradients<'a, M> {
    /// By o, and by lse if there is one.
    pub fn new(d_o: &'a Tensor<M>, d_lse: impl Into<Option<&'a Tensor<M>>>) -> Self {
        let d_lse = d_lse.into();
        Self { d_o, d_lse }
    }
}

// Derived, they would ask the memory itself to be `Copy`.
impl<M: Memory> Clone for OutputGradients<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Memory> Copy for OutputGradients<'_, M> {}

impl<'a, M: Memory> From<&'a Tensor<M>> for OutputGradients<'a, M> {
    fn from(d_o: &'a Tensor<M>) -> Self {
        Self::new(d_o, None)
    }
}

/// The gradients of attention (FlashAttention-2's backward pass, <https://arxiv.org/abs/2307.08691>).
///
/// With `p = exp(score − lse)` and `delta = Σ_c d_o·o − d_lse` of each row,
///
/// ```text
/// dv = pᵀ · d_o      dz = p ∘ (d_o · vᵀ − delta)      dq = softmax_scale · dz · k      dk = softmax_scale · dzᵀ · q
/// ```
///
/// where a softcap multiplies dz by its derivative; `d_alibi_slopes = −Σ dz · distance` and `d_bias = Σ dz` before that, if they are asked for. Scores are computed
/// again; nothing of the size of the scores is stored beyond [`BackwardOptions::workspace_limit_bytes`].
///
/// # Arguments
/// * `q` `[batch, heads_q, seq_q, head_dim]`, `k` `[batch, heads_kv, seq_kv, head_dim]` and `v` `[batch, heads_kv, seq_kv,
///   head_dim_v]`: those of the forward pass. heads_q is a multiple of heads_kv.
/// * `output`: o and lse of [`forward`](crate::forward) on them, with `options.forward`. That they are cannot be checked;
///   gradients of other values are meaningless.
/// * `d_output`: d_o, or d_o and d_lse ([`OutputGradients`]).
///
/// Allocates the gradients, queues the work and returns without waiting for it, as [`forward`](crate::forward).
///
/// ```
/// use ferroflash::{BackwardOptions, Cpu, ForwardOptions, HostTensor, Layout, Mask, Shape};
/// use ferroflash::{Backend, backward, forward};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let mut cpu = Cpu::new();
/// let shape = Shape { batch: 1, heads: 2, seq: 3, dim: 4 };
/// let x = HostTensor::from_f32(&[0.5; 24], shape, Layout::Bshd)?.upload(cpu.memory())?;
/// let options = ForwardOptions::new().mask(Mask::Causal);
/// let output = forward(&mut cpu, &x, &x, &x, &options)?;
/// // The gradient of the sum of o by o is 1 everywhere.
/// let d_o = HostTensor::from_f32(&[1.0; 24], shape, Layout::Bshd)?.upload(cpu.memory())?;
/// let gradients = backward(&mut cpu, &x, &x, &x, &output, &d_o, &BackwardOptions::of(&options))?;
/// // The last key has a third of the last query's attention, and no other query sees it.
/// let dv = gradients.dv.download(cpu.memory())?;
/// assert!((dv.get(0, 0, 2, 0) - 1.0 / 3.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Argument`] naming the operand or option that is refused, [`Error::OutOfMemory`] or [`Error::Device`].
pub fn backward<'a, B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &Output<B::Memory>,
    d_output: impl Into<OutputGradients<'a, B::Memory>>,
    options: &BackwardOptions,
) -> Result<Gradients<B::Memory>, Error>
where
    B::Memory: 'a,
{
    let d_output = d_output.into();
    let problem = Problem::backward_with_dense_gradients(
        *q.spec(),
        *k.spec(),
        *v.spec(),
        *output.o.spec(),
        *d_output.d_o.spec(),
        options,
    )?;
    check_rows(output, &d_output)?;
    let given = inputs(backend.memory(), [q, k, v], output, &d_output)?;
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &given)?;
    let gradients = allocate_gradients(backend.memory(), &problem)?;
    run(backend, &plan, &given, &gradients)?;
    Ok(gradients)
}

/// Tensors for the gradients of `problem`.
fn allocate_gradients<M: Memory>(memory: &mut M, problem: &Problem) -> Result<Gradients<M>, Error> {
    let GradientSpecs { dq, dk, dv, .. } = *problem.gradients().expect("a backward problem");
    let mut of_parameter =
        |spec: Option<&TensorSpec>| spec.map(|spec| allocate(memory, *spec)).transpose();
    let d_alibi_slopes = of_parameter(problem.d_alibi_slopes())?;
    let d_sinks = of_parameter(problem.d_sinks())?;
    let d_bias = of_parameter(problem.d_bias())?;
    Ok(Gradients {
        dq: allocate(memory, dq)?,
        dk: allocate(memory, dk)?,
        dv: allocate(memory, dv)?,
        d_alibi_slopes,
        d_sinks,
        d_bias,
    })
}

/// [`backward`] into tensors made before, which may have any strides that keep their elements apart.
///
/// # Errors
/// Those of [`backward`], and [`Error::Argument`] if a gradient is not of the shape and dtype that [`backward`] gives it, or
/// shares elements with another operand.
#[allow(clippy::too_many_arguments)] // `backward`'s, and where to
pub fn backward_into<'a, B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &Output<B::Memory>,
    d_output: impl Into<OutputGradients<'a, B::Memory>>,
    gradients: &mut Gradients<B::Memory>,
    options: &BackwardOptions,
) -> Result<(), Error>
where
    B::Memory: 'a,
{
    let d_output = d_output.into();
    let specs = GradientSpecs {
        o: *output.o.spec(),
        d_o: *d_output.d_o.spec(),
        dq: *gradients.dq.spec(),
        dk: *gradients.dk.spec(),
        dv: *gradients.dv.spec(),
    };
    let problem = Problem::backward(*q.spec(), *k.spec(), *v.spec(), specs, options)?;
    check_rows(output, &d_output)?;
    check_parameters(&problem, gradients)?;
    check_gradients(backend.memory(), [q, k, v], output, &d_output, gradients)?;
    let given = inputs(backend.memory(), [q, k, v], output, &d_output)?;
    let operands = with_gradients(backend.memory(), &given, gradients);
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &operands)?;
    run(backend, &plan, &given, gradients)
}

/// [`backward`] with a plan made before ([`Backend::plan`]): the problem is not checked again and no kernel is chosen again.
///
/// # Arguments
/// * `plan`: of a problem of [`Problem::backward`] or [`Problem::backward_with_dense_gradients`], for a backend of the same
///   kind.
/// * The others are those of [`backward`], of the shapes, strides and dtypes that the plan's problem has. Contents may differ
///   from call to call.
///
/// ```
/// use ferroflash::{BackwardOptions, Cpu, ForwardOptions, HostTensor, Layout, Problem, Shape};
/// use ferroflash::{Backend, backward_planned, forward};
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let mut cpu = Cpu::new();
/// let shape = Shape { batch: 1, heads: 2, seq: 3, dim: 4 };
/// let x = HostTensor::from_f32(&[0.5; 24], shape, Layout::Bshd)?.upload(cpu.memory())?;
/// let output = forward(&mut cpu, &x, &x, &x, &ForwardOptions::new())?;
/// let spec = *x.spec();
/// let options = BackwardOptions::default();
/// let problem = Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options)?;
/// let plan = cpu.plan(&problem)?; // once, for any number of calls
/// let gradients = backward_planned(&mut cpu, &plan, &x, &x, &x, &output, &x)?;
/// assert_eq!(gradients.dq.spec(), &spec);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Argument`] naming an operand that is not of the plan's problem or not at an address it was made for, or the plan if
/// it is for another kind of backend or not for a backward pass; [`Error::OutOfMemory`] or [`Error::Device`].
pub fn backward_planned<'a, B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &Output<B::Memory>,
    d_output: impl Into<OutputGradients<'a, B::Memory>>,
) -> Result<Gradients<B::Memory>, Error>
where
    B::Memory: 'a,
{
    let given = planned_inputs(backend, plan, [q, k, v], output, &d_output.into())?;
    let gradients = allocate_gradients(backend.memory(), plan.problem())?;
    run(backend, plan, &given, &gradients)?;
    Ok(gradients)
}

/// [`backward_into`] with a plan made before, as for [`backward_planned`].
///
/// # Errors
/// Those of [`backward_planned`], and [`Error::Argument`] if a gradient is not of the plan's problem, or shares elements with
/// another operand.
#[allow(clippy::too_many_arguments)] // `backward_planned`'s, and where to
pub fn backward_planned_into<'a, B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &Output<B::Memory>,
    d_output: impl Into<OutputGradients<'a, B::Memory>>,
    gradients: &mut Gradients<B::Memory>,
) -> Result<(), Error>
where
    B::Memory: 'a,
{
    let d_output = d_output.into();
    let given = planned_inputs(backend, plan, [q, k, v], output, &d_output)?;
    let GradientSpecs { dq, dk, dv, .. } = planned_gradients(plan)?;
    check_planned("dq", &gradients.dq, dq)?;
    check_planned("dk", &gradients.dk, dk)?;
    check_planned("dv", &gradients.dv, dv)?;
    check_parameters(plan.problem(), gradients)?;
    check_gradients(backend.memory(), [q, k, v], output, &d_output, gradients)?;
    run(backend, plan, &given, gradients)
}

/// The addresses of what is read, if it matches the plan's problem and alignment.
fn planned_inputs<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    [q, k, v]: [&Tensor<B::Memory>; 3],
    output: &Output<B::Memory>,
    d_output: &OutputGradients<'_, B::Memory>,
) -> Result<Operands, Error> {
    let (problem, specs) = (plan.problem(), planned_gradients(plan)?);
    check_planned("q", q, problem.q())?;
    check_planned("k", k, problem.k())?;
    check_planned("v", v, problem.v())?;
    check_planned("o", &output.o, &specs.o)?;
    check_planned("d_o", d_output.d_o, &specs.d_o)?;
    check_rows(output, d_output)?;
    inputs(backend.memory(), [q, k, v], output, d_output)
}

/// The tensors of the backward pass that `plan` is for.
fn planned_gradients(plan: &Plan) -> Result<&GradientSpecs, Error> {
    plan.problem().gradients().ok_or_else(|| {
        let wrong = "it is for a forward pass";
        Error::argument("plan", wrong, "one of a problem made by Problem::backward")
    })
}

/// `given` with the addresses of `gradients`.
fn with_gradients<M: Memory>(memory: &M, given: &Operands, gradients: &Gradients<M>) -> Operands {
    let mut operands = *given;
    if let Some(addresses) = &mut operands.gradients {
        addresses.dq = gradients.dq.address(memory);
        addresses.dk = gradients.dk.address(memory);
        addresses.dv = gradients.dv.address(memory);
        let slopes = gradients.d_alibi_slopes.as_ref();
        addresses.d_alibi_slopes = slopes.map(|slopes| slopes.address(memory));
        let sinks = gradients.d_sinks.as_ref();
        addresses.d_sinks = sinks.map(|sinks| sinks.address(memory));
        let bias = gradients.d_bias.as_ref();
        addresses.d_bias = bias.map(|bias| bias.address(memory));
    }
    operands
}

/// Launches `plan` on `given`, the addresses of tensors, and `gradients`, which nobody else has.
fn run<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    given: &Operands,
    gradients: &Gradients<B::Memory>,
) -> Result<(), Error> {
    let operands = with_gradients(backend.memory(), given, gradients);
    // SAFETY: a `Tensor` reaches only into its own buffer, which is live, and `Memory` frees it only behind the work queued
    // here. The gradients share no element with another operand, or were just made; whoever else has a view of their buffers
    // needs this memory for an access, which queues up behind this one. The others are only read. Buffers are aligned to 16 bytes, and origins count elements.
    unsafe { backend.launch(plan, &operands) }
}
