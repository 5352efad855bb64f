//! Every kernel that takes packed sequences, on lengths that end tiles in the middle, empty ones among them.

use std::collections::BTreeSet;

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::cases::{AlibiSpec, Arrangement, CaseSpec, InputKind, Lengths};
use ferroflash::oracle::Rows;
use ferroflash::{Backend, Layout, Mask, Variant};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::not_run::not_run;
use kernels_gpu::instances::{Family, INSTANCES, Instance};

const MASKS: [Mask; 4] = [
    Mask::None,
    Mask::Causal,
    Mask::Window {
        left: Some(70),
        right: Some(20),
    },
    // Rows near the start of a sequence with fewer keys than queries see nothing.
    Mask::Window {
        left: Some(3),
        right: Some(0),
    },
];

/// Sequences longer than a tile beside one shorter than a warp's rows, without queries, without keys, without both.
/// One is as long as the kernel is preferred for.
fn mixed(instance: &Instance) -> Vec<(usize, usize)> {
    let rows = (instance.block_m * instance.cluster) as usize;
    let keys = instance.block_n as usize;
    vec![
        (7, keys + 9),
        (0, 5),
        (rows.max(shortest(instance)) + 5, 2 * keys + 1),
        (3, 0),
        (0, 0),
        (65, 30),
    ]
}

/// More sequences than run at once, all shorter than a warp's rows, those of one row and of none among them.
fn tiny(instance: &Instance) -> Vec<(usize, usize)> {
    let some = [(1, 1), (0, 2), (9, 3), (2, 0), (5, 11), (1, 17), (0, 0)];
    let lengths = some.into_iter().cycle().take(3 * some.len());
    // A kernel that is preferred for long sequences gets one.
    let long = (shortest(instance) > 0).then(|| (shortest(instance), 3));
    lengths.chain(long).collect()
}

/// Query rows from which the kernel is preferred.
fn shortest(instance: &Instance) -> usize {
    instance.wgmma().map_or(0, |tile| tile.shortest_run) as usize
}

fn case_for(instance: &Instance, number: usize, lengths: Vec<(usize, usize)>) -> CaseSpec {
    let head_dim_v = instance
        .wgmma()
        .map_or(instance.head_dim, |tile| tile.head_dim_v);
    CaseSpec {
        dtype: instance.dtype,
        lengths: Lengths::Varlen(lengths),
        heads_kv: 1,
        group: 2,
        head_dim: instance.head_dim as usize,
        head_dim_v: head_dim_v as usize,
        mask: MASKS[number % MASKS.len()],
        scale_factor: None,
        softcap: [None, Some(20.0)][number / 2 % 2],
        alibi: [None, Some(0.1)][number % 2].map(|steepest| AlibiSpec {
            steepest,
            is_batched: true,
        }),
        kind: InputKind::ANY_DTYPE[number % InputKind::ANY_DTYPE.len()],
        arrangements: [Arrangement::BSHD; 3],
        o_layout: [Layout::Bshd, Layout::Bhsd][number % 2],
        seed: number as u64,
    }
}

/// Runs every such kernel of the device's families on its `lengths`; `shift` gives each the options of another.
fn every_kernel<D: Device>(
    gpu: &mut Gpu<D>,
    lengths: fn(&Instance) -> Vec<(usize, usize)>,
    shift: usize,
) {
    let mut ran = BTreeSet::new();
    let takes_packed = |instance: &&Instance| {
        D::FAMILIES.contains(&instance.family) && instance.wgmma().is_none_or(|tile| tile.varlen)
    };
    for (number, instance) in INSTANCES.iter().filter(takes_packed).enumerate() {
        // A tile for little shared memory is not chosen where a larger one fits.
        gpu.limit_shared_bytes(instance.shared_bytes);
        let spec = case_for(instance, number + shift, lengths(instance));
        let mut case = spec.build().expect("small");
        case.options.force = Some(Variant::Kernels(instance.family));
        let problem = case.problem().expect("valid");
        let Ok(plan) = gpu.plan(&problem) else {
            // Of another architecture than a real GPU's.
            continue;
        };
        let name = plan.kernel_name();
        assert_eq!(name, instance.name, "{spec} is for another kernel");
        let run = case.run(gpu);
        let (o, lse) = run.unwrap_or_else(|error| panic!("{name}: {spec}: {error}"));
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{name}: {spec}: {verdict}");
        ran.insert(instance.family.name());
    }
    for family in Family::ALL {
        if !ran.contains(family.name()) {
            let device = gpu.device_name();
            not_run(&format!(
                "packed sequences in {} kernels on {device}",
                family.name()
            ));
        }
    }
    assert!(ran.contains(Family::Simt.name()), "{ran:?}");
}

/// Warps interleaved at random: a missing barrier shows.
#[test]
fn sim() {
    every_kernel(&mut Sim::on(SimDevice::with_schedule(0x5eed)), mixed, 0);
}

#[test]
fn sim_tiny() {
    every_kernel(&mut Sim::on(SimDevice::with_schedule(0x71)), tiny, 1);
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("packed sequences") {
        for shift in 0..12 {
            every_kernel(&mut gpu, mixed, shift);
            every_kernel(&mut gpu, tiny, shift);
        }
    }
}
