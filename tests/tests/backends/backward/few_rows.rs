//! Gradients of fewer rows than a block has, of two heads of a sequence: the workspace ends within what a block of each could read.

use std::collections::BTreeSet;

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, DType, Variant};
use ferroflash_testing::cases::{CaseSpec, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;

use super::agree_in_each_way;

/// Of every kernel of f32 and of `mma` that a GPU chooses, once.
fn agrees<B: Backend>(backend: &mut B) {
    let mut ran = BTreeSet::new();
    for (variant, dtype) in [
        (Variant::Simt, DType::F32),
        (Variant::Mma, DType::F16),
        (Variant::Mma, DType::Bf16),
    ] {
        for (head_dim, dropout) in [64, 128, 256]
            .into_iter()
            .flat_map(|head_dim| [None, Some(0.2)].map(|dropout| (head_dim, dropout)))
        {
            let spec = CaseSpec {
                // What keeps keys goes on to the next head's queries.
                group: 2,
                modifiers: ModifierSpec {
                    dropout,
                    ..ModifierSpec::default()
                },
                // Without gradients by other parameters, whose sums would follow in the workspace.
                seed: 3,
                ..plain(dtype, Lengths::one(3, 5), head_dim)
            };
            let mut case = spec.build_backward().unwrap();
            case.forward.options.force = Some(variant);
            agree_in_each_way(backend, (&spec, &mut case), (), &mut ran);
        }
    }
}

#[test]
fn sim() {
    agrees(&mut Sim::new());
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients of few rows") {
        agrees(&mut gpu);
    }
}
