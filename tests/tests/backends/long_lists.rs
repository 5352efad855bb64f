//! Heads and sequences whose K and V do not fit L2 together: sections of heads, and lists of tiles that are cut into parts.

use ferroflash::backend::{Device, Gpu};
use ferroflash::{DType, Mask, Sim, Variant};
use ferroflash_testing::cases::{CaseSpec, DecodeSpec, Lengths, ModifierSpec};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::on_schedules_in_turn_and_gpu;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::variant_is_right;
use kernels_gpu::instances::Family;
use kernels_gpu::tile::l2::L2_BYTES;

const HEAD_DIM: usize = 256;

/// Open on the left: the longest tiles of several heads then come first, in sections that fit, and lists have parts.
const MASK: Mask = Mask::Band {
    lower: None,
    upper: Some(30),
};

/// More keys than fit, of which rows see few; sequences of several tiles, one, and none.
fn spec() -> CaseSpec {
    let lengths = vec![(70, 9_000), (3, 12_000), (0, 10), (150, 13_000)];
    let keys: usize = lengths.iter().map(|(_, keys)| keys).sum();
    let bytes = keys * 2 * HEAD_DIM * size_of::<u16>();
    assert!(bytes as u64 > L2_BYTES, "{bytes}");
    CaseSpec {
        mask: MASK,
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
    of_caches(gpu);
}

/// The same of sequences of a cache, of which all have as many queries, or each its own.
fn of_caches<D: Device>(gpu: &mut Gpu<D>) {
    for queries in [None, Some(vec![70, 3, 0, 20])] {
        let spec = DecodeSpec {
            seq_q: 40,
            queries,
            page_size: Some(256),
            heads_kv: 1,
            group: 1,
            head_dim: HEAD_DIM,
            head_dim_v: HEAD_DIM,
            ..DecodeSpec::plain(&[9_000, 12_000, 80, 13_000])
        };
        let mut case = spec.build().expect("it fits");
        case.options.force = Some(Variant::Wgmma);
        let (o, lse) = case.run(gpu).expect("it runs");
        assert_eq!(case.check_all(&o, &lse).expect("checked"), None, "{spec}");
    }
}

on_schedules_in_turn_and_gpu!(every_tile_is_listed, "long lists of tiles");

/// Three heads of K and V in sections of two, so that the last has fewer, by kernels for one length and for several, with modifiers
/// and without.
#[test]
fn the_last_section_of_heads_has_fewer() {
    const HEADS: usize = 3;
    let rows = 300;
    let sinks = ModifierSpec {
        sinks: true,
        ..ModifierSpec::default()
    };
    let mut sim = Sim::new();
    for dtype in [DType::Bf16, DType::F16] {
        for head_dim in [64, 128, 256] {
            let keys = L2_BYTES as usize * 9 / 8 / HEADS / (2 * head_dim * size_of::<u16>());
            let lengths = [
                Lengths::one(rows, keys),
                Lengths::Varlen(vec![(rows, keys), (3, 17)]),
            ];
            // A second dtype changes nothing of it; kernels without modifiers are left out there.
            let without = (dtype == DType::Bf16).then(ModifierSpec::default);
            let modifiers = || without.into_iter().chain([sinks]);
            for (lengths, modifiers) in lengths
                .iter()
                .flat_map(|l| modifiers().map(move |m| (l, m)))
            {
                let spec = CaseSpec {
                    mask: MASK,
                    heads_kv: HEADS,
                    modifiers,
                    ..plain(dtype, lengths.clone(), head_dim)
                };
                let mut case = spec.build().expect("it fits");
                variant_is_right(&mut sim, Variant::Wgmma, &mut case, &spec.to_string());
            }
        }
    }
}
