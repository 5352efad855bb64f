use crate::tensor::{allocate, check_planned, lse_spec};
use crate::{Backend, Error, ForwardOptions, Memory, Operands, Plan, Problem, Tensor};

/// Results of [`forward`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Output<M: Memory> {
    /// `[batch, heads_q, seq_q, head_dim_v]` in any layout, in q's dtype; of packed sequences
    /// `[1, heads_q, total_q, head_dim_v]`. Rows that see no key are 0.
    pub o: Tensor<M>,
    /// Log-sum-exp of each row's scores, in nats: contiguous f32 `[batch, heads_q, seq_q]`, of packed sequences
    /// `[heads_q, total_q]`. As every [`Tensor`] has four axes, its shape is `[batch, heads_q, seq_q, 1]` or
    /// `[1, heads_q, total_q, 1]`. Rows that see no key hold −∞. `None` where it is not wanted
    /// ([`ForwardOptions::lse`]).
    pub lse: Option<Tensor<M>>,
}

impl<M: Memory> Output<M> {
    /// Output tensors for [`forward_into`] to write: o, and lse if it is wanted.
    pub fn new(o: Tensor<M>, lse: impl Into<Option<Tensor<M>>>) -> Self {
        Self { o, lse: lse.into() }
    }
}

/// Exact attention: `o = softmax(q · kᵀ · softmax_scale) · v` over the keys the mask leaves visible.
///
/// Allocates o and lse, queues the work and returns without waiting for it; reading the result waits.
/// A kernel's first call, and the first with an [`AlibiSlopes`](crate::AlibiSlopes) or [`CuSeqlens`](crate::CuSeqlens),
/// does more and waits: [`Backend::launch`] lists it.
///
/// # Arguments
/// * `q`: `[batch, heads_q, seq_q, head_dim]`, f32, f16 or bf16; head_dim is 1 to 256. Axes are named in this order
///   whatever the layout in memory: any strides do.
/// * `k`: `[batch, heads_kv, seq_kv, head_dim]` of q's dtype. heads_q must be a multiple of heads_kv: query head `h` attends
///   to head `h / (heads_q / heads_kv)` of k and v, so that each is shared by a group of neighbours (GQA; MQA with one).
/// * `v`: `[batch, heads_kv, seq_kv, head_dim_v]` of q's dtype; head_dim_v is 1 to 256 and need not be head_dim.
/// * `options`: everything else. [`Mask::Causal`](crate::Mask::Causal) is aligned to the bottom-right corner: query `i` sees
///   the keys up to `i + seq_kv − seq_q`, so that the last query sees every key. PyTorch's `is_causal` counts from the
///   top-left corner ([`Mask::CAUSAL_TOP_LEFT`](crate::Mask::CAUSAL_TOP_LEFT)), which differs where seq_q is not seq_kv.
///
/// Packed sequences (varlen) are tensors of batch 1 with the rows of all of them along seq
/// ([`CuSeqlens`](crate::CuSeqlens)).
///
/// # Errors
/// [`Error::Argument`] naming the operand or option that is refused (lengths and slopes that only the device has are given
/// by address: [`Backend::launch`]), [`Error::OutOfMemory`] or [`Error::Device`].
pub fn forward<B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    options: &ForwardOptions,
) -> Result<Output<B::Memory>, Error> {
    let problem = Problem::with_dense_output(*q.spec(), *k.spec(), *v.spec(), options)?;
    // Before anything is allocated. Buffers are new, so only q, k and v may lie where some kernels cannot read.
    let inputs = inputs(backend.memory(), q, k, v)?;
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &inputs)?;
    run_into_new(backend, &plan, &inputs)
}

/// [`forward`] with a plan made before ([`Backend::plan`]): the problem is not checked again and no kernel is chosen
/// again.
///
/// # Arguments
/// * `plan`: of a backend of the same kind.
/// * `q`, `k`, `v`: of the shapes, strides and dtype that the plan's problem has. Contents may differ from call to call.
///
/// # Errors
/// [`Error::Argument`] naming an operand that is not of the plan's problem or not at an address it was made for, or the
/// plan if it is for another kind of backend; [`Error::OutOfMemory`] or [`Error::Device`].
pub fn forward_planned<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
) -> Result<Output<B::Memory>, Error> {
    let inputs = planned_inputs(backend, plan, q, k, v)?;
    run_into_new(backend, plan, &inputs)
}

/// [`forward_into`] with a plan made before, as for [`forward_planned`].
///
/// # Arguments
/// Those of [`forward_planned`], and
/// * `output`: an o of the shape, strides and dtype that the plan's problem has, and an lse as for [`forward_into`].
///
/// # Errors
/// Those of [`forward_planned`], and [`Error::Argument`] if o or lse is not of the plan's problem, or shares
/// elements with another operand.
pub fn forward_planned_into<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &mut Output<B::Memory>,
) -> Result<(), Error> {
    let inputs = planned_inputs(backend, plan, q, k, v)?;
    check_planned("o", &output.o, plan.problem().o())?;
    check_output(backend.memory(), [q, k, v], output)?;
    run(backend, plan, &inputs, output)
}

/// The addresses of q, k and v, if they match the plan's problem and alignment.
fn planned_inputs<B: Backend + ?Sized>(
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
    inputs(backend.memory(), q, k, v)
}

/// The addresses of q, k and v.
///
/// # Errors
/// [`Error::Argument`] on one whose buffer `memory` did not allocate.
pub(crate) fn inputs<M: Memory>(
    memory: &M,
    q: &Tensor<M>,
    k: &Tensor<M>,
    v: &Tensor<M>,
) -> Result<Operands, Error> {
    for (argument, tensor) in [("q", q), ("k", k), ("v", v)] {
        tensor.check_owned(memory, argument)?;
    }
    Ok(Operands {
        q: q.address(memory),
        k: k.address(memory),
        v: v.address(memory),
        ..Operands::default()
    })
}

/// Refuses an output that `memory`'s kernels cannot write, an lse that does not fit o, and outputs that share elements
/// with each other or with an input.
///
/// A tensor belongs to one memory, and every access to it borrows that memory mutably: nobody else reads or writes it at
/// the same time, so that only the operands of one call have to be kept apart.
pub(crate) fn check_output<M: Memory>(
    memory: &M,
    inputs: [&Tensor<M>; 3],
    output: &Output<M>,
) -> Result<(), Error> {
    let Output { o, lse } = output;
    if let Some(lse) = lse
        && *lse.spec() != lse_spec(&o.spec().shape)?
    {
        return Err(Error::argument(
            "lse",
            format!("it is {:?}", lse.spec()),
            "it must be a contiguous f32 tensor of [batch, heads_q, seq_q, 1]",
        ));
    }
    let [q, k, v] = inputs;
    let others = [("q", q), ("k", k), ("v", v), ("o", o)];
    let written = [("o", Some(o), &others[..3]), ("lse", lse.as_ref(), &others)];
    for (argument, tensor, others) in written {
        let Some(tensor) = tensor else { continue };
        tensor.check_owned(memory, argument)?;
        for (name, other) in others {
            if tensor.may_share_elements(other) {
                return Err(Error::argument(
                    argument,
                    format!("it shares elements with {name}"),
                    "it must lie apart from the other operands, for it is written",
                ));
            }
        }
    }
    Ok(())
}

/// Launches `plan` on `inputs`, the addresses of tensors of its problem, and new outputs.
pub(crate) fn run_into_new<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    inputs: &Operands,
) -> Result<Output<B::Memory>, Error> {
    let o = plan.problem().o();
    let memory = backend.memory();
    let output = Output {
        o: allocate(memory, *o)?,
        lse: match plan.problem().lse() {
            true => Some(allocate(memory, lse_spec(&o.shape)?)?),
            false => None,
        },
    };
    run(backend, plan, inputs, &output)?;
    Ok(output)
}

/// [`forward`] into tensors made before, which may have any strides that keep their elements apart.
///
/// o and lse may be views of larger buffers, also of one that they share with each other or with q, k and v, as long as no
/// two of them have an element in common. That is decided exactly for slices along any axis of one tensor; views whose
/// strides differ may be refused although they interleave without touching.
///
/// [`ForwardOptions::o_layout`] and [`ForwardOptions::lse`] are not used: `output.o` has its own strides, and `output.lse`
/// is written if it is there.
///
/// # Arguments
/// Those of [`forward`], and
/// * `output`: o, `[batch, heads_q, seq_q, head_dim_v]` of q's dtype in any strides that keep its elements apart; lse, if it
///   is wanted, contiguous f32 `[batch, heads_q, seq_q, 1]`.
///
/// # Errors
/// Those of [`forward`], and [`Error::Argument`] if o or lse is not of the shape and dtype that
/// [`forward`] gives it, lse is not contiguous, or one shares elements with another operand.
pub fn forward_into<B: Backend + ?Sized>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    output: &mut Output<B::Memory>,
    options: &ForwardOptions,
) -> Result<(), Error> {
    let problem = Problem::new(*q.spec(), *k.spec(), *v.spec(), *output.o.spec(), options)?;
    let memory = backend.memory();
    check_output(memory, [q, k, v], output)?;
    let operands = Operands {
        o: output.o.address(memory),
        ..inputs(memory, q, k, v)?
    };
    let plan = Plan::for_operands(&problem, &backend.capabilities(), &operands)?;
    run(backend, &plan, &operands, output)
}

/// Launches `plan` on `inputs`, the addresses of tensors, and `output`, which nobody else has.
pub(crate) fn run<B: Backend + ?Sized>(
    backend: &mut B,
    plan: &Plan,
    inputs: &Operands,
    output: &Output<B::Memory>,
) -> Result<(), Error> {
    let memory = backend.memory();
    let operands = Operands {
        o: output.o.address(memory),
        lse: output.lse.as_ref().map(|lse| lse.address(memory)),
        ..*inputs
    };
    // SAFETY: a `Tensor` reaches only into its own buffer, which is live, and `Memory` frees it only behind the work
    // queued here. o and lse share no element with another operand, or were just made; any other access to their
    // buffers needs this memory, and queues behind this one. q, k and v are only read. Buffers are aligned to 16 bytes,
    // and origins count elements.
    unsafe { backend.launch(plan, &operands) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::cpu::CpuMemory;
    use crate::{Cpu, HostTensor, Layout, Shape, TensorSpec};

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

    /// Views of q, k and v, and of one buffer with room for all outputs of a call.
    #[test]
    fn outputs_may_be_slices_of_one_buffer() {
        let mut cpu = Cpu::new();
        let x = HostTensor::from_f32(&[1.0, 2.0, 3.0, 4.0], SHAPE, Layout::Bshd).unwrap();
        let x = x.upload(cpu.memory()).unwrap();
        let options = ForwardOptions::new();
        let expected = forward(&mut cpu, &x, &x, &x, &options).unwrap();
        let expected = expected.o.download(cpu.memory()).unwrap();
        let buffer = Arc::new(cpu.memory().alloc(12 * size_of::<f32>()).unwrap());
        let lse = lse_spec(&SHAPE).unwrap();
        let mut view = |origin: usize, spec: TensorSpec| {
            Tensor::new(cpu.memory(), Arc::clone(&buffer), origin, spec).unwrap()
        };
        // Two outputs whose rows alternate, and their lse behind them.
        let mut spec = *x.spec();
        spec.strides.seq = 4;
        let mut outputs = [
            Output::new(view(0, spec), view(8, lse)),
            Output::new(view(2, spec), view(10, lse)),
        ];
        let mut overlapping = Output::new(view(0, spec), view(4, lse));
        let mut over_q = Output::new(x.clone(), None);
        for output in &mut outputs {
            forward_into(&mut cpu, &x, &x, &x, output, &options).unwrap();
        }
        for output in &outputs {
            let o = output.o.download(cpu.memory()).unwrap();
            assert_eq!(o.to_f32(Layout::Bshd), expected.to_f32(Layout::Bshd));
        }
        let mut refused = |output: &mut Output<CpuMemory>, q: &Tensor<CpuMemory>| match forward_into(
            &mut cpu, q, &x, &x, output, &options,
        ) {
            Err(Error::Argument {
                argument, wrong, ..
            }) => (argument.into_owned(), wrong),
            other => panic!("expected a refused argument, got {other:?}"),
        };
        let message = |argument: &str, wrong: &str| (argument.to_owned(), wrong.to_owned());
        let shares_o = message("lse", "it shares elements with o");
        assert_eq!(refused(&mut overlapping, &x), shares_o);
        assert_eq!(
            refused(&mut over_q, &x),
            message("o", "it shares elements with q")
        );
        let q = outputs[0].o.clone();
        assert_eq!(refused(&mut outputs[0], &q).0, "o");
    }

    #[test]
    fn a_download_takes_the_view_alone() {
        let mut cpu = Cpu::new();
        let shape = Shape { seq: 1000, ..SHAPE };
        let values: Vec<f32> = (0..2000).map(|value| value as f32).collect();
        let x = HostTensor::from_f32(&values, shape, Layout::Bshd).unwrap();
        let x = x.upload(cpu.memory()).unwrap();
        // Two rows of many, the later one first.
        let mut spec = *x.spec();
        spec.shape.seq = 2;
        spec.strides.seq = -6;
        let view = x.view(cpu.memory(), 100, spec).unwrap();
        let copy = view.download(cpu.memory()).unwrap();
        assert_eq!(copy.to_f32(Layout::Bshd), [100.0, 101.0, 94.0, 95.0]);
        assert_eq!(copy.bytes().len(), 8 * size_of::<f32>());
        spec.shape.seq = 0;
        let nothing = x.view(cpu.memory(), 100, spec).unwrap();
        assert!(nothing.download(cpu.memory()).unwrap().bytes().is_empty());
    }

    /// On a backend that leaves lse out, and on one whose kernels write it anyway.
    #[test]
    fn lse_is_left_out_where_it_is_not_wanted() {
        fn without<B: Backend>(mut backend: B) {
            let x = HostTensor::from_f32(&[1.0, 2.0, 3.0, 4.0], SHAPE, Layout::Bshd).unwrap();
            let x = x.upload(backend.memory()).unwrap();
            let options = ForwardOptions::new();
            let with = forward(&mut backend, &x, &x, &x, &options).unwrap();
            assert!(with.lse.is_some());
            let options = options.lse(false);
            let mut without = forward(&mut backend, &x, &x, &x, &options).unwrap();
            assert!(without.lse.is_none());
            forward_into(&mut backend, &x, &x, &x, &mut without, &options).unwrap();
            let [with, without] = [with, without].map(|output| {
                let o = output.o.download(backend.memory()).unwrap();
                o.to_f32(Layout::Bshd)
            });
            assert_eq!(with, without);
        }
        without(Cpu::new());
        #[cfg(feature = "sim")]
        without(crate::Sim::new());
    }

    /// A backend behind a pointer, and the words of a refusal, which need an output that can be shown.
    #[test]
    fn backends_may_be_trait_objects() {
        let mut cpu: Box<dyn Backend<Memory = CpuMemory>> = Box::new(Cpu::new());
        let x = HostTensor::from_f32(&[1.0; 4], SHAPE, Layout::Bshd).unwrap();
        let x = x.upload(cpu.memory()).unwrap();
        let options = ForwardOptions::new();
        let output = forward(cpu.as_mut(), &x, &x, &x, &options).unwrap();
        assert!(format!("{output:?}").contains("F32"));
        let forced = options.softcap(-1.0);
        let refused = forward(cpu.as_mut(), &x, &x, &x, &forced).unwrap_err();
        assert!(refused.to_string().starts_with("softcap: "), "{refused}");
    }

    #[test]
    fn a_tensor_of_another_device_is_refused_by_name() {
        foreign_tensors_are_refused([Cpu::new(), Cpu::new()]);
        #[cfg(feature = "sim")]
        foreign_tensors_are_refused([crate::Sim::new(), crate::Sim::new()]);
    }

    fn foreign_tensors_are_refused<B: Backend>([mut here, mut there]: [B; 2])
    where
        Output<B::Memory>: std::fmt::Debug,
    {
        let x = HostTensor::from_f32(&[1.0; 4], SHAPE, Layout::Bshd).unwrap();
        let (own, foreign) = (
            x.upload(here.memory()).unwrap(),
            x.upload(there.memory()).unwrap(),
        );
        let options = ForwardOptions::new();
        let argument = |refused: Result<Output<B::Memory>, Error>| match refused {
            Err(Error::Argument { argument, .. }) => argument.into_owned(),
            other => panic!("expected a refused argument, got {other:?}"),
        };
        let by = |here: &mut B, [q, k, v]: [&Tensor<B::Memory>; 3]| {
            argument(forward(here, q, k, v, &options))
        };
        assert_eq!(by(&mut here, [&foreign, &own, &own]), "q");
        assert_eq!(by(&mut here, [&own, &foreign, &own]), "k");
        assert_eq!(by(&mut here, [&own, &own, &foreign]), "v");

        let mut output = forward(&mut here, &own, &own, &own, &options).unwrap();
        let lse = forward(&mut there, &foreign, &foreign, &foreign, &options)
            .unwrap()
            .lse;
        output.lse = lse;
        let into = forward_into(&mut here, &own, &own, &own, &mut output, &options);
        assert!(matches!(into, Err(Error::Argument { argument, .. }) if argument == "lse"));

        assert!(foreign.download(here.memory()).is_err());
        let buffer = Arc::clone(foreign.buffer());
        assert!(Tensor::new(here.memory(), buffer, 0, *x.spec()).is_err());
    }
}
