//! Sizes at which narrow integers would wrap.

use std::sync::Arc;

use ferroflash::{
    Backend, Cpu, DType, HostTensor, Layout, Mask, Memory, Output, Shape, Sim, Strides, Tensor,
    TensorSpec, forward, forward_into,
};
use ferroflash_testing::cases::{AlibiSpec, Case, CaseSpec, Lengths, dtypes_of};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::every_variant_is_right;

fn small() -> CaseSpec {
    let lengths = Lengths::Dense {
        batch: 2,
        seq_q: 5,
        seq_kv: 5,
    };
    CaseSpec {
        group: 2,
        ..plain(DType::F32, lengths, 8)
    }
}

/// More (batch, head) pairs than a grid's second dimension holds, dense and packed.
fn many_heads<B: Backend>(mut backend: B) {
    const BATCH: usize = 1100;
    let dense = Lengths::Dense {
        batch: BATCH,
        seq_q: 1,
        seq_kv: 2,
    };
    for lengths in [dense, Lengths::Varlen(vec![(1, 2); BATCH])] {
        let spec = CaseSpec {
            lengths,
            heads_kv: 30,
            ..small()
        };
        assert!(BATCH * spec.heads_kv * spec.group > 1 << 16);
        let case = spec.build().expect("small");
        let (o, lse) = case.run(&mut backend).expect("it runs");
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{verdict}");
    }
}

/// Batch entries, and packed rows, more than 2³¹ elements apart.
fn far_strides<B: Backend>(mut backend: B) {
    far_strides_of(&mut backend, small(), |strides| {
        strides.batch = (1 << 31) + 40
    });
    let packed = CaseSpec {
        lengths: Lengths::Varlen(vec![(5, 5), (5, 5)]),
        ..small()
    };
    // Of ten rows the last two.
    far_strides_of(&mut backend, packed, |strides| strides.seq = (1 << 28) + 40);
}

/// One problem writes its o far away, the next one reads it as k and v.
fn far_strides_of<B: Backend>(backend: &mut B, spec: CaseSpec, go_far: impl Fn(&mut Strides)) {
    let first = spec.build().expect("small");
    let near = {
        let (o, _) = first.run(backend).expect("it runs");
        o
    };

    let upload = |backend: &mut B, tensor: &HostTensor| {
        tensor.upload(backend.memory()).expect("there is memory")
    };
    let [q, k, v] = [&first.q, &first.k, &first.v].map(|tensor| upload(backend, tensor));
    let mut output = forward(backend, &q, &k, &v, &first.options).expect("it runs");
    let mut far = *output.o.spec();
    go_far(&mut far.strides);
    let last = |size: usize, stride: i64| (size - 1) * stride as usize;
    let elements = last(far.shape.batch, far.strides.batch)
        + last(far.shape.seq, far.strides.seq)
        + near.to_f32(Layout::Bshd).len();
    assert!(elements > 1 << 31);
    let memory = backend.memory();
    let buffer = memory
        .alloc(elements * size_of::<f32>())
        .expect("there is memory");
    output.o = Tensor::new(memory, Arc::new(buffer), 0, far).expect("inside its buffer");
    forward_into(backend, &q, &k, &v, &mut output, &first.options).expect("it runs");

    let second = Case {
        q: first.q.clone(),
        k: near.clone(),
        v: near,
        options: first.options.clone().mask(Mask::Causal),
        o: None,
    };
    let Output { o, lse, .. } =
        forward(backend, &q, &output.o, &output.o, &second.options).expect("it runs");
    let memory = backend.memory();
    let o = o.download(memory).expect("it ran");
    let lse = lse.expect("it is asked for by default");
    let lse = lse.download(memory).expect("it ran");
    let verdict = second.check(&o, &lse, Rows::All).expect("checked");
    assert!(verdict.passed(), "{verdict}");
}

/// Biases far above every other term of the scores: no row has a key near its diagonal.
fn large_biases<B: Backend>(mut backend: B) {
    for dtype in dtypes_of(&backend).expect("the backend runs something") {
        for seqs in [(1500, 40), (300, 300)] {
            let spec = CaseSpec {
                dtype,
                lengths: Lengths::Varlen(vec![seqs, (40, 40)]),
                head_dim: 32,
                alibi: Some(AlibiSpec {
                    steepest: -4.0,
                    is_batched: true,
                }),
                ..small()
            };
            let mut case = spec.build().expect("small");
            every_variant_is_right(&mut backend, &mut case, &spec.to_string());
        }
    }
}

#[test]
fn large_biases_cpu() {
    large_biases(Cpu::new());
}

#[test]
fn large_biases_sim() {
    large_biases(Sim::new());
}

#[test]
fn large_biases_cuda() {
    if let Some(gpu) = gpu_or_not_run("large biases") {
        large_biases(gpu);
    }
}

#[test]
fn many_heads_cpu() {
    many_heads(Cpu::new());
}

#[test]
fn many_heads_cuda() {
    if let Some(gpu) = gpu_or_not_run("many heads") {
        many_heads(gpu);
    }
}

#[test]
fn far_strides_cpu() {
    far_strides(Cpu::new());
}

#[test]
fn far_strides_cuda() {
    if let Some(gpu) = gpu_or_not_run("far strides") {
        far_strides(gpu);
    }
}

#[test]
fn a_spec_beyond_64_bits_is_refused() {
    let shape = Shape {
        batch: 1 << 31,
        heads: 1 << 31,
        seq: 1 << 29,
        dim: 256,
    };
    assert!(TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).is_err());
}
