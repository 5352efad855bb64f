//! A softcap in Hopper's kernels, where each warp has two ways to bend a block of scores.

use std::collections::BTreeSet;
use std::slice;

use ferroflash::backend::sim::Sim;
use ferroflash::{Backend, Mask, Variant};
use ferroflash_testing::cases::{Case, CaseSpec, InputKind, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::record;
use ferroflash_tests::record::{Record, checksum};
use ferroflash_tests::replaced::is_plan_untouched;
use kernels_gpu::instances::{Family, INSTANCES, Instance};

use crate::every_kernel::case_for;

/// Far above the scores of random inputs, of which the largest is about 6.
const SOFTCAP: f32 = 50.0;
/// Scores that are as far below 0, in nats.
const LOW: f32 = -60.0;
/// An element of the queries whose scores are larger than the softcap.
const LARGE: f32 = 400.0;
/// The score of one query with a key of the first block, in nats: small beside the softcap, and e¹² times as probable as any key of
/// the blocks before.
const GROWN: f32 = 15.0;

/// Three whole blocks of keys, of which kernels take the last one first. One query's scores outgrow their maximum in the last block
/// that is taken. Three queries' scores are not small beside the softcap: their warps bend blocks one way, the others theirs the other.
/// A thread holds two rows of a warp, eight apart; both are among them, whether a row is a query or two heads share a tile.
fn case(instance: &Instance) -> Case {
    let config = instance.wgmma().expect("a kernel of Hopper's");
    let usual = case_for(instance, 0);
    let block_n = instance.block_n as usize;
    let keys = 3 * block_n;
    let seq_q = usual.lengths.each().map(|(seq_q, _)| seq_q).max();
    // A first row sees no key of a block and all of the one before, which needs no mask: it comes there without a maximum.
    let seq_q = seq_q.expect("a sequence").next_multiple_of(block_n) + 1;
    let long = (seq_q, keys);
    let behind = 9;
    let lengths = match config.varlen {
        true => Lengths::Varlen(vec![(3, 17), long, (behind, 0)]),
        false => Lengths::one(long.0, long.1),
    };
    let spec = CaseSpec {
        lengths,
        mask: Mask::Causal,
        softcap: Some(SOFTCAP),
        alibi: None,
        kind: InputKind::Random,
        ..usual
    };
    let mut case = spec.build().expect("small");
    // The last queries of the long sequence see all keys.
    let last = case.q.spec().shape.seq - if config.varlen { behind } else { 0 } - 1;
    for row in [last, last - 4, last - 8] {
        for dim in 0..instance.head_dim as usize {
            case.q.set(0, 0, row, dim, LARGE);
        }
    }
    let first_key = if config.varlen { 17 } else { 0 };
    // All scores of three other queries are so far below 0 that each key whose sign is lost counts.
    for key in 0..keys {
        case.k.set(0, 0, first_key + key, 0, 1.0);
    }
    for row in [last - 1, last - 5, last - 9] {
        let low = LOW * (instance.head_dim as f32).sqrt();
        case.q.set(0, 0, row, 0, low);
    }
    let key = first_key + 5;
    let scale = 1.0 / (instance.head_dim as f32).sqrt();
    for dim in 0..instance.head_dim as usize {
        case.q.set(0, 0, last - 20, dim, 1.0);
        case.k.set(0, 0, key, dim, GROWN * scale);
    }
    case.options.force = Some(Variant::Wgmma);
    case
}

/// Runs every case; returns the kernels that were chosen, and gives `record` their results'.
fn both_ways<B: Backend>(backend: &mut B, record: &mut Record) -> BTreeSet<String> {
    let mut chosen = BTreeSet::new();
    for instance in hopper_kernels() {
        let case = case(instance);
        let plan = backend
            .plan(&case.problem().expect("valid"))
            .expect("eligible");
        chosen.insert(plan.kernel_name());
        if is_plan_untouched(&plan) {
            continue;
        }
        let (o, lse) = case.run(backend).expect(instance.name);
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{}: {verdict}", plan.kernel_name());
        record.take(instance.name.to_owned(), checksum([&o, &lse]));
    }
    chosen
}

fn hopper_kernels() -> impl Iterator<Item = &'static Instance> {
    INSTANCES.iter().filter(|row| row.family == Family::Wgmma)
}

#[test]
fn sim() {
    let mut record = record!("softcaps");
    let mut sim = Sim::new();
    let chosen = both_ways(&mut sim, &mut record);
    record.finish(slice::from_mut(&mut sim));
    assert_eq!(
        chosen,
        hopper_kernels().map(|row| row.name.to_owned()).collect()
    );
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("softcaps: both ways to bend scores") {
        // A GPU's exponentials and products have bits of their own.
        both_ways(&mut gpu, &mut Record::default());
    }
}
