//! The inputs that make kernels leave their fast path, as `ferroflash bench --input` names them.

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Cpu, DType, Mask};
use ferroflash_testing::cases::{CaseSpec, InputKind, Lengths};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::every_variant_is_right;

const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// Every kind on `keys` keys of `head_dim` dimensions.
fn stressed<B: Backend>(backend: &mut B, dtypes: &[DType], keys: usize, head_dim: usize) {
    for &dtype in dtypes {
        for (number, kind) in InputKind::ALL.into_iter().enumerate() {
            let spec = CaseSpec {
                kind,
                mask: [Mask::None, Mask::Causal][number % 2],
                ..plain(dtype, Lengths::one(keys, keys), head_dim)
            };
            let mut case = spec.build().expect("small");
            every_variant_is_right(backend, &mut case, &spec.to_string());
        }
    }
}

#[test]
fn stressed_cpu() {
    stressed(&mut Cpu::new(), &HALVES, 700, 128);
}

#[test]
fn stressed_sim() {
    // Several blocks that no mask touches; 192 runs in clusters on Hopper.
    for (dtype, head_dim) in [(DType::F16, 64), (DType::Bf16, 192)] {
        stressed(&mut Sim::new(), &[dtype], 320, head_dim);
    }
}

/// Rows in which the reference a block was computed under, and that it is rescaled to, are farther apart than f32's
/// exponents reach: rare, so more keys than other kinds need.
#[test]
fn large_scores_sim() {
    for (dtype, mask) in [(DType::F16, Mask::None), (DType::Bf16, Mask::Causal)] {
        let spec = CaseSpec {
            kind: InputKind::Large,
            mask,
            ..plain(dtype, Lengths::one(1100, 1100), 128)
        };
        let mut case = spec.build().expect("small");
        every_variant_is_right(&mut Sim::new(), &mut case, &spec.to_string());
    }
}

#[test]
fn stressed_cuda() {
    let Some(mut gpu) = gpu_or_not_run("stressed inputs") else {
        return;
    };
    for head_dim in [64, 128, 192, 256] {
        stressed(&mut gpu, &HALVES, 1100, head_dim);
    }
}
