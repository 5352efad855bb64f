use crate::spec::TensorSpec;
use crate::tensor::{allocate, lse_spec};
use crate::{
    Backend, BackwardOptions, Error, GradientOperands, GradientSpecs, Memory, Operands, Output,
    Plan, Problem, Shape, Tensor,
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
}

impl<M: Memory> Gradients<M> {
    /// Tensors for [`backward_into`] to write to.
    pub fn new(dq: Tensor<M>, dk: Tensor<M>, dv: Tensor<M>) -> Self {
        Self {
            dq,
            dk,
            dv,
            d_alibi_slopes: None,
        }
    }

    /// Sets [`d_alibi_slopes`](Self::d_alibi_slopes).
    pub fn d_alibi_slopes(mut self, tensor: impl Into<Option<Tensor<M>>>) -> Self {
        self.d_alibi_slopes = tensor.into();
        self
    }

    /// The tensors, by name.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Tensor<M>)> {
        let Self {
            dq,
            dk,
            dv,
            d_alibi_slopes,
        } = self;
        let slopes = d_alibi_slopes.iter();
        let slopes = slopes.map(|tensor| ("d_alibi_slopes", tensor));
        [("dq", dq), ("dk", dk), ("dv", dv)]
            .into_iter()
            .chain(slopes)
    }
}

/// The loss's gradients by what the forward pass computed.
#[derive(Clone, Copy, Debug)]
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
/// where a softcap multiplies dz by its derivative, and `d_alibi_slopes = −Σ dz · distance` if it is asked for. Scores are computed again; nothing of the size of the scores is stored
/// beyond [`BackwardOptions::workspace_limit_bytes`].
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
    let slopes = problem.d_alibi_slopes();
    Ok(Gradients {
        dq: allocate(memory, dq)?,
        dk: allocate(memory, dk)?,
        dv: allocate(memory, dv)?,
        d_alibi_slopes: slopes.map(|spec| allocate(memory, *spec)).transpose()?,
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
    check_slopes(&problem, gradients)?;
    check_gradients(backend.memory(), [q, k, v], output, &d_output, gradients)?;
    let given = inputs(backend.memory(), [q, k, v], output, &d_output)?;
    let operands = with_gradients(backend.memory(), &given, gradients);
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &operands)?;
    run(backend, &plan, &given, gradients)
}

/// Refuses an lse or a d_lse that does not fit o, and an output without lse.
fn check_rows<M: Memory>(
    output: &Output<M>,
    d_output: &OutputGradients<'_, M>,
) -> Result<(), Error> {
    let expected = lse_spec(&output.o.spec().shape)?;
    let check = |argument: &'static str, spec: &TensorSpec| {
        if *spec == expected {
            return Ok(());
        }
        let allowed = "it must be a contiguous f32 tensor of [batch, heads_q, seq_q, 1]";
        Err(Error::argument(
            argument,
            format!("it is {spec:?}"),
            allowed,
        ))
    };
    let Some(lse) = &output.lse else {
        let allowed = "the forward pass must have kept it";
        return Err(Error::argument("lse", "the output has none", allowed));
    };
    check("lse", lse.spec())?;
    d_output
        .d_lse
        .map_or(Ok(()), |d_lse| check("d_lse", d_lse.spec()))
}

/// The tensors that are read, by name.
fn read<'a, M: Memory>(
    [q, k, v]: [&'a Tensor<M>; 3],
    output: &'a Output<M>,
    d_output: &OutputGradients<'a, M>,
) -> impl Iterator<Item = (&'static str, &'a Tensor<M>)> {
    let given = [
        ("q", q),
        ("k", k),
        ("v", v),
        ("o", &output.o),
        ("d_o", d_output.d_o),
    ];
    let lse = output.lse.as_ref().map(|lse| ("lse", lse));
    let d_lse = d_output.d_lse.map(|d_lse| ("d_lse", d_lse));
    given.into_iter().chain(lse).chain(d_lse)
}

/// Refuses a gradient by slopes that is missing, not asked for, or not of their shape.
fn check_slopes<M: Memory>(problem: &Problem, gradients: &Gradients<M>) -> Result<(), Error> {
    let refused = |wrong, allowed| Err(Error::argument("d_alibi_slopes", wrong, allowed));
    match (problem.d_alibi_slopes(), &gradients.d_alibi_slopes) {
        (None, None) => Ok(()),
        (Some(expected), Some(tensor)) if is_same(tensor.spec(), expected) => Ok(()),
        (Some(expected), Some(tensor)) => {
            let Shape { batch, heads, .. } = expected.shape;
            let allowed = format!("a contiguous f32 tensor of [{batch}, {heads}, 1, 1]");
            refused(format!("it is {:?}", tensor.spec()), allowed)
        }
        (Some(_), None) => {
            let wrong = "there is none, and the options ask for it (alibi_gradient)";
            refused(wrong.to_owned(), "a tensor for it".to_owned())
        }
        (None, Some(_)) => {
            let wrong = "the options do not ask for it (alibi_gradient)";
            refused(
                wrong.to_owned(),
                "none, or an option that asks for it".to_owned(),
            )
        }
    }
}

/// Whether elements are of one dtype, and in the same places: the stride of an axis of size 1 does not matter.
fn is_same(spec: &TensorSpec, expected: &TensorSpec) -> bool {
    let axes = spec.axes().into_iter().zip(expected.axes());
    let mut places = axes.map(|(a, b)| a == b || a.0 == 1 && b.0 == 1);
    spec.dtype == expected.dtype && places.all(|is_same| is_same)
}

/// Refuses gradients that share elements with each other or with what is read, or that `memory` does not own.
fn check_gradients<M: Memory>(
    memory: &M,
    inputs: [&Tensor<M>; 3],
    output: &Output<M>,
    d_output: &OutputGradients<'_, M>,
    gradients: &Gradients<M>,
) -> Result<(), Error> {
    let mut others: Vec<_> = read(inputs, output, d_output).collect();
    for (argument, tensor) in gradients.named() {
        tensor.check_owned(memory, argument)?;
        if let Some((name, _)) = others
            .iter()
            .find(|(_, other)| tensor.may_share_elements(other))
        {
            return Err(Error::argument(
                argument,
                format!("it shares elements with {name}"),
                "it must lie apart from the other operands, for it is written",
            ));
        }
        others.push((argument, tensor));
    }
    Ok(())
}

/// The addresses of what is read; those of the gradients are 0, a multiple of any alignment.
///
/// # Errors
/// [`Error::Argument`] on a tensor whose buffer `memory` did not allocate.
fn inputs<M: Memory>(
    memory: &M,
    [q, k, v]: [&Tensor<M>; 3],
    output: &Output<M>,
    d_output: &OutputGradients<'_, M>,
) -> Result<Operands, Error> {
    for (argument, tensor) in read([q, k, v], output, d_output) {
        tensor.check_owned(memory, argument)?;
    }
    Ok(Operands {
        q: q.address(memory),
        k: k.address(memory),
        v: v.address(memory),
        o: output.o.address(memory),
        lse: output.lse.as_ref().map(|lse| lse.address(memory)),
        gradients: Some(GradientOperands {
            d_o: d_output.d_o.address(memory),
            d_lse: d_output.d_lse.map(|d_lse| d_lse.address(memory)),
            ..GradientOperands::default()
        }),
        ..Operands::default()
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
