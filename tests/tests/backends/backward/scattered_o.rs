//! o of any strides, at any address: no backward kernel reads it by TMA.

use ferroflash::backend::sim::Sim;
use ferroflash::plan::eligible;
use ferroflash::{Backend, DType, Variant};
use ferroflash_testing::cases::{Arrangement, CaseSpec, Lengths};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;

/// Dimensions in another order, of which one goes backwards, so that the first element is at no multiple of 16 bytes.
const SCATTERED: Arrangement = Arrangement {
    order: [3, 2, 0, 1],
    padding: [6, 3, 0, 0],
    reversed: [false, true, false, false],
};

/// By Hopper's kernels of each shape, where the backend has them; how many ran.
fn agrees<B: Backend>(backend: &mut B) -> usize {
    let mut ran = 0;
    for (dtype, head_dim) in [(DType::F16, 64), (DType::Bf16, 128), (DType::Bf16, 256)] {
        let spec = CaseSpec {
            group: 2,
            o: Some(SCATTERED),
            ..plain(dtype, Lengths::one(70, 130), head_dim)
        };
        let mut case = spec.build_backward().unwrap();
        let variants = eligible(&case.problem().unwrap(), &backend.capabilities());
        if !variants.contains(&Variant::Wgmma) {
            continue;
        }
        case.forward.options.force = Some(Variant::Wgmma);
        let run = case.run(backend).unwrap();
        assert_eq!(case.check_all(&run).unwrap(), None, "{spec}");
        ran += 1;
    }
    ran
}

#[test]
fn sim() {
    assert_eq!(agrees(&mut Sim::new()), 3);
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients beside a scattered o") {
        agrees(&mut gpu);
    }
}
