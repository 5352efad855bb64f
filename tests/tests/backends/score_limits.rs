//! Scores and options at the ends of f32.

use ferroflash::{Backend, Cpu, DType, HostTensor, Sim, Variant};
use ferroflash_testing::cases::{Case, CaseSpec, Lengths, dtypes_of};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::{every_variant_is_right, with_every_variant};

/// Softcaps whose reciprocal is beyond f32, with products of 0 and others.
fn smallest_softcaps<B: Backend>(mut backend: B) {
    for dtype in dtypes_of(&backend).expect("the backend runs something") {
        for softcap in [f32::from_bits(1), 1e-39, f32::MIN_POSITIVE] {
            let spec = CaseSpec {
                softcap: Some(softcap),
                ..plain(dtype, Lengths::one(20, 40), 64)
            };
            let mut case = spec.build().expect("small");
            for dim in 0..64 {
                case.q.set(0, 0, 7, dim, 0.0);
            }
            every_variant_is_right(&mut backend, &mut case, &format!("softcap {softcap:e}"));
        }
    }
}

#[test]
fn cpu_smallest_softcaps() {
    smallest_softcaps(Cpu::new());
}

#[test]
fn sim_smallest_softcaps() {
    smallest_softcaps(Sim::new());
}

#[test]
fn gpu_smallest_softcaps() {
    if let Some(gpu) = gpu_or_not_run("score_limits: smallest softcaps") {
        smallest_softcaps(gpu);
    }
}

/// Sizes of scores in nats below which kernels on a GPU are right, as `ForwardOptions` says: beyond, the exponent of a
/// row's largest score, `score · log2 e` minus its own rounded value, may leave the range of a probability.
const fn largest_score(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 1.8e8,
        _ => 1.4e9,
    }
}

const ROWS: usize = 16;
const KEYS: usize = 160;
const DIMS: usize = 64;

/// The products other than -2, exact in every dtype. Multiplied by most scales they are rounded; powers of two never
/// would be.
const LARGEST: f32 = -1.375;
const SMALLEST: f32 = -2.75;

/// Three products, times `scale`.
fn tied(dtype: DType, scale: f32) -> Case {
    let spec = plain(dtype, Lengths::one(ROWS, KEYS), DIMS);
    let mut case = spec.build().expect("small");
    case.options.softmax_scale = Some(scale);
    let product = |key: usize| match key % 12 {
        0 | 3 | 6 | 9 => LARGEST,
        1 | 5 | 10 => SMALLEST,
        _ => -2.0,
    };
    for dim in 0..DIMS {
        (0..ROWS).for_each(|row| case.q.set(0, 0, row, dim, f32::from(dim == 0)));
        (0..KEYS).for_each(|key| {
            case.k
                .set(0, 0, key, dim, product(key) * f32::from(dim == 0))
        });
    }
    case
}

/// Whether every row is the mean of the values whose score is the largest, and its lse that score and the logarithm of
/// their number.
fn is_right(case: &Case, o: &HostTensor, lse: &HostTensor) -> bool {
    let scale = f64::from(case.options.softmax_scale.expect("it was set"));
    let scores: Vec<f64> = (0..KEYS)
        .map(|key| f64::from(case.k.get(0, 0, key, 0)) * scale)
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let ties: Vec<usize> = (0..KEYS).filter(|&key| scores[key] == max).collect();
    let exact_lse = max + (ties.len() as f64).ln();
    (0..ROWS).all(|row| {
        let lse = f64::from(lse.get(0, 0, row, 0));
        let is_lse_right = (lse - exact_lse).abs() <= 2f64.powi(-20) * exact_lse.abs();
        is_lse_right
            && (0..DIMS).all(|dim| {
                let sum: f64 = ties
                    .iter()
                    .map(|&key| f64::from(case.v.get(0, 0, key, dim)))
                    .sum();
                (f64::from(o.get(0, 0, row, dim)) - sum / ties.len() as f64).abs() <= 0.02
            })
    })
}

/// Sizes of scores that are tried between a largest one and its half.
const STEPS: usize = 12;

/// The variants that are wrong, and at which scale, of some whose largest scores are between `most / 2` and `most`, of
/// either sign.
fn wrong<B: Backend>(backend: &mut B, dtype: DType, most: f32) -> Vec<(Variant, f32)> {
    let mut wrong = Vec::new();
    for step in 0..STEPS {
        let size = most * (1.0 - step as f32 / (2.0 * STEPS as f32));
        for scale in [size / -LARGEST, size / SMALLEST] {
            let mut case = tied(dtype, scale);
            with_every_variant(backend, &mut case, |variant, case, (o, lse)| {
                if !is_right(case, o, lse) {
                    wrong.push((variant, scale));
                }
            });
        }
    }
    wrong
}

fn documented_scores<B: Backend>(mut backend: B) {
    for dtype in dtypes_of(&backend).expect("the backend runs something") {
        assert_eq!(
            wrong(&mut backend, dtype, largest_score(dtype)),
            [],
            "{dtype:?}"
        );
    }
}

#[test]
fn sim_documented_scores() {
    documented_scores(Sim::new());
}

/// A kernel that got better makes this fail: then the documented limits can rise.
#[test]
fn sim_larger_scores_than_documented() {
    let mut sim = Sim::new();
    for dtype in dtypes_of(&sim).expect("the simulator runs something") {
        let wrong = wrong(&mut sim, dtype, 4.0 * largest_score(dtype));
        assert!(!wrong.is_empty(), "{dtype:?}");
    }
}

#[test]
fn gpu_documented_scores() {
    if let Some(gpu) = gpu_or_not_run("score_limits: documented scores") {
        documented_scores(gpu);
    }
}

/// The CPU subtracts before it multiplies: no score is too large.
#[test]
fn cpu_any_score() {
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        for most in [largest_score(dtype), 1e12, 1e30, 3e38] {
            assert_eq!(
                wrong(&mut Cpu::new(), dtype, most),
                [],
                "{dtype:?} {most:e}"
            );
        }
    }
}
