//! Operands and options of the backward pass that are refused, by name.

use std::sync::Arc;

use ferroflash::{
    AlibiSlopes, Backend, BackwardOptions, Cpu, DType, Error, ForwardOptions, GradientOperands,
    GradientSpecs, Gradients, HostTensor, Layout, Memory, Operands, Output, OutputGradients,
    Problem, Shape, Sim, Tensor, TensorSpec, Variant, backward, backward_into, forward,
};

const SHAPE: Shape = Shape {
    batch: 1,
    heads: 2,
    seq: 3,
    dim: 4,
};

type CpuMemory = <Cpu as Backend>::Memory;

/// A forward pass, and tensors of its gradients.
struct Scene {
    cpu: Cpu,
    x: Tensor<CpuMemory>,
    output: Output<CpuMemory>,
}

fn scene() -> Scene {
    let mut cpu = Cpu::new();
    let x = tensor(&mut cpu, SHAPE);
    let output = forward(&mut cpu, &x, &x, &x, &ForwardOptions::new()).unwrap();
    Scene { cpu, x, output }
}

fn tensor(cpu: &mut Cpu, shape: Shape) -> Tensor<CpuMemory> {
    let values = vec![0.5; shape.element_count().unwrap()];
    let tensor = HostTensor::from_f32(&values, shape, Layout::Bshd).unwrap();
    tensor.upload(cpu.memory()).unwrap()
}

/// The argument that an error names, and what is wrong with it.
#[track_caller]
fn refused<T>(result: Result<T, Error>) -> (String, String) {
    match result {
        Err(Error::Argument {
            argument, wrong, ..
        }) => (argument.into_owned(), wrong),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn tensors_of_other_shapes_are_named() {
    let Scene {
        mut cpu,
        x,
        mut output,
    } = scene();
    let options = BackwardOptions::default();
    let longer = tensor(&mut cpu, Shape { seq: 4, ..SHAPE });
    let rows = tensor(&mut cpu, Shape { dim: 1, ..SHAPE });
    assert_eq!(
        refused(backward(&mut cpu, &x, &x, &x, &output, &longer, &options)).0,
        "d_o"
    );
    let d_output = OutputGradients::new(&x, &longer);
    assert_eq!(
        refused(backward(&mut cpu, &x, &x, &x, &output, d_output, &options)).0,
        "d_lse"
    );
    // [batch, seq, heads, 1] in memory: lse is [batch, heads, seq, 1].
    output.lse = Some(rows);
    assert_eq!(
        refused(backward(&mut cpu, &x, &x, &x, &output, &x, &options)).0,
        "lse"
    );
    output.o = longer;
    let refusal = refused(backward(&mut cpu, &x, &x, &x, &output, &x, &options));
    assert_eq!(refusal, ("o".to_owned(), "seq_q is 4".to_owned()));
}

#[test]
fn tensors_of_another_dtype_are_named() {
    let Scene {
        mut cpu, x, output, ..
    } = scene();
    let host = x
        .download(cpu.memory())
        .unwrap()
        .convert(DType::Bf16, Layout::Bshd)
        .unwrap();
    let bf16 = host.upload(cpu.memory()).unwrap();
    let options = BackwardOptions::default();
    let refusal = refused(backward(&mut cpu, &x, &x, &x, &output, &bf16, &options));
    assert_eq!(refusal, ("d_o".to_owned(), "dtype is bf16".to_owned()));
    let o = Output::new(bf16, output.lse);
    assert_eq!(
        refused(backward(&mut cpu, &x, &x, &x, &o, &x, &options)).0,
        "o"
    );
}

#[test]
fn gradients_that_share_elements_are_refused() {
    let Scene {
        mut cpu, x, output, ..
    } = scene();
    let options = BackwardOptions::default();
    let fresh =
        |cpu: &mut Cpu| Gradients::new(tensor(cpu, SHAPE), tensor(cpu, SHAPE), tensor(cpu, SHAPE));
    let mut gradients = fresh(&mut cpu);
    gradients.dk = gradients.dq.clone();
    let into = |cpu: &mut Cpu, gradients: &mut _| {
        backward_into(cpu, &x, &x, &x, &output, &x, gradients, &options)
    };
    assert_eq!(
        refused(into(&mut cpu, &mut gradients)),
        ("dk".to_owned(), "it shares elements with dq".to_owned())
    );
    let mut gradients = fresh(&mut cpu);
    gradients.dv = x.clone();
    assert_eq!(refused(into(&mut cpu, &mut gradients)).0, "dv");
    let mut gradients = fresh(&mut cpu);
    let spec = TensorSpec {
        strides: ferroflash::Strides {
            seq: 0,
            ..gradients.dv.spec().strides
        },
        ..*gradients.dv.spec()
    };
    gradients.dv = gradients.dv.view(cpu.memory(), 0, spec).unwrap();
    assert_eq!(refused(into(&mut cpu, &mut gradients)).0, "dv");
}

#[test]
fn d_o_may_be_broadcast_and_gradients_strided() {
    let Scene {
        mut cpu, x, output, ..
    } = scene();
    let options = BackwardOptions::default();
    let expected = backward(&mut cpu, &x, &x, &x, &output, &x, &options).unwrap();
    // One value of d_o for all, as the gradient of a sum is.
    let spec = TensorSpec {
        strides: ferroflash::Strides {
            batch: 0,
            head: 0,
            seq: 0,
            dim: 0,
        },
        ..*x.spec()
    };
    let d_o = x.view(cpu.memory(), 0, spec).unwrap();
    let mut strided = |dim: i64| {
        let mut spec = *x.spec();
        spec.strides.dim = dim;
        spec.strides.head = 4 * dim.abs();
        spec.strides.seq = 8 * dim.abs();
        let buffer = cpu
            .memory()
            .alloc(4 * 24 * dim.unsigned_abs() as usize)
            .unwrap();
        let origin = if dim < 0 {
            3 * dim.unsigned_abs() as usize
        } else {
            0
        };
        Tensor::new(cpu.memory(), Arc::new(buffer), origin, spec).unwrap()
    };
    let mut gradients = Gradients::new(strided(2), strided(-1), strided(3));
    backward_into(
        &mut cpu,
        &x,
        &x,
        &x,
        &output,
        &d_o,
        &mut gradients,
        &options,
    )
    .unwrap();
    for (got, expected) in [
        (&gradients.dq, &expected.dq),
        (&gradients.dk, &expected.dk),
        (&gradients.dv, &expected.dv),
    ] {
        let values = |tensor: &Tensor<CpuMemory>, cpu: &mut Cpu| {
            tensor.download(cpu.memory()).unwrap().to_f32(Layout::Bshd)
        };
        assert_eq!(values(got, &mut cpu), values(expected, &mut cpu));
    }
}

#[test]
fn addresses_of_a_plan_are_checked() {
    let spec = TensorSpec::contiguous(DType::F32, SHAPE, Layout::Bshd).unwrap();
    let specs = GradientSpecs {
        o: spec,
        d_o: spec,
        dq: spec,
        dk: spec,
        dv: spec,
    };
    let options = BackwardOptions::default();
    let problem = Problem::backward(spec, spec, spec, specs, &options).unwrap();
    let mut cpu = Cpu::new();
    let plan = cpu.plan(&problem).unwrap();
    assert_eq!(plan.kernel_name(), "fa_bwd_cpu_f32_tiled");
    let gradients = |d_o, dk| GradientOperands::new(d_o, 4, dk, 4);
    let mut launch = |lse: Option<u64>, gradients: Option<GradientOperands>| {
        let operands = Operands::new(4, 4, 4, 4).lse(lse).gradients(gradients);
        // SAFETY: every launch here is refused before an address is used.
        refused(unsafe { cpu.launch(&plan, &operands) }).0
    };
    assert_eq!(launch(Some(4), None), "gradients");
    assert_eq!(launch(None, Some(gradients(4, 4))), "lse");
    assert_eq!(launch(Some(4), Some(gradients(0, 4))), "d_o");
    assert_eq!(launch(Some(4), Some(gradients(4, 6))), "dk");
    let with_d_lse = gradients(4, 4).d_lse(2);
    assert_eq!(launch(Some(4), Some(with_d_lse)), "d_lse");
    let slopes = ForwardOptions::new().alibi(AlibiSlopes::geometric(2).unwrap());
    let options = BackwardOptions::of(&slopes).alibi_gradient(true);
    let problem = Problem::backward(spec, spec, spec, specs, &options).unwrap();
    let plan = cpu.plan(&problem).unwrap();
    for address in [None, Some(0), Some(6)] {
        let gradients = gradients(4, 4).d_alibi_slopes(address);
        let operands = Operands::new(4, 4, 4, 4).lse(4).gradients(gradients);
        // SAFETY: as before.
        let (argument, _) = refused(unsafe { cpu.launch(&plan, &operands) });
        assert_eq!(argument, "d_alibi_slopes");
    }
}

/// A gradient by slopes without slopes; a tensor for it that is missing, not asked for, or of another shape or dtype; one of
/// another memory, or that shares elements.
#[test]
fn gradients_by_slopes_are_checked() {
    let Scene {
        mut cpu, x, output, ..
    } = scene();
    let slopes = AlibiSlopes::per_head(&[0.5, 0.25]).unwrap();
    let without = BackwardOptions::default().alibi_gradient(true);
    let refusal = refused(backward(&mut cpu, &x, &x, &x, &output, &x, &without));
    let expected = (
        "alibi_gradient".to_owned(),
        "there are no slopes".to_owned(),
    );
    assert_eq!(refusal, expected);

    let not_asked = BackwardOptions::of(&ForwardOptions::new().alibi(slopes));
    let asked = not_asked.clone().alibi_gradient(true);
    let of_shape = |cpu: &mut Cpu, batch, heads| {
        let shape = Shape {
            batch,
            heads,
            seq: 1,
            dim: 1,
        };
        tensor(cpu, shape)
    };
    let right = of_shape(&mut cpu, 1, 2);
    let f16 = right.download(cpu.memory()).unwrap();
    let f16 = f16.convert(DType::F16, Layout::Bshd).unwrap();
    let f16 = f16.upload(cpu.memory()).unwrap();
    let shares = x.view(cpu.memory(), 0, *right.spec()).unwrap();
    let elsewhere = of_shape(&mut Cpu::new(), 1, 2);
    let longer = of_shape(&mut cpu, 2, 2);
    let fewer = of_shape(&mut cpu, 1, 1);
    let mut into = |slopes: Option<&Tensor<CpuMemory>>, options: &BackwardOptions| {
        let [dq, dk, dv] = [(); 3].map(|()| tensor(&mut cpu, SHAPE));
        let mut gradients = Gradients::new(dq, dk, dv).d_alibi_slopes(slopes.cloned());
        backward_into(&mut cpu, &x, &x, &x, &output, &x, &mut gradients, options)
    };
    for (tensor, options) in [
        (None, &asked),
        (Some(&right), &not_asked),
        (Some(&f16), &asked),
        (Some(&longer), &asked),
        (Some(&fewer), &asked),
        (Some(&shares), &asked),
        (Some(&elsewhere), &asked),
    ] {
        assert_eq!(refused(into(tensor, options)).0, "d_alibi_slopes");
    }
    into(Some(&right), &asked).unwrap();
    into(None, &not_asked).unwrap();
}

#[test]
fn what_no_kernel_computes_is_refused() {
    let spec = TensorSpec::contiguous(DType::F16, SHAPE, Layout::Bshd).unwrap();
    let forward = ForwardOptions::new().force(Some(Variant::Simt));
    let options = BackwardOptions::of(&forward);
    let problem =
        Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options).unwrap();
    assert_eq!(refused(Sim::new().plan(&problem)).0, "force");
}

/// The sums of dq take 16 rows of 8 dimensions a head here, and are not made where they may not be, or where results are to
/// repeat.
#[test]
fn the_kernel_follows_the_options() {
    // Two heads of 64 rows of 64 numbers, which hold 16 of 8.
    const SUMS_BYTES: usize = 2 * 64 * 64 * 4;
    // An exponent of each head, which fill a sector.
    const EXPONENTS_BYTES: usize = 32;
    let spec = TensorSpec::contiguous(DType::F16, SHAPE, Layout::Bshd).unwrap();
    let plan = |options: &BackwardOptions| {
        let problem =
            Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, options).unwrap();
        let plan = Sim::new().plan(&problem).unwrap();
        (plan.kernel_name(), plan.workspace_bytes())
    };
    let fused = plan(&BackwardOptions::default().workspace_limit_bytes(SUMS_BYTES));
    let less = plan(&BackwardOptions::default().workspace_limit_bytes(SUMS_BYTES - 1));
    let repeats = plan(&BackwardOptions::default().deterministic(true));
    assert_eq!(fused.0, "fa_bwd_fused_mma_sm80_f16_hd64");
    assert_eq!(less.0, "fa_bwd_dkdv_mma_sm80_f16_hd64");
    assert_eq!(repeats, less);
    assert_eq!(fused.1, less.1 + SUMS_BYTES + EXPONENTS_BYTES);
}
