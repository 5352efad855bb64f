//! ∞ and NaN in V reach the rows that see them, in their own columns, and no others; and outputs that are finite are
//! so where sums on the way to them would not be.

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Cpu, DType, Mask};
use ferroflash_testing::cases::{CaseSpec, Lengths};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::every_variant_is_right;

/// NaN in a column whose key some rows of a tile see, next to ∞ in a column whose key all of them see: kernels look at
/// columns in pairs and more.
fn neighbouring_columns<B: Backend>(backend: &mut B) {
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
        every_variant_is_right(backend, &mut case, &spec.to_string());
    }
}

/// −∞ in a column whose key all rows of a tile see, and something not finite in the same column that only some see.
fn two_in_a_column<B: Backend>(backend: &mut B) {
    let spec = CaseSpec {
        mask: Mask::Causal,
        ..plain(DType::Bf16, Lengths::one(100, 100), 64)
    };
    for all_see in [f32::NEG_INFINITY, f32::INFINITY] {
        for some_see in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
            let mut case = spec.build().expect("small");
            // Scores that leave every key a weight.
            case.q.fill(|| 0.0);
            case.v.set(0, 0, 0, 3, all_see);
            case.v.set(0, 0, 40, 3, some_see);
            let what = format!("{all_see} for all, {some_see} for some");
            every_variant_is_right(backend, &mut case, &what);
        }
    }
}

/// Values whose sum leaves f32 before it is divided by that of the weights.
fn large_values<B: Backend>(backend: &mut B) {
    for mask in [Mask::None, Mask::Causal] {
        for (seq_kv, value) in [(256, 1e37), (300, 3e38), (1000, -1e36)] {
            let spec = CaseSpec {
                mask,
                ..plain(DType::Bf16, Lengths::one(70, seq_kv), 64)
            };
            let mut case = spec.build().expect("small");
            case.q.fill(|| 0.0);
            case.v.fill(|| value);
            let what = format!("{spec}, values of {value}");
            every_variant_is_right(backend, &mut case, &what);
        }
    }
}

/// NaN and ∞ in K, for all rows and for some.
fn keys<B: Backend>(backend: &mut B) {
    for mask in [Mask::None, Mask::Causal] {
        let spec = CaseSpec {
            mask,
            ..plain(DType::Bf16, Lengths::one(100, 100), 64)
        };
        for (key, value) in [(0, f32::NAN), (50, f32::NAN), (50, f32::INFINITY)] {
            let mut case = spec.build().expect("small");
            case.k.set(0, 0, key, 5, value);
            case.v.set(0, 0, 70, 9, f32::NAN);
            let what = format!("{spec}, {value} in key {key}");
            every_variant_is_right(backend, &mut case, &what);
        }
    }
}

fn all<B: Backend>(mut backend: B) {
    neighbouring_columns(&mut backend);
    two_in_a_column(&mut backend);
    large_values(&mut backend);
    keys(&mut backend);
}

#[test]
fn non_finite_cpu() {
    all(Cpu::new());
}

#[test]
fn non_finite_sim() {
    all(Sim::new());
}

#[test]
fn non_finite_cuda() {
    if let Some(gpu) = gpu_or_not_run("what is not finite") {
        all(gpu);
    }
}
