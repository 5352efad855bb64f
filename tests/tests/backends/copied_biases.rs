//! Biases that Hopper's forward kernels copy to shared memory: the bias alone decides, so that an element of another row or key shows.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{CaseSpec, Lengths, ModifierSpec};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;

/// Rows that end a warp's in the middle, and keys that end a block in the middle, whose biases are read one by one beside others that are
/// copied; rows of biases are 16 bytes' multiples.
const SEQ_Q: usize = 201;
const SEQ_KV: usize = 344;

/// What stands beside the bias: nothing, options by which blocks are left out, and all that is done to scores and probabilities.
fn beside() -> [(Mask, ModifierSpec); 3] {
    let none = ModifierSpec::default();
    let chunks = ModifierSpec {
        blocks: Some([64, 64]),
        sinks: true,
        ..none
    };
    let all = ModifierSpec {
        mask: Some(([false, true, false], 20)),
        dropout: Some(0.25),
        ..none
    };
    [
        (Mask::None, none),
        (Mask::None, chunks),
        (Mask::Causal, all),
    ]
}

fn agree<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    let several = vec![(3, 17), (SEQ_Q, SEQ_KV), (0, 5), (128, 320)];
    let axes = [[false; 3], [true, false, false], [true, true, false]];
    for (index, (mask, modifiers)) in beside().into_iter().enumerate() {
        for is_packed in [false, true] {
            // Of the other dtype, too: a bias need not have that of q.
            let of_bias = [DType::F16, DType::Bf16][(index + usize::from(is_packed)) % 2];
            let spec = CaseSpec {
                lengths: if is_packed {
                    Lengths::Varlen(several.clone())
                } else {
                    Lengths::one(SEQ_Q, SEQ_KV)
                },
                group: 2,
                mask,
                scale_factor: Some(if index == 2 { 1.0 } else { 0.0 }),
                modifiers: ModifierSpec {
                    bias: Some((axes[index], of_bias)),
                    ..modifiers
                },
                ..plain(dtype, Lengths::one(1, 1), head_dim)
            };
            let mut case = spec.build().unwrap();
            case.options.force = Some(Variant::Wgmma);
            let plan = backend.plan(&case.problem().unwrap()).unwrap();
            assert!(plan.kernel_name().ends_with("_biased"), "{spec}");
            if !is_plan_untouched(&plan) {
                let (o, lse) = case.run(backend).unwrap();
                let verdict = case.check(&o, &lse, Rows::All).unwrap();
                assert!(verdict.passed(), "{spec}: {verdict}");
            }
        }
    }
}

#[test]
fn sim() {
    for (seed, head_dim) in SCHEDULES.into_iter().zip([64, 128, 256]) {
        for dtype in [DType::Bf16, DType::F16] {
            // So few multiprocessors that a block has several tiles.
            let device = SimDevice::with_schedule(seed).multiprocessors(2);
            agree(&mut Sim::on(device), dtype, head_dim);
        }
    }
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("biases that are copied") {
        for (dtype, head_dim) in [DType::Bf16, DType::F16]
            .into_iter()
            .flat_map(|dtype| [64, 128, 256].map(|dim| (dtype, dim)))
        {
            agree(&mut gpu, dtype, head_dim);
        }
    }
}
