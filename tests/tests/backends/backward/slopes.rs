//! The gradient by the slopes of ALiBi: inputs for which it is known, and shapes beside the ends of tiles.

use ferroflash::{AlibiSlopes, Backend, Cpu, DType, HostTensor, Mask};
use ferroflash_testing::cases::{AlibiSpec, BackwardCase, CaseSpec, InputKind, Lengths};
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::specs::plain;

use super::planted::each_variant;

const WINDOW: Mask = Mask::Window {
    left: Some(70),
    right: Some(20),
};
const MASKS: [Mask; 3] = [Mask::None, Mask::Causal, WINDOW];

fn alibi(is_batched: bool) -> Option<AlibiSpec> {
    Some(AlibiSpec {
        steepest: 0.1,
        is_batched,
    })
}

fn build(spec: &CaseSpec) -> BackwardCase {
    let mut case = spec.build_backward().unwrap();
    case.alibi_gradient = true;
    case
}

/// Runs the case by every variant, and holds it to the oracle.
fn run<B: Backend>(backend: &mut B, spec: &CaseSpec) {
    each_variant(backend, build(spec), |_, run| {
        assert!(run.d_alibi_slopes.is_some(), "{spec}");
    });
}

/// Every padded head_dim and ones between, ends of tiles in the middle and none, more queries than keys and fewer, slopes of heads
/// and of batch entries, groups.
fn shapes<B: Backend>(backend: &mut B) {
    let dims = [(64, 64), (128, 128), (256, 256), (40, 24), (72, 128)];
    for dtype in DType::ALL {
        for (number, (head_dim, head_dim_v)) in dims.into_iter().enumerate() {
            let [seq_q, seq_kv] = [[130, 150], [64, 128], [97, 1], [1, 97], [200, 65]][number];
            let lengths = Lengths::Dense {
                batch: 2,
                seq_q,
                seq_kv,
            };
            let spec = CaseSpec {
                head_dim_v,
                heads_kv: 1 + number % 2,
                group: 1 + number % 3,
                mask: MASKS[number % 3],
                kind: InputKind::ANY_DTYPE[number % 2],
                softcap: [None, Some(15.0)][number % 2],
                scale_factor: [None, Some(-0.7)][number / 2 % 2],
                alibi: alibi(number % 2 == 0),
                seed: number as u64,
                ..plain(dtype, lengths, head_dim)
            };
            run(backend, &spec);
        }
    }
}

/// Packed sequences, short and empty ones among them, each beside rows that hold what is not finite.
fn packed<B: Backend>(backend: &mut B) {
    for (number, dtype) in DType::ALL.into_iter().enumerate() {
        for kind in [InputKind::Planted, InputKind::NonFinite] {
            let lengths = vec![(70, 90), (0, 5), (3, 17), (130, 65), (9, 0)];
            let spec = CaseSpec {
                group: 2,
                kind,
                mask: MASKS[number],
                alibi: alibi(number % 2 == 0),
                ..plain(dtype, Lengths::Varlen(lengths), [128, 64, 256][number])
            };
            run(backend, &spec);
        }
    }
}

/// With keys of 0 and slopes of 0 all probabilities are alike, and without d_o dz is d_lse times them: the gradient is
/// `−d_lse · Σᵢⱼ |i − j| / n`, of which the sum is `(n² − 1) / 3`.
fn uniform<B: Backend>(backend: &mut B) {
    for dtype in DType::ALL {
        let n = 150;
        let spec = CaseSpec {
            heads_kv: 2,
            alibi: alibi(false),
            seed: 1, // with d_lse
            ..plain(dtype, Lengths::one(n, n), 64)
        };
        let mut case = build(&spec);
        case.forward.options.alibi = Some(AlibiSlopes::per_head(&[0.0; 2]).unwrap());
        case.forward.k.fill(|| 0.0);
        case.d_o.fill(|| 0.0);
        case.d_lse.as_mut().unwrap().fill(|| 0.5);
        each_variant(backend, case, |_, run| {
            let expected = -0.5 * ((n * n - 1) as f32) / 3.0;
            for head in 0..2 {
                let got = run.d_alibi_slopes.as_ref().unwrap().get(0, head, 0, 0);
                let off = (got - expected).abs();
                assert!(off < 1e-5 * expected.abs(), "{got} for {expected}");
            }
        });
    }
}

/// Keys that no query sees, though one beyond the last, or before the first, would, in a tile that has some that are seen: they may hold
/// NaN.
fn keys_beyond_all_queries<B: Backend>(backend: &mut B) {
    let from_20 = Mask::Band {
        lower: Some(20),
        upper: None,
    };
    let masks = [(Mask::CAUSAL_TOP_LEFT, 90..110), (from_20, 0..20)];
    let kernels = DType::ALL
        .into_iter()
        .flat_map(|dtype| [64, 128, 256].map(|head_dim| (dtype, head_dim)));
    for ((dtype, head_dim), (mask, unseen)) in
        kernels.flat_map(|kernel| masks.clone().map(|mask| (kernel, mask)))
    {
        let spec = CaseSpec {
            mask,
            alibi: alibi(false),
            ..plain(dtype, Lengths::one(90, 110), head_dim)
        };
        let mut case = build(&spec);
        for key in unseen {
            for dim in 0..head_dim {
                case.forward.k.set(0, 0, key, dim, f32::NAN);
                case.forward.v.set(0, 0, key, dim, f32::NAN);
            }
        }
        each_variant(backend, case, |_, run| {
            let slope = run.d_alibi_slopes.as_ref().unwrap().get(0, 0, 0, 0);
            assert!(slope.is_finite(), "{slope}");
        });
    }
}

/// Where no query sees a key, or there is none, gradients are 0, and written.
fn of_nothing<B: Backend>(backend: &mut B) {
    let one = |batch, seq_q, seq_kv| Lengths::Dense {
        batch,
        seq_q,
        seq_kv,
    };
    let hidden = Mask::Band {
        lower: Some(500),
        upper: None,
    };
    let cases = [
        (one(2, 0, 70), Mask::None),
        (one(2, 70, 0), Mask::None),
        (one(2, 0, 0), Mask::None),
        (one(0, 5, 5), Mask::None),
        (one(1, 70, 130), hidden),
        (Lengths::Varlen(vec![(0, 70), (0, 1)]), Mask::Causal),
        (Lengths::Varlen(vec![(0, 0), (0, 0)]), Mask::Causal),
        (Lengths::Varlen(vec![]), Mask::Causal),
    ];
    for (lengths, mask) in cases {
        for is_batched in [false, true] {
            for dtype in DType::ALL {
                let spec = CaseSpec {
                    mask,
                    group: 2,
                    alibi: alibi(is_batched),
                    ..plain(dtype, lengths.clone(), 64)
                };
                each_variant(backend, build(&spec), |_, run| {
                    let is_zero =
                        |slopes: &HostTensor| slopes.bytes().iter().all(|&byte| byte == 0);
                    assert!(run.d_alibi_slopes.as_ref().is_some_and(is_zero), "{spec}");
                });
            }
        }
    }
}

/// The same bits at each run, and whichever kernels compute the other gradients.
fn repeats<B: Backend>(backend: &mut B, times: usize) {
    for dtype in DType::ALL {
        let spec = CaseSpec {
            group: 3,
            mask: Mask::Causal,
            alibi: alibi(false),
            ..plain(dtype, Lengths::one(150, 170), 64)
        };
        let mut case = build(&spec);
        let first = case.run(backend).unwrap().d_alibi_slopes;
        for number in 0..times {
            case.deterministic = number % 2 == 0;
            assert_eq!(case.run(backend).unwrap().d_alibi_slopes, first);
        }
    }
}

fn all<B: Backend>(backend: &mut B) {
    keys_beyond_all_queries(backend);
    shapes(backend);
    packed(backend);
    uniform(backend);
    of_nothing(backend);
    repeats(backend, 2);
}

#[test]
fn cpu() {
    all(&mut Cpu::new());
}

ferroflash_tests::on_schedules_in_turn_and_gpu!(all, "gradients by slopes");

#[test]
fn cuda_repeats() {
    if let Some(mut gpu) = gpu_or_not_run("gradients by slopes, time after time") {
        repeats(&mut gpu, 1000);
    }
}
