//! Scores that grow by more than a probability's range from one block of keys to the next.
//!
//! Kernels keep a row's reference from the block they begin with as long as it does; then probabilities overflow, of f16
//! first. Some begin with the first block, some with the last.

use ferroflash::backend::sim::Sim;
use ferroflash::cases::{CaseSpec, Lengths};
use ferroflash::{Backend, Cpu, DType, Mask};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::every_variant_is_right;

/// Keys whose scores stay small: more than a block of any kernel.
const SMALL_KEYS: usize = 256;
const KEYS: usize = 320;
/// Nats by which the other keys' scores exceed them: more than f16 has room for, then more than bf16 has.
const STEPS: [f32; 3] = [10.0, 14.0, 200.0];

/// On `keys` keys of `head_dim` dimensions.
fn growing_scores<B: Backend>(backend: &mut B, keys: usize, head_dim: usize) {
    for dtype in [DType::F16, DType::Bf16] {
        for (mask, step, rising) in [Mask::None, Mask::Causal]
            .into_iter()
            .flat_map(|mask| STEPS.map(|step| (mask, step)))
            .flat_map(|(mask, step)| [true, false].map(|rising| (mask, step, rising)))
        {
            let spec = CaseSpec {
                mask,
                scale_factor: Some(1.0),
                ..plain(dtype, Lengths::one(keys, keys), head_dim)
            };
            let mut case = spec.build().expect("small");
            // The first dimension alone makes the step: 1 in every query; the scale divides by √head_dim.
            let large = step * (head_dim as f32).sqrt();
            for row in 0..keys {
                case.q.set(0, 0, row, 0, 1.0);
                let before = if rising { row } else { keys - 1 - row };
                let key = if before < SMALL_KEYS { 0.0 } else { large };
                case.k.set(0, 0, row, 0, key);
            }
            let what = format!("{head_dim} dims, {step} nats, rising {rising}");
            every_variant_is_right(backend, &mut case, &what);
        }
    }
}

#[test]
fn growing_scores_cpu() {
    growing_scores(&mut Cpu::new(), KEYS, 64);
}

#[test]
fn growing_scores_sim() {
    // 192 runs in clusters on Hopper.
    for head_dim in [64, 192] {
        growing_scores(&mut Sim::new(), KEYS, head_dim);
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
            growing_scores(&mut gpu, keys, head_dim);
        }
    }
}
