//! Keys that `seqused_kv` leaves unused: no query sees them, and their gradients are 0.

use std::sync::Arc;

use bytemuck::cast_slice;
use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{
    Backend, BackwardOptions, Cpu, DType, DeviceLengths, ForwardOptions, GradientOperands,
    HostTensor, KnownArrays, Layout, Mask, Memory, Operands, Plan, Problem, Shape, Tensor,
    TensorSpec,
};
use ferroflash_testing::cases::normal;
use ferroflash_testing::oracle::{BackwardInputs, GradientTensors, Inputs, Rows, check_backward};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::schedules::SCHEDULES;

const BATCH: usize = 4;
const SEQ_Q: usize = 70;
const SEQ_KV: usize = 150;
/// More than there are, some, one, none.
const USED: [i32; BATCH] = [200, 67, 1, 0];

fn shape(heads: usize, seq: usize, dim: usize) -> Shape {
    Shape {
        batch: BATCH,
        heads,
        seq,
        dim,
    }
}

/// Uploads bytes that no gradient is.
fn filled<M: Memory>(memory: &mut M, spec: TensorSpec) -> Tensor<M> {
    let bytes = vec![0x5a; spec.shape.element_count().unwrap() * spec.dtype.bytes()];
    HostTensor::new(spec, 0, bytes)
        .unwrap()
        .upload(memory)
        .unwrap()
}

fn unused_keys_have_no_gradient<B: Backend>(backend: &mut B) {
    for dtype in DType::ALL {
        for deterministic in [false, true] {
            // Without a mask, nothing but the lengths hides them.
            for mask in [Mask::Causal, Mask::None] {
                of_dtype(backend, dtype, deterministic, mask, 40);
            }
        }
    }
    for mask in [Mask::Causal, Mask::None] {
        of_dtype(backend, DType::Bf16, true, mask, 136);
    }
}

/// Keys or values of which the unused ones are NaN.
fn with_unused(mut tensor: HostTensor) -> HostTensor {
    let Shape { heads, dim, .. } = tensor.spec().shape;
    for (batch, used) in USED.into_iter().enumerate() {
        for key in (used as usize).min(SEQ_KV)..SEQ_KV {
            for head in 0..heads {
                (0..dim).for_each(|dim| tensor.set(batch, head, key, dim, f32::NAN));
            }
        }
    }
    tensor
}

fn of_dtype<B: Backend>(
    backend: &mut B,
    dtype: DType,
    deterministic: bool,
    mask: Mask,
    dim: usize,
) {
    let tensor =
        |heads, seq, seed| normal(dtype, shape(heads, seq, dim), Layout::Bshd, seed).unwrap();
    let (q, d_o) = (tensor(4, SEQ_Q, 1), tensor(4, SEQ_Q, 2));
    let [k, v] = [3, 4].map(|seed| with_unused(tensor(2, SEQ_KV, seed)));
    let options = ForwardOptions::new()
        .mask(mask)
        .lengths(DeviceLengths::seqused_kv());
    let (q_spec, kv_spec) = (*q.spec(), *k.spec());

    let memory = backend.memory();
    let [q_there, k_there, v_there, d_o_there] =
        [&q, &k, &v, &d_o].map(|tensor| tensor.upload(memory).unwrap());
    let mut used = memory.alloc(size_of_val(&USED)).unwrap();
    memory.write(&mut used, cast_slice(&USED)).unwrap();
    let used = Arc::new(used);
    let o = filled(memory, q_spec);
    let lse_spec = TensorSpec::contiguous(
        DType::F32,
        Shape {
            dim: 1,
            ..shape(4, SEQ_Q, dim)
        },
        Layout::Bhsd,
    );
    let lse = filled(memory, lse_spec.unwrap());
    let [dq, dk, dv] = [q_spec, kv_spec, kv_spec].map(|spec| filled(memory, spec));
    let at = |tensor: &Tensor<B::Memory>| tensor.address(&*memory);
    let gradients = GradientOperands::new(at(&d_o_there), at(&dq), at(&dk), at(&dv));
    let operands = Operands::new(at(&q_there), at(&k_there), at(&v_there), at(&o))
        .lse(at(&lse))
        .seqused_kv(memory.address(&used))
        .gradients(gradients);

    let forward = Problem::with_dense_output(q_spec, kv_spec, kv_spec, &options).unwrap();
    let problem = Problem::backward_with_dense_gradients(
        q_spec,
        kv_spec,
        kv_spec,
        *forward.o(),
        *d_o.spec(),
        &BackwardOptions::of(&options).deterministic(deterministic),
    )
    .unwrap();
    for problem in [&forward, &problem] {
        let plan = Plan::new(problem, &backend.capabilities()).unwrap();
        // SAFETY: every tensor is of the problem's shape, and lives until it is read below.
        unsafe { backend.launch(&plan, &operands) }.unwrap();
    }

    let memory = backend.memory();
    let [o, lse, dq, dk, dv] =
        [&o, &lse, &dq, &dk, &dv].map(|tensor| tensor.download(memory).unwrap());
    let known = problem.with_known_arrays(&KnownArrays {
        seqused_kv: &USED,
        ..KnownArrays::default()
    });
    let given = BackwardInputs {
        inputs: Inputs {
            q: &q,
            k: &k,
            v: &v,
        },
        o: &o,
        lse: &lse,
        d_o: &d_o,
        d_lse: None,
    };
    let computed = GradientTensors {
        dq: &dq,
        dk: &dk,
        dv: &dv,
        d_alibi_slopes: None,
        d_bias: None,
    };
    let verdict = check_backward(&known, given, computed, Rows::All);
    assert!(verdict.passed(), "{verdict}");
    for (batch, &used) in USED.iter().enumerate() {
        for key in (used as usize).min(SEQ_KV)..SEQ_KV {
            for tensor in [&dk, &dv] {
                let is_zero = |head| (0..dim).all(|dim| tensor.get(batch, head, key, dim) == 0.0);
                assert!((0..2).all(is_zero), "batch {batch}, key {key}");
            }
        }
    }
}

#[test]
fn cpu() {
    unused_keys_have_no_gradient(&mut Cpu::new());
}

#[test]
fn sim() {
    unused_keys_have_no_gradient(&mut Sim::on(SimDevice::with_schedule(SCHEDULES[1])));
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients of unused keys") {
        unused_keys_have_no_gradient(&mut gpu);
    }
}
