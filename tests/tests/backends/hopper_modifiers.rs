//! Backward with modifiers on Hopper: each option alone and all at once, in the fused kernel and in the pair that repeats its bits,
//! and which kernels a plan takes.

use ferroflash::backend::sim::Sim;
use ferroflash::plan::{Capabilities, eligible};
use ferroflash::{Backend, DType, Mask, MaskTensor, Variant};
use ferroflash_testing::cases::{
    BackwardCase, CaseSpec, InputKind, Lengths, Limits, ModifierSpec, strategy,
};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::replaced::{is_backward_untouched, is_plan_untouched};
use ferroflash_tests::schedules::{SCHEDULES, counting};
use ferroflash_tests::specs::plain;
use proptest::prelude::*;

use super::backward::planted::{one_d_o, rows_before};

/// Queries and keys that end the last of three blocks of queries and of two tiles of keys in the middle.
const SEQ_Q: usize = 150;
const SEQ_KV: usize = 200;

/// Two query heads on one of keys.
fn spec(dtype: DType, head_dim: usize, modifiers: ModifierSpec) -> CaseSpec {
    CaseSpec {
        group: 2,
        modifiers,
        seed: 11,
        ..plain(dtype, Lengths::one(SEQ_Q, SEQ_KV), head_dim)
    }
}

/// The options, each with a band beside it.
pub fn options() -> Vec<(&'static str, Mask, ModifierSpec)> {
    let none = ModifierSpec::default();
    let window = Mask::Window {
        left: Some(70),
        right: Some(20),
    };
    let f16_bias = Some(([true, false, false], DType::F16));
    let dropout = Some(0.3);
    vec![
        (
            "mask",
            Mask::None,
            ModifierSpec {
                mask: Some(([true, false, false], 40)),
                ..none
            },
        ),
        (
            "blocks",
            Mask::None,
            ModifierSpec {
                blocks: Some([32, 16]),
                ..none
            },
        ),
        (
            "documents",
            Mask::Causal,
            ModifierSpec {
                documents: Some((37, true)),
                ..none
            },
        ),
        (
            "prefix",
            Mask::Causal,
            ModifierSpec {
                prefix: Some((41, true)),
                ..none
            },
        ),
        (
            // The band reaches beyond the chunk on either side.
            "chunk",
            window,
            ModifierSpec {
                chunk: Some(50),
                ..none
            },
        ),
        (
            "dilation",
            window,
            ModifierSpec {
                dilation: Some(3),
                ..none
            },
        ),
        (
            "bias",
            window,
            ModifierSpec {
                bias: f16_bias,
                ..none
            },
        ),
        (
            // Whole blocks, and more of them than a ring has stages.
            "sinks",
            Mask::None,
            ModifierSpec {
                sinks: true,
                ..none
            },
        ),
        ("dropout", Mask::None, ModifierSpec { dropout, ..none }),
        (
            "all",
            Mask::Causal,
            ModifierSpec {
                mask: Some(([false, true, false], 20)),
                bias: Some(([false, true, false], DType::F32)),
                blocks: Some([64, 64]),
                documents: Some((130, false)),
                prefix: Some((60, false)),
                chunk: Some(200),
                dilation: Some(2),
                sinks: true,
                dropout,
            },
        ),
        (
            // Kernels have code of their own for pairs that may be dropped, too.
            "chunk and dropout",
            window,
            ModifierSpec {
                chunk: Some(50),
                dropout,
                ..none
            },
        ),
    ]
}

/// `case` runs on the kernels of Hopper that take modifiers, and agrees with the oracle; returns their names.
pub fn agrees<B: Backend>(
    backend: &mut B,
    mut case: BackwardCase,
    name: &str,
) -> Vec<&'static str> {
    case.forward.options.force = Some(Variant::Wgmma);
    let plan = backend.plan(&case.problem().unwrap()).unwrap();
    let names: Vec<_> = plan.kernel_names().collect();
    if !is_backward_untouched(backend, &case) {
        let run = case.run(backend).unwrap();
        let wrong = case.check_all(&run).unwrap();
        assert_eq!(wrong, None, "{name}: {names:?}");
    }
    names
}

/// As [`agrees`], on the fused kernel, or the pair that repeats its bits.
fn agrees_by_expected_kernels<B: Backend>(backend: &mut B, case: BackwardCase, name: &str) {
    let has_bias = case.forward.options.modifiers.bias.is_some();
    let of_fused = if has_bias { "_biased" } else { "_modified" };
    let expected = match case.deterministic {
        true => [
            ("fa_bwd_dkdv_wgmma", "_modified"),
            ("fa_bwd_dq_wgmma", "_modified"),
        ],
        false => [
            ("fa_bwd_fused_wgmma", of_fused),
            ("fa_bwd_round_mma", "_modified"),
        ],
    };
    let names = agrees(backend, case, name);
    for (start, end) in expected {
        let is_it = |of: &&str| of.starts_with(start) && of.ends_with(end);
        assert!(names.iter().any(is_it), "{name}: {start} of {names:?}");
    }
}

fn options_agree<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    let several = vec![(3, 17), (SEQ_Q, SEQ_KV), (0, 5), (9, 0), (128, 64)];
    for (index, (name, mask, modifiers)) in options().into_iter().enumerate() {
        for is_packed in [false, true] {
            let mut spec = spec(dtype, head_dim, modifiers);
            spec.mask = mask;
            // Log-sum-exps of either sign.
            spec.kind = InputKind::Low;
            if is_packed {
                spec.lengths = Lengths::Varlen(several.clone());
            }
            let mut case = spec.build_backward().unwrap();
            // Both of every option, of one arrangement each.
            case.deterministic = (index % 2 == 1) == is_packed;
            agrees_by_expected_kernels(backend, case, &format!("{name}, packed: {is_packed}"));
        }
    }
}

/// More blocks of keys than a warp has lanes, which look at one each: a tile's blocks are looked at more than once. All of them are shown, by
/// states or without, or others to each head.
fn many_blocks_agree<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    let shown = (options().into_iter()).filter(|(name, ..)| matches!(*name, "dilation" | "sinks"));
    let shown = shown.map(|(name, _, modifiers)| (name, 1, modifiers));
    let of_heads = ModifierSpec {
        blocks: Some([64; 2]),
        ..ModifierSpec::default()
    };
    for (name, group, modifiers) in shown.chain([("blocks", 2, of_heads)]) {
        let spec = CaseSpec {
            group,
            lengths: Lengths::one(10, 35 * 64 + 5),
            ..spec(dtype, head_dim, modifiers)
        };
        let mut case = spec.build_backward().unwrap();
        case.deterministic = true;
        agrees_by_expected_kernels(backend, case, name);
    }
}

#[test]
fn options_agree_bf16_hd64() {
    options_agree(&mut Sim::new(), DType::Bf16, 64);
}

#[test]
fn many_blocks_agree_in_the_simulator() {
    for dtype in [DType::Bf16, DType::F16] {
        for head_dim in [64, 128] {
            many_blocks_agree(&mut Sim::new(), dtype, head_dim);
        }
    }
}

#[test]
fn options_agree_bf16_hd128() {
    options_agree(&mut Sim::new(), DType::Bf16, 128);
}

#[test]
fn options_agree_f16_hd64() {
    options_agree(&mut Sim::new(), DType::F16, 64);
}

#[test]
fn options_agree_f16_hd128() {
    options_agree(&mut Sim::new(), DType::F16, 128);
}

#[test]
fn options_agree_on_a_gpu() {
    let Some(mut gpu) = gpu_or_not_run("backward with modifiers on Hopper") else {
        return;
    };
    let Capabilities::Gpu(here) = gpu.capabilities() else {
        return;
    };
    if here.compute_capability != (9, 0) {
        return;
    }
    for dtype in [DType::Bf16, DType::F16] {
        for head_dim in [64, 128] {
            options_agree(&mut gpu, dtype, head_dim);
            many_blocks_agree(&mut gpu, dtype, head_dim);
        }
    }
}

/// A sequence without keys, and behind all queries one without any: arrays have no element for either, and none is read.
#[test]
fn sequences_without_pairs_read_nothing() {
    let lengths = vec![(3, 0), (0, 2)];
    for (dtype, head_dim) in [(DType::F16, 64), (DType::Bf16, 128)] {
        for (name, mask, modifiers) in options() {
            let mut spec = spec(dtype, head_dim, modifiers);
            spec.mask = mask;
            spec.lengths = Lengths::Varlen(lengths.clone());
            let case = spec.build_backward().unwrap();
            agrees_by_expected_kernels(&mut Sim::new(), case, name);
        }
    }
}

/// Any combination that Hopper's backward takes, in both of its forms.
#[test]
fn combinations_agree_on_a_gpu() {
    let Some(gpu) = gpu_or_not_run("combinations of modifiers on Hopper") else {
        return;
    };
    let limits = Limits {
        work: 5_000_000,
        ..Limits::FAST
    };
    let cases = strategy(&[DType::Bf16, DType::F16], limits)
        .prop_filter("modifiers", |spec| {
            spec.modifiers != ModifierSpec::default()
        })
        .prop_filter("plain scores", |spec| {
            spec.softcap.is_none() && spec.alibi.is_none()
        })
        // Whether TMA reaches o where it is drawn to lie, the problem does not say.
        .prop_map(|spec| CaseSpec { o: None, ..spec });
    agree_on(gpu, 300, &cases, |gpu, spec| {
        let mut case = spec.build_backward().unwrap();
        for deterministic in [false, true] {
            case.deterministic = deterministic;
            let problem = case.problem().unwrap();
            if problem.is_empty()
                || !eligible(&problem, &gpu.capabilities()).contains(&Variant::Wgmma)
            {
                continue;
            }
            agrees(gpu, case.clone(), &spec.to_string());
        }
        Ok(())
    });
}

/// What Hopper's backward does not take beside modifiers runs by `mma`, and what it takes is preferred.
#[test]
fn a_plan_takes_the_kernels_that_there_are() {
    let sim = Sim::new();
    let dropout = ModifierSpec {
        dropout: Some(0.1),
        ..ModifierSpec::default()
    };
    let starts_with = |spec: &CaseSpec, deterministic: bool, start: &str| {
        let mut case = spec.build_backward().unwrap();
        case.deterministic = deterministic;
        let plan = sim.plan(&case.problem().unwrap()).unwrap();
        let name = plan.kernel_name();
        assert!(
            name.starts_with(start) && name.ends_with("_modified"),
            "{start}: {name}"
        );
    };
    for (head_dim, of_bits, start) in [
        (64, false, "fa_bwd_fused_wgmma_sm90a_bf16_hd64"),
        (128, false, "fa_bwd_fused_wgmma_sm90a_bf16_hd128"),
        (104, true, "fa_bwd_dkdv_wgmma_sm90a_bf16_hd128"),
        (192, false, "fa_bwd_fused_mma_sm80_bf16_hd256"),
        (192, true, "fa_bwd_dkdv_mma_sm80_bf16_hd256"),
    ] {
        starts_with(&spec(DType::Bf16, head_dim, dropout), of_bits, start);
    }
    let capped = CaseSpec {
        softcap: Some(20.0),
        ..spec(DType::F16, 64, dropout)
    };
    starts_with(&capped, false, "fa_bwd_fused_mma_sm80_f16_hd64");
    starts_with(&capped, true, "fa_bwd_dkdv_mma_sm80_f16_hd64");
}

/// More blocks of queries than a warp asks the states of at once, most of them hidden, and some tiles of keys that no query sees.
#[test]
fn a_walk_finds_its_blocks_among_many() {
    let mut spec = spec(DType::Bf16, 64, ModifierSpec::default());
    spec.lengths = Lengths::one(2300, 300);
    spec.group = 1;
    let mut case = spec.build_backward().unwrap();
    let (rows, keys) = (2300, 300);
    // Keys of the second tile are seen by no query; the first key of the third by the last query alone.
    let shown = |row: usize, key: usize| match key {
        0..128 => row / 64 % 5 == 3 || (row, key) == (2299, 5),
        256 => row == 2299,
        _ => false,
    };
    let bytes: Vec<u8> = (0..rows * keys)
        .map(|at| u8::from(shown(at / keys, at % keys)))
        .collect();
    let mask = MaskTensor::new(&bytes, [1, 1, rows, keys]).unwrap();
    case.forward.options.modifiers.mask = Some(mask);
    for deterministic in [false, true] {
        case.deterministic = deterministic;
        agrees_by_expected_kernels(&mut Sim::new(), case.clone(), "many blocks");
    }
}

/// What is not finite where nobody sees it reaches no gradient: a key that is hidden from all queries, and a query that sees no key.
#[test]
fn hidden_rows_need_not_be_finite() {
    // Every gradient is computed again pair by pair: a few rows of a second tile are enough.
    let (rows, keys) = (80, 136);
    let (query, key) = (77, 130);
    for (dtype, head_dim, dropout) in [
        (DType::Bf16, 128, None),
        (DType::F16, 64, None),
        (DType::Bf16, 64, Some(0.2)),
        (DType::F16, 128, Some(0.2)),
    ] {
        let of_dropout = ModifierSpec {
            dropout,
            ..ModifierSpec::default()
        };
        let mut spec = spec(dtype, head_dim, of_dropout);
        spec.lengths = Lengths::one(rows, keys);
        let mut case = spec.build_backward().unwrap();
        let shown = |row, column| row != query && column != key;
        let bytes: Vec<u8> = (0..rows * keys)
            .map(|at| u8::from(shown(at / keys, at % keys)))
            .collect();
        let mask = MaskTensor::new(&bytes, [1, 1, rows, keys]).unwrap();
        case.forward.options.modifiers.mask = Some(mask);
        // One component, so that a row's other sums are finite.
        case.forward.v.set(0, 0, key, 0, f32::INFINITY);
        case.forward.k.set(0, 0, key, 0, f32::NAN);
        case.d_o.set(0, 1, query, 0, f32::NEG_INFINITY);
        for deterministic in [false, true] {
            case.deterministic = deterministic;
            agrees_by_expected_kernels(&mut Sim::new(), case.clone(), "hidden");
        }
    }
}

/// Warp instructions of the backward kernels that `case` runs on.
fn instructions(case: &BackwardCase) -> u64 {
    let mut sim = counting(SCHEDULES[0]);
    case.run(&mut sim).unwrap();
    let launches = sim.memory().take_statistics();
    let backward = launches.iter().filter(|l| l.kernel.starts_with("fa_bwd"));
    backward.map(|launch| launch.statistics.executed("")).sum()
}

/// What hides keys from all queries, in so many elements of a block that each register of a thread has some.
#[derive(Clone, Copy, Debug)]
enum Hides {
    /// A mask: every other key, and in the next block those between.
    Mask,
    /// A band that begins behind all but the last keys of a block.
    Before,
    /// A band that ends behind the first keys of a block.
    Behind,
}

impl Hides {
    const ALL: [Self; 3] = [Self::Mask, Self::Before, Self::Behind];
    const ROWS: usize = 80;
    const KEYS: usize = 150;
    /// First key that a band shows, and one past the last.
    const FIRST: usize = 62;
    const END: usize = 66;

    fn shows(self, key: usize) -> bool {
        match self {
            Self::Mask => key.is_multiple_of(2) == (key / 64).is_multiple_of(2),
            Self::Before => key >= Self::FIRST,
            Self::Behind => key < Self::END,
        }
    }

    fn case(self, spec: CaseSpec) -> BackwardCase {
        let (lower, upper) = match self {
            Self::Mask => (None, None),
            Self::Before => (Some(Self::FIRST as i32), None),
            Self::Behind => (None, Some(Self::END as i32 - Self::ROWS as i32)),
        };
        let spec = CaseSpec {
            lengths: Lengths::one(Self::ROWS, Self::KEYS),
            mask: Mask::Band { lower, upper },
            ..spec
        };
        let mut case = spec.build_backward().unwrap();
        if matches!(self, Self::Mask) {
            let bytes: Vec<u8> = (0..Self::ROWS * Self::KEYS)
                .map(|at| u8::from(self.shows(at % Self::KEYS)))
                .collect();
            let mask = MaskTensor::new(&bytes, [1, 1, Self::ROWS, Self::KEYS]).unwrap();
            case.forward.options.modifiers.mask = Some(mask);
        }
        case
    }
}

/// A value that is not finite, and hidden from all queries, makes no gradient infinite: nothing is computed again.
#[test]
fn hidden_values_cost_nothing() {
    let kernels = [DType::Bf16, DType::F16].map(|dtype| [64, 128].map(|dims| (dtype, dims)));
    for (dtype, head_dim) in kernels.into_iter().flatten() {
        for hides in Hides::ALL {
            for (drops, deterministic) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let modifiers = ModifierSpec {
                    dropout: drops.then_some(0.2),
                    sinks: true,
                    ..ModifierSpec::default()
                };
                let mut case = hides.case(spec(dtype, head_dim, modifiers));
                case.deterministic = deterministic;
                let name = format!("{dtype:?} {head_dim}, {hides:?}, {drops}, {deterministic}");
                hidden_values_of(case, hides, &name);
            }
        }
    }
}

fn hidden_values_of(finite: BackwardCase, hides: Hides, name: &str) {
    let mut infinite = finite.clone();
    for key in (0..Hides::KEYS).filter(|&key| !hides.shows(key)) {
        infinite.forward.v.set(0, 0, key, 3, f32::INFINITY);
    }
    cost_alike(finite, infinite, name);
}

/// Hopper's kernels execute as many instructions for both cases, which differ in numbers alone.
fn cost_alike(mut one: BackwardCase, mut other: BackwardCase, name: &str) {
    for case in [&mut one, &mut other] {
        case.forward.options.force = Some(Variant::Wgmma);
    }
    let plan = Sim::new().plan(&one.problem().unwrap()).unwrap();
    if is_plan_untouched(&plan) {
        return;
    }
    let [one, other] = [one, other].map(|case| instructions(&case));
    let is_alike = one.abs_diff(other) * 100 <= one;
    assert!(is_alike, "{name}: {one}, and then {other}");
}

/// The largest |d_o| of f16, by which dS is scaled, may be of any row of a head: if it is overlooked, dS is ∞, and gradients are
/// computed again.
#[test]
fn large_gradients_cost_nothing() {
    let of_ways = [64, 128].into_iter().flat_map(|head_dim| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(sinks, deterministic)| (head_dim, sinks, deterministic))
    });
    // Kernels that split have one way.
    let split = [192, 256].map(|head_dim| (head_dim, false, false));
    for (head_dim, sinks, deterministic) in of_ways.chain(split) {
        for before in rows_before() {
            // The exponent of 1 is 0, by which no sum is rescaled.
            let [small, large] = [2.0, 6e4].map(|size| {
                let mut case = one_d_o(head_dim, sinks, before, size);
                case.deterministic = deterministic;
                case
            });
            let name = format!("{head_dim}, sinks: {sinks}, {deterministic}, {before}");
            cost_alike(small, large, &name);
        }
    }
}
