//! Scores that grow by more than a probability's range from one block of keys to the next.
//!
//! Kernels keep a row's reference from the block they begin with as long as it does; then probabilities overflow, of f16
//! first. Some begin with the first block, some with the last.
//!
//! Values that stay in range are nearly as hard: probabilities close to f32's limit must survive when the reference
//! catches up.

use std::slice;

use ferroflash::backend::cuda::Cuda;
use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Cpu, DType, Mask, Variant};
use ferroflash_testing::cases::{Case, CaseSpec, Lengths, ModifierSpec};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::record;
use ferroflash_tests::record::{Record, checksum};
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::specs::plain;
use ferroflash_tests::tensors::multiply;
use ferroflash_tests::verdicts::{every_variant_is_right, variant_is_right, with_every_variant};
use kernels_gpu::instances::{Family, INSTANCES, Instance, MODIFIED, Operation};

/// Keys whose scores stay small: more than a block of any kernel.
const SMALL_KEYS: usize = 256;
const KEYS: usize = 320;

/// Nats by which the other keys' scores exceed them: up to what probabilities of `dtype` have room for, and more than f32 has.
fn steps(dtype: DType) -> [f32; 3] {
    match dtype {
        DType::F16 => [10.0, 14.0, 200.0],
        _ => [14.0, 70.0, 200.0],
    }
}

/// One head of `keys` queries and keys. The first component raises the score of key number `key` by `nats(key)` over
/// the score that the others give.
fn raised(
    dtype: DType,
    mask: Mask,
    keys: usize,
    head_dim: usize,
    nats: impl Fn(usize) -> f32,
) -> Case {
    let spec = CaseSpec {
        mask,
        ..plain(dtype, Lengths::one(keys, keys), head_dim)
    };
    raised_of(&spec, keys, keys, nats)
}

/// The same of a spec's only sequence, of `rows` queries and `keys` keys.
fn raised_of(spec: &CaseSpec, rows: usize, keys: usize, nats: impl Fn(usize) -> f32) -> Case {
    let spec = CaseSpec {
        scale_factor: Some(1.0),
        ..spec.clone()
    };
    let mut case = spec.build().expect("small");
    // The first dimension alone does it: 1 in every query; the scale divides by √head_dim.
    for row in 0..rows {
        case.q.set(0, 0, row, 0, 1.0);
    }
    for key in 0..keys {
        let score = nats(key) * (spec.head_dim as f32).sqrt();
        case.k.set(0, 0, key, 0, score);
    }
    case
}

const MASKS: [Mask; 2] = [Mask::None, Mask::Causal];

const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// On `keys` keys of `head_dim` dimensions.
fn growing_scores<B: Backend>(
    backend: &mut B,
    (dtypes, masks): (&[DType], &[Mask]),
    keys: usize,
    head_dim: usize,
) {
    for &dtype in dtypes {
        for (mask, step, rising) in masks
            .iter()
            .copied()
            .flat_map(|mask| steps(dtype).map(|step| (mask, step)))
            .flat_map(|(mask, step)| [true, false].map(|rising| (mask, step, rising)))
        {
            let mut case = raised(dtype, mask, keys, head_dim, |key| {
                let before = if rising { key } else { keys - 1 - key };
                if before < SMALL_KEYS { 0.0 } else { step }
            });
            let what = format!("{head_dim} dims, {step} nats, rising {rising}");
            every_variant_is_right(backend, &mut case, &what);
        }
    }
}

#[test]
fn growing_scores_cpu() {
    growing_scores(&mut Cpu::new(), (&HALVES, &MASKS), KEYS, 64);
}

#[test]
fn growing_scores_sim() {
    // 192 runs in clusters on Hopper.
    for ((dtype, mask), head_dim) in HALVES.into_iter().zip(MASKS).zip([192, 64]) {
        growing_scores(&mut Sim::new(), (&[dtype], &[mask]), KEYS, head_dim);
    }
}

#[test]
fn growing_scores_cuda() {
    let Some(mut gpu) = gpu_or_not_run("growing scores") else {
        return;
    };
    // From 1024 rows on every Hopper kernel but that of 64 dims runs in clusters.
    for keys in [KEYS, 1100] {
        for head_dim in [64, 128, 192, 256] {
            growing_scores(&mut gpu, (&HALVES, &MASKS), keys, head_dim);
        }
    }
}

/// Keys of more blocks than any kernel has stages of K, besides those that stay small.
const MANY_KEYS: usize = 1100;
const FEW_ROWS: usize = 16;

/// A modifier that hides nothing and leaves scores as they are.
fn sinks() -> ModifierSpec {
    ModifierSpec {
        sinks: true,
        ..ModifierSpec::default()
    }
}

/// Each of Hopper's head_dims for either way to give lengths, and those of kernels with modifiers.
fn hopper_specs(rows: usize, keys: usize) -> Vec<CaseSpec> {
    let mut specs = Vec::new();
    for lengths in [
        Lengths::one(rows, keys),
        Lengths::Varlen(vec![(rows, keys)]),
    ] {
        for dtype in [DType::F16, DType::Bf16] {
            let of = |head_dim| plain(dtype, lengths.clone(), head_dim);
            let narrower = CaseSpec {
                head_dim_v: 128,
                ..of(192)
            };
            let without = [64, 96, 128, 192, 256]
                .map(of)
                .into_iter()
                .chain([narrower]);
            let beside = [64, 128, 256].map(|head_dim| CaseSpec {
                modifiers: sinks(),
                ..of(head_dim)
            });
            specs.extend(without.chain(beside));
        }
    }
    specs
}

/// Hopper's kernels keep a block's K until they know whether its scores outgrew their reference. The stage is free again
/// afterwards: later blocks need it.
fn blocks_after_growth<B: Backend>(backend: &mut B) {
    for spec in hopper_specs(FEW_ROWS, MANY_KEYS) {
        for step in steps(spec.dtype) {
            // Hopper's kernels begin with the last keys.
            let mut case = raised_of(&spec, FEW_ROWS, MANY_KEYS, |key| {
                if key >= MANY_KEYS - SMALL_KEYS {
                    0.0
                } else {
                    step
                }
            });
            let what = format!("{spec}, {step} nats");
            variant_is_right(backend, Variant::Wgmma, &mut case, &what);
        }
    }
}

/// One row of a tile, of each row that a thread has another, grows by one key, in the first of a thread's columns, so much that it is
/// computed again: its maximum is taken of all columns, and that it overflows is told from this row alone. f16's probability is too large; of
/// bf16, with large values, the output.
fn one_row_grows<B: Backend>(backend: &mut B, record: &mut Record) {
    let kernels = INSTANCES.iter().chain(MODIFIED);
    let is_wanted = |row: &&Instance| {
        let is_forward = row.operation == Operation::Forward;
        is_forward && row.family == Family::Mma && row.dtype != DType::F32
    };
    for instance in kernels.filter(is_wanted) {
        let [keys, raised_key] = [2, 1].map(|blocks| blocks * instance.block_n as usize);
        let (nats, factor) = match instance.dtype {
            DType::F16 => (14.0f32, 1.0),
            _ => (70.0, 2f32.powi(100)),
        };
        let is_modified = instance.name.ends_with("_modified");
        let spec = CaseSpec {
            group: 4,
            scale_factor: Some(1.0),
            modifiers: if is_modified {
                sinks()
            } else {
                ModifierSpec::default()
            },
            ..plain(
                instance.dtype,
                Lengths::one(32, keys),
                instance.head_dim as usize,
            )
        };
        let mut case = spec.build().expect("small");
        for (head, row) in (0..4).flat_map(|head| (0..32).map(move |row| (head, row))) {
            let is_raised = row == 8 * head;
            case.q.set(0, head, row, 0, f32::from(u8::from(is_raised)));
        }
        for key in 0..keys {
            let is_raised = f32::from(u8::from(key == raised_key));
            let score = is_raised * nats * (spec.head_dim as f32).sqrt();
            case.k.set(0, 0, key, 0, score);
        }
        multiply(&mut case.v, factor);
        case.options.force = Some(Variant::Mma);
        let plan = backend.plan(&case.problem().expect("valid"));
        let plan = plan.expect("eligible");
        assert_eq!(plan.kernel_name(), instance.name);
        if is_plan_untouched(&plan) {
            continue;
        }
        let (o, lse) = case.run(backend).expect(instance.name);
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{}: {verdict}", instance.name);
        record.take(instance.name.to_owned(), checksum([&o, &lse]));
    }
}

#[test]
fn one_row_grows_sim() {
    let mut record = record!("growing_scores-one_row_grows");
    let mut sim = Sim::new();
    one_row_grows(&mut sim, &mut record);
    record.finish(slice::from_mut(&mut sim));
}

#[test]
fn one_row_grows_cuda() {
    if let Some(mut gpu) = gpu_or_not_run("one row that grows") {
        one_row_grows(&mut gpu, &mut Record::default());
    }
}

#[test]
fn blocks_after_growth_sim() {
    blocks_after_growth(&mut Sim::new());
}

#[test]
fn blocks_after_growth_cuda() {
    let what = "blocks after growing scores, on Hopper";
    let Some(mut gpu) = gpu_or_not_run(what) else {
        return;
    };
    if gpu.gpu_capabilities().families.contains(&Family::Wgmma) {
        blocks_after_growth(&mut gpu);
    } else {
        not_run(what);
    }
}

/// Runs `test`, named `what`, on a GPU, with every head_dim that kernels are made for.
fn with_every_head_dim(what: &str, test: impl Fn(&mut Cuda, usize)) {
    let Some(mut gpu) = gpu_or_not_run(what) else {
        return;
    };
    for head_dim in [64, 96, 128, 192, 256] {
        test(&mut gpu, head_dim);
    }
}

/// Keys of the middle of three levels: a block of every kernel that keeps a reference while it can.
const PEAK_KEYS: usize = 64;
const PEAKED_KEYS: usize = SMALL_KEYS + 2 * PEAK_KEYS;
/// Nats by which the middle level exceeds the first: up to f32's range and bf16's, and over it.
const PEAKS: [f32; 6] = [70.0, 90.0, 95.0, 100.0, 105.0, 110.0];
/// Nats from the middle level down to the last.
const FALL: f32 = 9.0;

/// Nats of a key of small scores, of a few that take nearly all the range above them, or of somewhat smaller ones, whose reference is
/// farther from the first than the smallest factor f32 has.
fn peaked(key: usize, peak: f32) -> f32 {
    match key.saturating_sub(SMALL_KEYS) / PEAK_KEYS {
        _ if key < SMALL_KEYS => 0.0,
        0 => peak,
        _ => peak - FALL,
    }
}

fn peaked_scores<B: Backend>(backend: &mut B, head_dim: usize) {
    for dtype in [DType::F16, DType::Bf16] {
        for peak in PEAKS {
            let nats = |key| peaked(key, peak);
            let mut case = raised(dtype, Mask::None, PEAKED_KEYS, head_dim, nats);
            let what = format!("{head_dim} dims, {peak} nats, then {FALL} less");
            every_variant_is_right(backend, &mut case, &what);
        }
    }
}

/// The same beside modifiers, by the kernels of every GPU since Ampere.
fn peaked_scores_beside_sinks<B: Backend>(backend: &mut B) {
    for dtype in [DType::F16, DType::Bf16] {
        for (head_dim, peak) in [64, 128, 256]
            .into_iter()
            .flat_map(|head_dim| PEAKS.map(|peak| (head_dim, peak)))
        {
            let lengths = Lengths::one(FEW_ROWS, PEAKED_KEYS);
            let spec = CaseSpec {
                modifiers: sinks(),
                ..plain(dtype, lengths, head_dim)
            };
            let mut case = raised_of(&spec, FEW_ROWS, PEAKED_KEYS, |key| peaked(key, peak));
            let what = format!("{spec}, {peak} nats, then {FALL} less");
            variant_is_right(backend, Variant::Mma, &mut case, &what);
        }
    }
}

#[test]
fn peaked_scores_sim() {
    peaked_scores(&mut Sim::new(), 64);
}

#[test]
fn peaked_scores_cuda() {
    with_every_head_dim("peaked scores", peaked_scores);
}

#[test]
fn peaked_scores_beside_sinks_sim() {
    peaked_scores_beside_sinks(&mut Sim::new());
}

#[test]
fn peaked_scores_beside_sinks_cuda() {
    if let Some(mut gpu) = gpu_or_not_run("peaked scores beside sinks") {
        peaked_scores_beside_sinks(&mut gpu);
    }
}

/// Nats of the last keys, a bit and a half from one to the next: from where nothing overflows to where a probability does.
const STEPS_TO_OVERFLOW: [f32; 7] = [104.0, 105.0, 106.0, 107.0, 108.0, 109.0, 110.0];

/// Equal scores, of which the sum overflows before any of them does, and values so small that the output does not.
fn overflowing_sums<B: Backend>(backend: &mut B, head_dim: usize) {
    for nats in STEPS_TO_OVERFLOW {
        let mut case = raised(DType::Bf16, Mask::None, KEYS, head_dim, |key| {
            if key < SMALL_KEYS { 0.0 } else { nats }
        });
        for row in 0..KEYS {
            for dim in 0..head_dim {
                if dim > 0 {
                    case.k.set(0, 0, row, dim, 0.0);
                }
                let small = case.v.get(0, 0, row, dim) / 1024.0;
                case.v.set(0, 0, row, dim, small);
            }
        }
        let what = format!("{head_dim} dims, {nats} nats, small values");
        every_variant_is_right(backend, &mut case, &what);
    }
}

#[test]
fn overflowing_sums_sim() {
    overflowing_sums(&mut Sim::new(), 64);
}

#[test]
fn overflowing_sums_cuda() {
    with_every_head_dim("overflowing sums", overflowing_sums);
}

/// Keys of each of three levels of large scores: two equal ones, and a lower one that kernels may begin with.
const LEVEL_KEYS: usize = 128;

/// Scores so large that one bit of difference is below f32's resolution: differences of equal ones are still 0.
fn large_references<B: Backend>(backend: &mut B) {
    for (root, nats) in [(4096.0, 20.0), (8192.0, 64.0)] {
        for lowest in [0, 2] {
            let spec = plain(DType::Bf16, Lengths::one(16, 3 * LEVEL_KEYS), 64);
            let mut case = spec.build().expect("small");
            case.options.softmax_scale = Some(1.0);
            case.q.fill(|| 0.0);
            case.k.fill(|| 0.0);
            for row in 0..16 {
                case.q.set(0, 0, row, 0, root);
                case.q.set(0, 0, row, 1, 1.0);
            }
            let mut value = 1.0;
            for level in 0..3 {
                for key in level * LEVEL_KEYS..(level + 1) * LEVEL_KEYS {
                    case.k.set(0, 0, key, 0, root);
                    case.k
                        .set(0, 0, key, 1, if level == lowest { 0.0 } else { nats });
                    for dim in 0..64 {
                        case.v.set(0, 0, key, dim, value);
                    }
                }
                value += if level == lowest { 0.0 } else { 2.0 };
            }
            with_every_variant(backend, &mut case, |variant, _, (o, _)| {
                // Half of what each of the upper levels holds.
                assert_eq!(
                    o.get(0, 0, 0, 0),
                    2.0,
                    "{variant}: {root}², {nats} nats, level {lowest} the lowest"
                );
            });
        }
    }
}

#[test]
fn large_references_cpu() {
    large_references(&mut Cpu::new());
}

#[test]
fn large_references_sim() {
    large_references(&mut Sim::new());
}

#[test]
fn large_references_cuda() {
    if let Some(mut gpu) = gpu_or_not_run("large references") {
        large_references(&mut gpu);
    }
}
