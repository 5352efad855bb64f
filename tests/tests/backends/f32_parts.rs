//! f32 on tensor cores, whose numbers are sums of tf32 parts: magnitudes for which the parts are not enough, and how close the sums
//! come.

use ferroflash::backend::sim::Sim;
use ferroflash::plan::{GpuCapabilities, find_instance, preferred, why_not};
use ferroflash::{Backend, DType, Mask, Plan, Precision, Variant};
use ferroflash_testing::cases::{Arrangement, Case, CaseSpec, InputKind, Lengths};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::tensors::multiply;
use ferroflash_tests::verdicts::variant_is_right;
use kernels_gpu::instances::Family;

/// Query rows of a case: more than a tile's.
const ROWS: usize = 140;
/// Largest head_dims of the kernels.
const HEAD_DIMS: [usize; 2] = [64, 128];

fn spec(head_dim: usize, mask: Mask) -> CaseSpec {
    CaseSpec {
        mask,
        ..plain(DType::F32, Lengths::one(ROWS, 150), head_dim)
    }
}

/// The spec's case with every element of q multiplied by one number, of k by another, of v by a third.
fn scaled(spec: &CaseSpec, factors: [f32; 3]) -> Case {
    let mut case = spec.build().expect("small");
    let operands = [&mut case.q, &mut case.k, &mut case.v];
    for (operand, factor) in operands.into_iter().zip(factors) {
        multiply(operand, factor);
    }
    case
}

/// Magnitudes from subnormal to f32's largest, of which products are of ordinary size.
fn magnitudes<B: Backend>(backend: &mut B) {
    for head_dim in HEAD_DIMS {
        let spec = spec(head_dim, Mask::Causal);
        for factors in [
            [1e-30, 1e30, 1.0],
            // Too large for the parts.
            [1e-37, 1e37, 1.0],
            [1e37, 1e-37, 1e-3],
            // Subnormal numbers.
            [1e-39, 1e36, 1.0],
            [1e-42, 1e-42, 1e-40],
            [1.0, 1.0, 1e37],
            [1.0, 1.0, 1e-44],
        ] {
            let what = format!("{spec}, multiplied by {factors:?}");
            variant_is_right(backend, Variant::Mma, &mut scaled(&spec, factors), &what);
        }
    }
}

/// An infinity or NaN in each operand, among numbers and among such as are too large for the parts.
fn single_elements<B: Backend>(backend: &mut B) {
    const LARGE: f32 = 2.5e38;
    for head_dim in HEAD_DIMS {
        let spec = spec(head_dim, Mask::Causal);
        for (index, value) in [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            LARGE,
            -LARGE,
            f32::MIN_POSITIVE / 8.0,
        ]
        .into_iter()
        .enumerate()
        {
            // Of keys that some rows of a tile see, and others do not.
            let (key, dim) = (60 + index, 5 + index);
            for operand in ["k", "v"] {
                let mut case = spec.build().expect("small");
                match operand {
                    "k" => case.k.set(0, 0, key, dim, value),
                    _ => case.v.set(0, 0, key, dim, value),
                }
                // Scores are in range only if the other factor is subnormal; of both signs, so that of an infinite key some rows of each
                // thread see −∞, and are right.
                if value.abs() >= LARGE {
                    for row in 0..ROWS {
                        let factor = if row % 2 == 0 { 2e-39 } else { -2e-39 };
                        case.q.set(0, 0, row, dim, factor);
                    }
                }
                let what = format!("{spec}, {value} in {operand}");
                variant_is_right(backend, Variant::Mma, &mut case, &what);
            }
        }
    }
}

/// Scores of one sign, whose partial sums are all cut off the same way: all elements of q and k are positive.
fn sums_of_one_sign<B: Backend>(backend: &mut B) {
    for head_dim in HEAD_DIMS {
        let spec = spec(head_dim, Mask::None);
        let mut case = spec.build().expect("small");
        for tensor in [&mut case.q, &mut case.k] {
            let mut state = 1u32;
            tensor.fill(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                1.0 + state as f32 / u32::MAX as f32
            });
        }
        variant_is_right(
            backend,
            Variant::Mma,
            &mut case,
            &format!("{spec}, all positive"),
        );
    }
}

/// Keys that grow, so that a block overflows and tiles are computed again.
fn growing<B: Backend>(backend: &mut B) {
    for head_dim in HEAD_DIMS {
        for kind in [
            InputKind::GrowingFast,
            InputKind::GrowingSome,
            InputKind::Scattered,
        ] {
            let spec = CaseSpec {
                kind,
                ..spec(head_dim, Mask::Causal)
            };
            let mut case = spec.build().expect("small");
            variant_is_right(backend, Variant::Mma, &mut case, &spec.to_string());
        }
    }
}

/// Caps that bend all scores and hardly any, and operands whose elements lie apart or begin between multiples of 16 bytes; once of
/// numbers that are too large for the parts.
fn bent<B: Backend>(backend: &mut B) {
    let arranged = [(0.25, Arrangement::COLUMNS), (20.0, Arrangement::ODD_ROWS)];
    for head_dim in HEAD_DIMS {
        for (softcap, arrangement) in arranged {
            let spec = CaseSpec {
                softcap: Some(softcap),
                arrangements: [arrangement; 3],
                o: Some(arrangement),
                ..spec(head_dim, Mask::Causal)
            };
            for factors in [[1.0; 3], [1e37, 1e-37, 1.0]] {
                let what = format!("{spec}, multiplied by {factors:?}");
                variant_is_right(backend, Variant::Mma, &mut scaled(&spec, factors), &what);
            }
        }
    }
}

fn all<B: Backend>(backend: &mut B) {
    magnitudes(backend);
    single_elements(backend);
    sums_of_one_sign(backend);
    growing(backend);
    bent(backend);
}

#[test]
fn sim() {
    all(&mut Sim::new());
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("f32 on tensor cores") {
        all(&mut gpu);
    }
}

#[test]
fn every_gpu_since_ampere_has_a_kernel_up_to_head_dim_128() {
    for (compute_capability, shared_bytes) in
        [((8, 0), 163 << 10), ((8, 6), 99 << 10), ((9, 0), 227 << 10)]
    {
        let gpu = GpuCapabilities::new(compute_capability, shared_bytes, 100);
        for head_dim in [1, 63, 64, 65, 128, 129, 256] {
            let case = spec(head_dim, Mask::None).build().expect("small");
            let found = find_instance(Family::Mma, &case.problem().expect("valid"), &gpu);
            let found = found.map(|instance| instance.name);
            let expected = match head_dim {
                1..=64 => Ok("fa_fwd_mma_sm80_f32_hd64"),
                65..=128 => Ok("fa_fwd_mma_sm80_f32_hd128"),
                _ => Err(format!("it has no kernel for head_dim {head_dim}")),
            };
            assert_eq!(found, expected, "{gpu:?}");
        }
    }
}

#[test]
fn ieee_precision_goes_without_tensor_cores() {
    let here = Sim::new().capabilities();
    let mut case = spec(64, Mask::None).build().expect("small");
    let problem = case.problem().expect("valid");
    assert_eq!(preferred(&problem, &here), Some(Variant::Mma));
    case.options.precision = Precision::Ieee;
    let problem = case.problem().expect("valid");
    assert_eq!(preferred(&problem, &here), Some(Variant::Simt));
    let reason = "its products are sums of tf32 parts, and precision is ieee";
    let refused = why_not(Variant::Mma, &problem, &here);
    assert_eq!(refused.as_deref(), Some(reason));
    case.options.force = Some(Variant::Mma);
    let problem = case.problem().expect("valid");
    let error = Plan::new(&problem, &here).expect_err("refused").to_string();
    assert!(error.contains(reason), "{error}");
    // The parts are f32's alone.
    let mut half = plain(DType::Bf16, Lengths::one(ROWS, 150), 64)
        .build()
        .expect("small");
    half.options.precision = Precision::Ieee;
    let problem = half.problem().expect("valid");
    assert_eq!(why_not(Variant::Mma, &problem, &here), None);
}
