//! Packed GQA: query heads of a group in the rows of one tile, on every kernel that packs.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::{Backend, DType, Layout, Mask, Variant};
use ferroflash_testing::cases::{
    self, Arrangement, CaseSpec, InputKind, Lengths, Limits, ModifierSpec,
};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::not_run::not_run;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::every_variant_is_right;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Powers of two, and others, whose last pack has rows without a head.
const GROUPS: [usize; 10] = [2, 3, 4, 5, 7, 8, 12, 16, 64, 72];
/// Head dimensions (head_dim, head_dim_v), one kernel each.
const HEAD_DIMS: [(usize, usize); 6] = [
    (64, 64),
    (96, 96),
    (128, 128),
    (192, 128),
    (192, 192),
    (256, 256),
];
const MASKS: [Mask; 4] = [
    Mask::None,
    Mask::Causal,
    Mask::Window {
        left: Some(50),
        right: Some(30),
    },
    // Rows of the first queries see nothing where there are fewer keys than queries.
    Mask::Window {
        left: Some(3),
        right: Some(0),
    },
];
/// Heads before rows, with gaps; and batch innermost of the outer axes.
const ARRANGEMENTS: [Arrangement; 3] = [
    Arrangement::BSHD,
    Arrangement {
        order: [0, 1, 2, 3],
        padding: [1, 2, 3, 8],
        reversed: [false; 4],
    },
    Arrangement {
        order: [2, 1, 0, 3],
        padding: [0, 1, 0, 0],
        reversed: [false; 4],
    },
];

/// Work counted as if every head had tiles of its own: many times the work that is done.
const LIMITS: Limits = Limits {
    work: 100_000_000,
    ..Limits::SIMULATED
};

/// Query lengths around the end of a warpgroup's rows and of a tile's.
fn query_lengths(group: usize) -> Vec<usize> {
    let of_warpgroup = 64 / group.next_power_of_two();
    let mut lengths = vec![1, 2, 7, 100, 150, 300];
    for rows in [of_warpgroup, 2 * of_warpgroup] {
        lengths.extend([rows.saturating_sub(1), rows, rows + 1]);
    }
    lengths.retain(|&length| length > 0);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Every group with every length; the other options take turns, each at its own pace.
fn cases(shift: usize) -> Vec<CaseSpec> {
    let mut cases = Vec::new();
    for group in GROUPS {
        for seq_q in query_lengths(group) {
            let number = cases.len() + shift;
            let (head_dim, head_dim_v) = HEAD_DIMS[number % HEAD_DIMS.len()];
            let seq_kv = [seq_q, seq_q + 130, 40, 257][number / 3 % 4];
            let is_varlen = (number / 2).is_multiple_of(3);
            cases.push(CaseSpec {
                lengths: match is_varlen {
                    // In addition, sequences without queries, without keys, and at a tile's end.
                    true => Lengths::Varlen(vec![(seq_q, seq_kv), (0, 9), (3, 0), (seq_q + 1, 70)]),
                    false => Lengths::Dense {
                        batch: 1 + number % 2,
                        seq_q,
                        seq_kv,
                    },
                },
                heads_kv: 1 + number / 2 % 2,
                group,
                head_dim_v,
                mask: MASKS[number / 5 % MASKS.len()],
                softcap: [None, None, Some(20.0)][number / 7 % 3],
                scale_factor: [None, None, None, Some(-1.0)][number / 4 % 4],
                kind: InputKind::ALL[number / 2 % InputKind::ALL.len()],
                arrangements: [0, 1, 2].map(|operand| match is_varlen {
                    true => Arrangement::BSHD,
                    false => ARRANGEMENTS[(number / 3 + operand) % ARRANGEMENTS.len()],
                }),
                o_layout: [Layout::Bshd, Layout::Bhsd][number / 3 % 2],
                seed: number as u64,
                ..plain(
                    [DType::Bf16, DType::F16][number % 2],
                    Lengths::one(0, 0),
                    head_dim,
                )
            });
        }
    }
    cases.retain(|case| LIMITS.allow(case));
    cases
}

/// Runs every case by the Hopper kernels and holds it to the oracle.
fn packed_launches<D: Device>(gpu: &mut Gpu<D>, shift: usize) {
    let mut packed = 0;
    let cases = cases(shift);
    for spec in &cases {
        let mut case = spec.build().expect("small");
        case.options.force = Some(Variant::Wgmma);
        let problem = case.problem().expect("valid");
        let heads = gpu.plan(&problem).expect("TMA reaches it").heads_per_tile();
        packed += u32::from(heads > 1);
        let what = format!("{spec}, {heads} heads a tile");
        let run = case.run(gpu);
        let (o, lse) = run.unwrap_or_else(|error| panic!("{what}: {error}"));
        let verdict = case.check(&o, &lse, Rows::All).expect("checked");
        assert!(verdict.passed(), "{what}: {verdict}");
    }
    println!("{packed} of {} packed", cases.len());
    assert!(packed as usize * 4 > cases.len() * 3, "{packed}");
}

fn simulated(schedule: usize) {
    let device = SimDevice::with_schedule(SCHEDULES[schedule]);
    packed_launches(&mut Sim::on(device), 5 * schedule);
}

#[test]
fn sim() {
    simulated(0);
}

/// Warps interleaved and copies finished at random: a missing barrier or wait shows.
#[test]
fn sim_interleaved() {
    simulated(1);
}

#[test]
fn sim_interleaved_otherwise() {
    simulated(2);
}

/// The property tests draw packed launches, and others.
#[test]
fn random_cases_pack() {
    let sim = Sim::new();
    let strategy =
        cases::strategy(&[DType::Bf16], Limits::SIMULATED).prop_map(CaseSpec::reachable_by_tma);
    let mut runner = TestRunner::deterministic();
    let mut cases = [0; 2];
    for _ in 0..250 {
        let spec = strategy.new_tree(&mut runner).expect("drawn").current();
        // Hopper's kernels take no modifiers.
        let spec = CaseSpec {
            modifiers: ModifierSpec::default(),
            ..spec
        };
        let mut case = spec.build().expect("small");
        case.options.force = Some(Variant::Wgmma);
        let problem = case.problem().expect("valid");
        if let Ok(plan) = sim.plan(&problem) {
            cases[usize::from(plan.heads_per_tile() > 1)] += 1;
        }
    }
    let [unpacked, packed] = cases;
    assert!(unpacked >= 40 && packed >= 40, "{cases:?}");
}

#[test]
fn cuda() {
    let what = "packed GQA";
    if let Some(mut gpu) = gpu_or_not_run(what) {
        if gpu.gpu_capabilities().compute_capability == (9, 0) {
            for shift in 0..12 {
                packed_launches(&mut gpu, shift);
            }
        } else {
            not_run(&format!("{what} on {}", gpu.device_name()));
        }
    }
}

/// Three heads in packs of four: the rows of the fourth, for which q has no head, also see NaN where a key is hidden,
/// and must not be recomputed.
#[test]
fn rows_without_a_head_are_not_repaired() {
    // One head too many is outside the allocation.
    let spec = CaseSpec {
        group: 3,
        mask: Mask::Causal,
        arrangements: [Arrangement::BHSD, Arrangement::BSHD, Arrangement::BSHD],
        ..plain(DType::Bf16, Lengths::one(5, 5), 64)
    };
    let mut case = spec.build().expect("small");
    case.v.set(0, 0, 4, 7, f32::NAN);
    let mut sim = Sim::new();
    let plan = sim.plan(&case.problem().expect("valid")).expect("eligible");
    assert_eq!(plan.heads_per_tile(), 4);
    every_variant_is_right(&mut sim, &mut case, &spec.to_string());
}
