use std::sync::Arc;

use crate::spec::{Layout, Shape, TensorSpec};
use crate::{Backend, DType, Error, ForwardOptions, Memory, Operands, Plan, Problem, Tensor};

/// What [`forward`] computes.
pub struct Output<M: Memory> {
    /// `[batch, heads_q, seq_q, head_dim_v]` in any layout, in q's dtype; of packed sequences
    /// `[1, heads_q, total_q, head_dim_v]`. Rows that see no key are 0.
    pub o: Tensor<M>,
    /// Log-sum-exp of each row's scores, in nats: contiguous f32 `[batch, heads_q, seq_q]`, of packed sequences
    /// `[heads_q, total_q]`. As every [`Tensor`] has four axes, its shape is `[batch, heads_q, seq_q, 1]` or
    /// `[1, heads_q, total_q, 1]`. Rows that see no key hold −∞.
    pub lse: Tensor<M>,
}

/// Exact attention: `o = softmax(q · kᵀ · softmax_scale) · v` over the keys the mask leaves visible.
///
/// Allocates o and lse, queues the work and returns without waiting for it; reading the result waits.
/// What the first call of a kernel, or with an [`AlibiSlopes`](crate::AlibiSlopes) or
/// [`CuSeqlens`](crate::CuSeqlens), does beside that and waits for is listed at [`Backend::launch`].
///
/// # Errors
/// [`Error::Argument`] naming the operand or option that is refused (lengths and slopes that only the device has are given
/// by address: [`Backend::launch`]), [`Error::OutOfMemory`] or [`Error::Device`].
pub fn forward<B: Backend>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    options: &ForwardOptions,
) -> Result<Output<B::Memory>, Error> {
    let problem = Problem::with_dense_output(*q.spec(), *k.spec(), *v.spec(), options)?;
    // Before anything is allocated. Buffers are new, so only q, k and v may lie where some kernels cannot read.
    let inputs = inputs(backend.memory(), q, k, v);
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &inputs)?;
    run_into_new(backend, &plan, &inputs)
}

/// [`forward`] by a plan that was made before ([`Backend::plan`]), which spares checking the problem and choosing a kernel.
///
/// # Errors
/// [`Error::Argument`] naming an operand that is not of the plan's problem or not at an address it was made for, or the
/// plan if it is for another kind of backend; [`Error::OutOfMemory`] or [`Error::Device`].
pub fn forward_planned<B: Backend>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
) -> Result<Output<B::Memory>, Error> {
    let inputs = planned_inputs(backend, plan, q, k, v)?;
    run_into_new(backend, plan, &inputs)
}

/// [`forward_into`] by a plan that was made before, as [`forward_planned`].
///
/// # Errors
/// Those of [`forward_planned`], and [`Error::Argument`] if o or lse is not of the plan's problem, or shares its buffer
/// with another tensor.
pub fn forward_planned_into<B: Backend>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &mut Output<B::Memory>,
) -> Result<(), Error> {
    let inputs = planned_inputs(backend, plan, q, k, v)?;
    check_planned("o", &output.o, plan.problem().o())?;
    check_output(output)?;
    run(backend, plan, &inputs, output)
}

/// The addresses of a plan's inputs, if these tensors are what it was made for.
fn planned_inputs<B: Backend>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
) -> Result<Operands, Error> {
    let problem = plan.problem();
    check_planned("q", q, problem.q())?;
    check_planned("k", k, problem.k())?;
    check_planned("v", v, problem.v())?;
    Ok(inputs(backend.memory(), q, k, v))
}

fn check_planned<M: Memory>(
    argument: &'static str,
    tensor: &Tensor<M>,
    planned: &TensorSpec,
) -> Result<(), Error> {
    if tensor.spec() == planned {
        return Ok(());
    }
    let wrong = format!("it is {:?}", tensor.spec());
    Err(Error::argument(
        argument,
        wrong,
        format!("{planned:?}, as planned"),
    ))
}

/// The addresses of q, k and v.
fn inputs<M: Memory>(memory: &M, q: &Tensor<M>, k: &Tensor<M>, v: &Tensor<M>) -> Operands {
    Operands {
        q: q.address(memory),
        k: k.address(memory),
        v: v.address(memory),
        ..Operands::default()
    }
}

/// Refuses tensors that cannot be written, and an lse that does not fit o.
fn check_output<M: Memory>(output: &mut Output<M>) -> Result<(), Error> {
    if *output.lse.spec() != lse_spec(&output.o.spec().shape)? {
        return Err(Error::argument(
            "lse",
            format!("it is {:?}", output.lse.spec()),
            "a contiguous f32 tensor of [batch, heads_q, seq_q, 1]",
        ));
    }
    for (argument, tensor) in [("o", &mut output.o), ("lse", &mut output.lse)] {
        if !tensor.owns_buffer() {
            return Err(Error::argument(
                argument,
                "its buffer has other views",
                "a buffer that no other tensor shares, for it is written",
            ));
        }
    }
    Ok(())
}

/// Launches `plan` on `inputs`, the addresses of tensors of its problem, and new outputs.
fn run_into_new<B: Backend>(
    backend: &mut B,
    plan: &Plan,
    inputs: &Operands,
) -> Result<Output<B::Memory>, Error> {
    let o = plan.problem().o();
    let memory = backend.memory();
    let output = Output {
        o: allocate(memory, *o)?,
        lse: allocate(memory, lse_spec(&o.shape)?)?,
    };
    run(backend, plan, inputs, &output)?;
    Ok(output)
}

/// [`forward`] into tensors made before, which may have any strides that keep their elements apart.
///
/// [`ForwardOptions::o_layout`] is not used: `output.o` has its own strides.
///
/// # Errors
/// Those of [`forward`], and [`Error::Argument`] if o or lse is not of the shape and dtype that
/// [`forward`] gives it, lse is not contiguous, or one shares its buffer with another tensor.
pub fn forward_into<B: Backend>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &mut Output<B::Memory>,
    options: &ForwardOptions,
) -> Result<(), Error> {
    let problem = Problem::new(*q.spec(), *k.spec(), *v.spec(), *output.o.spec(), options)?;
    check_output(output)?;
    let memory = backend.memory();
    let operands = Operands {
        o: output.o.address(memory),
        ..inputs(memory, q, k, v)
    };
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &operands)?;
    run(backend, &plan, &operands, output)
}

/// Launches `plan` on `inputs`, the addresses of tensors, and `output`, which nobody else has.
fn run<B: Backend>(
    backend: &mut B,
    plan: &Plan,
    inputs: &Operands,
    output: &Output<B::Memory>,
) -> Result<(), Error> {
    let memory = backend.memory();
    let operands = Operands {
        o: output.o.address(memory),
        lse: output.lse.address(memory),
        ..*inputs
    };
    // SAFETY: a `Tensor` reaches only into its own buffer, which is live, and `Memory` frees it only
    // behind the work queued here. o and lse are the only views of their buffers and borrowed
    // mutably, or just made; later accesses queue up behind this one. q, k and v are only read. Buffers are aligned
    // to 16 bytes, and origins count elements.
    unsafe { backend.launch(plan, &operands) }
}

/// lse is contiguous f32 `[batch, heads_q, seq_q, 1]`.
fn lse_spec(o_shape: &Shape) -> Result<TensorSpec, Error> {
    let shape = Shape { dim: 1, ..*o_shape };
    TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
}

fn allocate<M: Memory>(memory: &mut M, spec: TensorSpec) -> Result<Tensor<M>, Error> {
    let elements = spec.shape.element_count().unwrap_or(0);
    let buffer = memory.alloc(elements * spec.dtype.bytes())?;
    Tensor::new(memory, Arc::new(buffer), 0, spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, HostTensor};

    const SHAPE: Shape = Shape {
        batch: 1,
        heads: 1,
        seq: 2,
        dim: 2,
    };

    #[test]
    fn o_may_lie_inside_a_larger_buffer_of_its_own() {
        let mut cpu = Cpu::new();
        let x = HostTensor::from_f32(&[1.0, 2.0, 3.0, 4.0], SHAPE, Layout::Bshd).unwrap();
        let x = x.upload(cpu.memory()).unwrap();
        let options = ForwardOptions::new();
        let mut output = forward(&mut cpu, &x, &x, &x, &options).unwrap();
        let expected = output
            .o
            .download(cpu.memory())
            .unwrap()
            .to_f32(Layout::Bshd);

        let mut spec = *output.o.spec();
        spec.strides.seq = -3;
        let buffer = Arc::new(cpu.memory().alloc(6 * size_of::<f32>()).unwrap());
        output.o = Tensor::new(cpu.memory(), buffer, 4, spec).unwrap();
        forward_into(&mut cpu, &x, &x, &x, &mut output, &options).unwrap();
        let o = output.o.download(cpu.memory()).unwrap();
        assert_eq!(o.to_f32(Layout::Bshd), expected);
    }

    #[test]
    fn a_plan_takes_the_tensors_it_was_made_for() {
        let mut cpu = Cpu::new();
        let values = [1.0, 2.0, 3.0, 4.0];
        let x = HostTensor::from_f32(&values, SHAPE, Layout::Bshd).unwrap();
        let x = x.upload(cpu.memory()).unwrap();
        let options = ForwardOptions::new();
        let problem =
            Problem::with_dense_output(*x.spec(), *x.spec(), *x.spec(), &options).unwrap();
        let plan = cpu.plan(&problem).unwrap();
        let planned = forward_planned(&mut cpu, &plan, &x, &x, &x).unwrap();
        let planned = planned.o.download(cpu.memory()).unwrap();
        let o = forward(&mut cpu, &x, &x, &x, &options).unwrap().o;
        let expected = o.download(cpu.memory()).unwrap();
        assert_eq!(planned.to_f32(Layout::Bshd), expected.to_f32(Layout::Bshd));

        let shape = Shape { dim: 1, ..SHAPE };
        let y = HostTensor::from_f32(&[1.0; 2], shape, Layout::Bshd).unwrap();
        let y = y.upload(cpu.memory()).unwrap();
        let refused = forward_planned(&mut cpu, &plan, &x, &y, &x);
        assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "k"));
    }

    #[test]
    fn a_shared_output_is_refused() {
        let mut cpu = Cpu::new();
        let x = HostTensor::from_f32(&[1.0; 4], SHAPE, Layout::Bshd).unwrap();
        let x = x.upload(cpu.memory()).unwrap();
        let options = ForwardOptions::new();
        let mut output = forward(&mut cpu, &x, &x, &x, &options).unwrap();
        output.o = x.clone();
        let refused = forward_into(&mut cpu, &x, &x, &x, &mut output, &options);
        assert!(matches!(refused, Err(Error::Argument { argument, .. }) if argument == "o"));
    }
}
