//! The oracle passes right results and sees small faults, in every dtype.

use ferroflash::{AlibiSlopes, Cpu, CuSeqlens, DType, HostTensor, Mask};
use ferroflash_testing::cases::{AlibiSpec, Case, CaseSpec, InputKind, Lengths};
use ferroflash_testing::oracle::{Rows, Verdict};
use ferroflash_tests::specs::plain;

fn spec(dtype: DType, kind: InputKind) -> CaseSpec {
    CaseSpec {
        heads_kv: 2,
        group: 2,
        head_dim_v: 32,
        mask: Mask::Causal,
        kind,
        seed: 5,
        ..plain(dtype, Lengths::one(300, 350), 64)
    }
}

fn run(case: &Case) -> (HostTensor, HostTensor) {
    case.run(&mut Cpu::new())
        .expect("the CPU runs every problem")
}

fn verdict(case: &Case, (o, lse): &(HostTensor, HostTensor)) -> Verdict {
    case.check(o, lse, Rows::All).expect("a valid problem")
}

/// Asserts that the oracle for `case` rejects the result of `faulty`, in o and, unless the fault leaves it unchanged,
/// in lse.
#[track_caller]
fn is_caught(case: &Case, faulty: &Case) {
    let verdict = verdict(case, &run(faulty));
    assert!(verdict.o.ratio > 1.0, "{verdict}");
    assert!(verdict.lse.ratio > 1.0, "{verdict}");
    assert!(!verdict.passed());
}

#[test]
fn right_results_pass() {
    for dtype in DType::ALL {
        for kind in InputKind::ANY_DTYPE {
            let case = spec(dtype, kind).build().expect("small");
            let verdict = verdict(&case, &run(&case));
            assert!(verdict.passed(), "{dtype:?} {kind:?}: {verdict}");
            assert_eq!(verdict.rows, 4 * 300);
        }
    }
}

/// Two keys whose scores are small remainders of sums of far larger terms, in many rows.
#[test]
fn scores_that_cancel_pass() {
    for dtype in DType::ALL {
        for head_dim in [32, 128, 256] {
            let spec = CaseSpec {
                group: 256,
                mask: Mask::Causal,
                kind: InputKind::Large,
                ..plain(dtype, Lengths::one(5, 5), head_dim)
            };
            let case = spec.build().expect("small");
            let verdict = verdict(&case, &run(&case));
            assert!(verdict.passed(), "{dtype:?} {head_dim}: {verdict}");
        }
    }
}

#[test]
fn a_scale_one_percent_off_is_caught() {
    for dtype in DType::ALL {
        for kind in [InputKind::Planted, InputKind::Large] {
            let case = spec(dtype, kind).build().expect("small");
            let mut faulty = case.clone();
            faulty.options.softmax_scale = Some(1.01 / 8.0);
            is_caught(&case, &faulty);
        }
    }
}

#[test]
fn an_edge_one_key_off_is_caught() {
    let causal = |shift: i64| Mask::Window {
        left: None,
        right: u32::try_from(shift).ok(),
    };
    let window = |left, right| Mask::Window {
        left: Some(left),
        right: Some(right),
    };
    let masks = [
        (Mask::Causal, causal(1)),
        (window(9, 4), window(10, 4)),
        (window(9, 4), window(8, 4)),
        (window(9, 4), window(9, 5)),
        (window(9, 4), window(9, 3)),
    ];
    for dtype in DType::ALL {
        for (mask, wrong) in masks {
            let mut case = spec(dtype, InputKind::Planted).build().expect("small");
            case.options.mask = mask;
            let mut faulty = case.clone();
            faulty.options.mask = wrong;
            is_caught(&case, &faulty);
        }
    }
}

#[test]
fn a_forgotten_softcap_is_caught() {
    let mut case = spec(DType::Bf16, InputKind::Random).build().expect("small");
    let plain = case.clone();
    case.options.softcap = Some(15.0);
    is_caught(&case, &plain);
}

/// Three packed sequences, the first one as long as that of [`spec`]; with ALiBi.
fn packed(dtype: DType, kind: InputKind) -> CaseSpec {
    CaseSpec {
        lengths: Lengths::Varlen(vec![(300, 350), (20, 0), (200, 150)]),
        alibi: Some(AlibiSpec {
            steepest: 0.5,
            is_batched: true,
        }),
        ..spec(dtype, kind)
    }
}

#[test]
fn right_packed_results_pass() {
    for dtype in DType::ALL {
        for kind in InputKind::ANY_DTYPE {
            let case = packed(dtype, kind).build().expect("small");
            let verdict = verdict(&case, &run(&case));
            assert!(verdict.passed(), "{dtype:?} {kind:?}: {verdict}");
            assert_eq!(verdict.rows, 4 * 520);
        }
    }
}

#[test]
fn a_sequence_that_ends_one_key_off_is_caught() {
    for dtype in DType::ALL {
        for kv in [[351, 149], [349, 151]] {
            let mut case = packed(dtype, InputKind::Planted);
            case.mask = Mask::None;
            let case = case.build().expect("small");
            let mut faulty = case.clone();
            let lengths = [(300, kv[0]), (20, 0), (200, kv[1])];
            faulty.options.lengths = CuSeqlens::from_lengths(lengths).expect("short").into();
            is_caught(&case, &faulty);
        }
    }
}

#[test]
fn slopes_that_are_forgotten_mixed_up_or_a_percent_off_are_caught() {
    for dtype in DType::ALL {
        let case = packed(dtype, InputKind::Random).build().expect("small");
        let right = case.options.alibi.as_ref().expect("it has slopes");
        let all = (0..3).flat_map(|batch| (0..4).map(move |head| right.get(batch, head)));
        let all: Vec<f32> = all.collect();
        // Slopes of the neighbouring head; of the first batch entry; all slopes steeper.
        let rotated: Vec<f32> = all.iter().cycle().skip(1).take(12).copied().collect();
        let steeper: Vec<f32> = all.iter().map(|slope| slope * 1.01).collect();
        for wrong in [
            None,
            AlibiSlopes::per_batch(&rotated, 4).ok(),
            AlibiSlopes::per_head(&all[..4]).ok(),
            AlibiSlopes::per_batch(&steeper, 4).ok(),
        ] {
            let mut faulty = case.clone();
            faulty.options.alibi = wrong;
            is_caught(&case, &faulty);
        }
    }
}

#[test]
fn one_element_off_is_caught_in_its_place() {
    for dtype in DType::ALL {
        let case = spec(dtype, InputKind::Random).build().expect("small");
        let (mut o, mut lse) = run(&case);
        o.set(0, 3, 299, 31, o.get(0, 3, 299, 31) + 0.01);
        lse.set(0, 1, 7, 0, lse.get(0, 1, 7, 0) + 1e-4);
        let verdict = verdict(&case, &(o, lse));
        let place = |at: ferroflash_testing::oracle::At| (at.batch, at.head, at.row, at.dim);
        assert!(
            verdict.o.ratio > 1.0 && verdict.lse.ratio > 1.0,
            "{verdict}"
        );
        assert_eq!(place(verdict.o.at), (0, 3, 299, 31));
        assert_eq!(place(verdict.lse.at), (0, 1, 7, 0));
    }
}

#[test]
fn a_nan_where_none_belongs_is_caught() {
    let case = spec(DType::F32, InputKind::Random).build().expect("small");
    let (mut o, lse) = run(&case);
    o.set(0, 0, 0, 0, f32::NAN);
    assert!(!verdict(&case, &(o, lse)).passed());
}

#[test]
fn sampled_rows_are_as_many_as_asked_and_see_a_wrong_kernel() {
    let case = spec(DType::F32, InputKind::Random).build().expect("small");
    let rows = |count| Rows::Sampled { count, seed: 1 };
    let (o, lse) = run(&case);
    let right = case.check(&o, &lse, rows(50)).expect("valid");
    assert!(right.passed() && right.rows == 50, "{right}");
    assert_eq!(case.check(&o, &lse, rows(9999)).expect("valid").rows, 1200);
    let mut zeros = o.clone();
    zeros.fill(|| 0.0);
    assert!(!case.check(&zeros, &lse, rows(1)).expect("valid").passed());
}

#[test]
fn plain_attention_is_the_yardstick_of_quality() {
    let case = spec(DType::Bf16, InputKind::Random).build().expect("small");
    let verdict = verdict(&case, &run(&case));
    let quality = case.quality(&verdict).expect("valid");
    let quality = quality.expect("bf16 rounds");
    // f32 inside: better than rounding scores and probabilities to bf16, but not exact.
    assert!(quality > 0.05 && quality <= 1.0, "{quality}");
}

/// A key without weight may or may not carry its ∞ into the output; that does not affect how exact the rest is.
#[test]
fn an_allowed_infinity_stays_out_of_quality() {
    let mut case = plain(DType::Bf16, Lengths::one(1, 2), 8)
        .build()
        .expect("small");
    case.q.fill(|| 10.0);
    for dim in 0..8 {
        case.k.set(0, 0, 0, dim, 1.0);
        case.k.set(0, 0, 1, dim, -10.0);
        case.v.set(0, 0, 1, dim, f32::INFINITY);
    }
    let (mut o, lse) = run(&case);
    o.fill(|| f32::INFINITY);
    let verdict = verdict(&case, &(o, lse));
    assert!(verdict.passed(), "{verdict}");
    assert_eq!(verdict.max_error, 0.0);
}
