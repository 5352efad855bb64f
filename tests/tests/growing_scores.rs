//! Scores that grow by more than a probability's range from one block of keys to the next.
//!
//! Kernels keep a row's reference from its first keys as long as it does; then probabilities overflow, of f16 first.

use ferroflash::backend::sim::Sim;
use ferroflash::cases::{Arrangement, CaseSpec, InputKind, Lengths};
use ferroflash::oracle::Rows;
use ferroflash::variant::eligible;
use ferroflash::{Backend, Cpu, DType, Layout, Mask};
use ferroflash_tests::gpu::gpu_or_not_run;

/// Keys whose scores stay small: more than a block of any kernel.
const SMALL_KEYS: usize = 256;
const KEYS: usize = 320;
const HEAD_DIM: usize = 64;
/// Nats by which the other keys' scores exceed them: more than f16 has room for, then more than bf16 has.
const STEPS: [f32; 3] = [10.0, 14.0, 200.0];

fn growing_scores<B: Backend>(mut backend: B) {
    for dtype in [DType::F16, DType::Bf16] {
        for (mask, step) in [Mask::None, Mask::Causal]
            .into_iter()
            .flat_map(|mask| STEPS.map(|step| (mask, step)))
        {
            let spec = CaseSpec {
                dtype,
                lengths: Lengths::one(KEYS, KEYS),
                heads_kv: 1,
                group: 1,
                head_dim: HEAD_DIM,
                head_dim_v: HEAD_DIM,
                mask,
                scale_factor: Some(1.0),
                softcap: None,
                alibi: None,
                kind: InputKind::Random,
                arrangements: [Arrangement::BSHD; 3],
                o_layout: Layout::Bshd,
                seed: 1,
            };
            let mut case = spec.build().expect("small");
            // The first dimension alone makes the step: 1 in every query; the scale divides by √head_dim.
            let large = step * (HEAD_DIM as f32).sqrt();
            for row in 0..KEYS {
                case.q.set(0, 0, row, 0, 1.0);
                let key = if row < SMALL_KEYS { 0.0 } else { large };
                case.k.set(0, 0, row, 0, key);
            }
            let problem = case.problem().expect("valid");
            for variant in eligible(&problem, &backend.capabilities()) {
                case.options.force = Some(variant);
                let (o, lse) = case.run(&mut backend).expect("it runs");
                let verdict = case.check(&o, &lse, Rows::All).expect("checked");
                assert!(verdict.passed(), "{variant}, {step} nats: {verdict}");
            }
        }
    }
}

#[test]
fn growing_scores_cpu() {
    growing_scores(Cpu::new());
}

#[test]
fn growing_scores_sim() {
    growing_scores(Sim::new());
}

#[test]
fn growing_scores_cuda() {
    if let Some(gpu) = gpu_or_not_run("growing scores") {
        growing_scores(gpu);
    }
}
