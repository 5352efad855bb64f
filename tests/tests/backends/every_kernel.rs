//! Every kernel of the instance table on the simulator, on shapes that end tiles in the middle.

use std::collections::BTreeSet;

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::{Backend, DType, Layout, Mask, Variant};
use ferroflash_testing::cases::{
    AlibiSpec, Arrangement, CaseSpec, InputKind, Lengths, ModifierSpec,
};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::replaced::is_plan_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use kernels_gpu::instances::{Family, INSTANCES, Instance};
use ptx_sim::{LineStatistics, Statistics};

/// Three blocks of keys, the last partial; two blocks of queries, or as many as the kernel is preferred for; two query
/// heads per head of k and v, where that is cheap; short and empty sequences in addition in packed problems.
pub fn case_for(instance: &Instance, number: usize) -> CaseSpec {
    let shortest = instance.wgmma().map_or(0, |config| config.min_rows);
    let rows = instance.block_m * instance.cluster;
    let head_dim_v = instance
        .wgmma()
        .map_or(instance.head_dim, |config| config.head_dim_v);
    let seq_q = (rows + 5).max(shortest) as usize;
    let seq_kv = (2 * instance.block_n + 9) as usize;
    let masks = [
        Mask::None,
        Mask::Causal,
        Mask::Window {
            left: Some(instance.block_n),
            right: Some(instance.block_n / 2),
        },
    ];
    CaseSpec {
        dtype: instance.dtype,
        lengths: match instance.wgmma() {
            Some(config) if config.varlen => {
                Lengths::Varlen(vec![(3, 17), (seq_q, seq_kv), (0, 5), (9, 0)])
            }
            _ => Lengths::one(seq_q, seq_kv),
        },
        heads_kv: 1,
        group: if seq_q < 1024 { 2 } else { 1 },
        head_dim: instance.head_dim as usize,
        head_dim_v: head_dim_v as usize,
        mask: masks[number % masks.len()],
        scale_factor: None,
        softcap: [None, Some(20.0)][number / masks.len() % 2],
        alibi: [None, Some(SLOPES)][number / 2 % 2],
        modifiers: ModifierSpec::default(),
        kind: InputKind::ANY_DTYPE[number % InputKind::ANY_DTYPE.len()],
        arrangements: [Arrangement::BSHD; 3],
        o_layout: Layout::Bhsd,
        o: None,
        seed: number as u64,
    }
}

const SLOPES: AlibiSpec = AlibiSpec {
    steepest: 0.1,
    is_batched: true,
};

/// The instructions with which kernels like `instance` move tiles, and which must be without bank conflicts.
fn tile_moves(instance: &Instance) -> &'static [&'static str] {
    match (instance.family, instance.dtype) {
        (Family::Mma, DType::F32) => &["cp.async.cg", "ldmatrix", "st.shared.v4", "ld.shared.v4"],
        (Family::Mma, _) => &["cp.async.cg", "ldmatrix", "st.shared.b32", "ld.shared.v4"],
        (Family::Wgmma, _) => &["stmatrix"],
        (Family::Simt, _) => &["cp.async.cg", "ld.shared.v4"],
    }
}

/// The instructions that move tiles are there, and take no more passes over the banks than they must.
fn check_memory_traffic(instance: &Instance, statistics: &Statistics) {
    let name = instance.name;
    for opcode in tile_moves(instance) {
        let of_opcode = |line: &&LineStatistics| line.opcode.starts_with(opcode);
        let mut accesses = 0;
        for line in statistics.lines.iter().filter(of_opcode) {
            let (number, text) = (line.line, &line.text);
            let conflicts = line.bank_conflicts();
            assert_eq!(conflicts, 0, "{name}: PTX line {number}: {text}");
            accesses += line.shared_requests;
        }
        assert!(accesses > 0, "{name}: no {opcode}");
    }
}

/// Runs every kernel; `shift` turns the masks and kinds of input by one kernel.
fn every_kernel(schedule: u64, shift: usize) {
    let mut sim = Sim::on(SimDevice::with_schedule(schedule));
    sim.memory().take_statistics();
    let mut ran = BTreeSet::new();
    for (number, instance) in INSTANCES.iter().enumerate() {
        // A tile for little shared memory is not chosen where a larger one fits.
        sim.limit_shared_bytes(instance.shared_bytes);
        let spec = case_for(instance, number + shift);
        let mut case = spec.build().expect("small");
        case.options.force = Variant::of_family(instance.family);
        let problem = case.problem().expect("valid");
        let plan = sim.plan(&problem).expect("eligible");
        let name = plan.kernel_name();
        assert_eq!(name, instance.name, "{spec} is for another kernel");
        ran.insert(instance.family.name());
        if is_plan_untouched(&plan) {
            continue;
        }
        let run = case.run(&mut sim);
        let (o, lse) = run.unwrap_or_else(|error| panic!("{name}: {spec}: {error}"));
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{name}: {spec}: {verdict}");
        // The launch before it, if there is one, lists tiles.
        let launches = sim.memory().take_statistics();
        let own: Vec<_> = launches
            .iter()
            .filter(|launch| launch.kernel == name)
            .collect();
        assert_eq!(own.len(), 1, "{name} ran once");
        check_memory_traffic(instance, &own[0].statistics);
    }
    assert_eq!(ran, BTreeSet::from(["mma", "simt", "wgmma"]));
}

#[test]
fn in_turn() {
    every_kernel(SCHEDULES[0], 0);
}

#[test]
fn interleaved() {
    every_kernel(SCHEDULES[1], 1);
}

#[test]
fn interleaved_otherwise() {
    every_kernel(SCHEDULES[2], 2);
}
