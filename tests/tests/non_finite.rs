//! ∞ and NaN in V reach the rows that see them, in their own columns, and no others.

use ferroflash::backend::sim::Sim;
use ferroflash::cases::{CaseSpec, Lengths};
use ferroflash::{Backend, Cpu, DType, Mask};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::every_variant_is_right;

/// NaN in a column whose key some rows of a tile see, beside ∞ in a column whose key all of them see: kernels look at
/// columns in pairs and more.
fn neighbouring_columns<B: Backend>(mut backend: B) {
    let spec = CaseSpec {
        mask: Mask::Window {
            left: Some(60),
            right: Some(10),
        },
        ..plain(DType::Bf16, Lengths::one(100, 100), 64)
    };
    for odd in [0, 1] {
        let mut case = spec.build().expect("small");
        case.v.set(0, 0, 10, 20 + odd, f32::NAN);
        case.v.set(0, 0, 70, 21 - odd, f32::INFINITY);
        every_variant_is_right(&mut backend, &mut case, &spec.to_string());
    }
}

#[test]
fn neighbouring_columns_cpu() {
    neighbouring_columns(Cpu::new());
}

#[test]
fn neighbouring_columns_sim() {
    neighbouring_columns(Sim::new());
}

#[test]
fn neighbouring_columns_cuda() {
    if let Some(gpu) = gpu_or_not_run("neighbouring columns") {
        neighbouring_columns(gpu);
    }
}
