//! Lists of tiles that are cut into parts, as those of sequences are whose K and V do not fit L2 together.

use ferroflash::backend::{Device, Gpu};
use ferroflash::{DType, Mask, Variant};
use ferroflash_testing::cases::{CaseSpec, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::on_simulator_and_gpu;
use ferroflash_tests::specs::plain;
use kernels_gpu::instances::Family;
use kernels_gpu::wgmma::scheduler::L2_BYTES;

const HEAD_DIM: usize = 256;

/// More keys than fit, of which rows see few; sequences of several tiles, one, and none.
fn spec() -> CaseSpec {
    let lengths = vec![(70, 9_000), (3, 12_000), (0, 10), (150, 13_000)];
    let keys: usize = lengths.iter().map(|(_, keys)| keys).sum();
    let bytes = keys * 2 * HEAD_DIM * size_of::<u16>();
    assert!(bytes as u64 > L2_BYTES, "{bytes}");
    CaseSpec {
        // Open on the left: tiles are then listed longest first, and such lists have parts.
        mask: Mask::Band {
            lower: None,
            upper: Some(30),
        },
        ..plain(DType::Bf16, Lengths::Varlen(lengths), HEAD_DIM)
    }
}

fn every_tile_is_listed<D: Device>(gpu: &mut Gpu<D>) {
    if !gpu.gpu_capabilities().families.contains(&Family::Wgmma) {
        not_run("long lists of tiles: they are of Hopper's kernels");
        return;
    }
    let mut case = spec().build().expect("it fits");
    case.options.force = Some(Variant::Wgmma);
    let (o, lse) = case.run(gpu).expect("it runs");
    let verdict = case.check(&o, &lse, Rows::All).expect("checked");
    assert!(verdict.passed(), "{verdict}");
}

on_simulator_and_gpu!(every_tile_is_listed, "long lists of tiles");
