//! o and gradients of any strides, at any address: no backward kernel reads o by TMA, and dq is rounded element by element where its
//! rows are no whole vectors.

use std::collections::BTreeSet;

use ferroflash::backend::sim::Sim;
use ferroflash::plan::eligible;
use ferroflash::{Backend, DType};
use ferroflash_testing::cases::{Arrangement, CaseSpec, Lengths, ModifierSpec};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_backward_untouched;
use ferroflash_tests::specs::plain;

/// Dimensions in another order, of which one goes backwards, so that the first element is at no multiple of 16 bytes.
const SCATTERED: Arrangement = Arrangement {
    order: [3, 2, 0, 1],
    padding: [6, 3, 0, 0],
    reversed: [false, true, false, false],
};

/// Where gradients lie: where the backend puts them, or scattered.
const GRADIENTS: [Option<[Arrangement; 3]>; 2] = [None, Some([SCATTERED; 3])];

/// By each variant that can run a case, without modifiers and with dropout: the kernels that did.
fn agrees<B: Backend>(backend: &mut B) -> BTreeSet<String> {
    let mut kernels = BTreeSet::new();
    for dtype in [DType::F16, DType::Bf16] {
        for (head_dim, dropout) in [(40, None), (128, None), (256, None), (40, Some(0.2))] {
            for gradients in GRADIENTS {
                let spec = CaseSpec {
                    group: 2,
                    modifiers: ModifierSpec {
                        dropout,
                        ..ModifierSpec::default()
                    },
                    o: Some(SCATTERED),
                    ..plain(dtype, Lengths::one(70, 130), head_dim)
                };
                let mut case = spec.build_backward().unwrap();
                case.arrangements = gradients;
                let variants = eligible(&case.problem().unwrap(), &backend.capabilities());
                // Kernels with modifiers come in both orders of dq's sums.
                let orders = if dropout.is_some() {
                    &[false, true][..]
                } else {
                    &[false]
                };
                for (variant, deterministic) in variants
                    .into_iter()
                    .flat_map(|variant| orders.iter().map(move |order| (variant, *order)))
                {
                    case.forward.options.force = Some(variant);
                    case.deterministic = deterministic;
                    let kernel = backend.plan(&case.problem().unwrap()).unwrap();
                    let kernel = kernel.kernel_name();
                    if !is_backward_untouched(backend, &case) {
                        let run = case.run(backend).unwrap();
                        assert_eq!(case.check_all(&run).unwrap(), None, "{kernel}: {spec}");
                    }
                    kernels.insert(kernel);
                }
            }
        }
    }
    kernels
}

#[test]
fn sim() {
    let kernels = agrees(&mut Sim::new());
    for kernel in [
        "fa_bwd_fused_mma_sm80_f16_hd128",
        "fa_bwd_dkdv_mma_sm80_f16_hd64_modified",
        "fa_bwd_fused_mma_sm80_f16_hd64_modified",
        "fa_bwd_fused_wgmma_sm90a_bf16_hd128",
        "fa_bwd_fused_wgmma_sm90a_bf16_hd64_modified",
    ] {
        assert!(kernels.contains(kernel), "{kernel} of {kernels:?}");
    }
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("scattered gradients") {
        agrees(&mut gpu);
    }
}
