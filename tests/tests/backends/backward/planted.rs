//! Inputs whose gradients are known, or that faults show on.

use ferroflash::backend::sim::{Sim, SimDevice, replaced_kernel};
use ferroflash::plan::eligible;
use ferroflash::{Backend, Cpu, DType, HostTensor, Layout, Mask};
use ferroflash_testing::cases::{BackwardCase, BackwardRun, CaseSpec, Lengths, ModifierSpec};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_backward_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;
use ferroflash_tests::tensors::multiply;
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES};

/// Lengths beside the ends of tiles of every kernel.
const EDGES: [usize; 6] = [63, 64, 79, 80, 127, 128];

fn spec(dtype: DType, seq_q: usize, seq_kv: usize, mask: Mask) -> CaseSpec {
    CaseSpec {
        mask,
        seed: 2, // even: without d_lse
        ..plain(dtype, Lengths::one(seq_q, seq_kv), 64)
    }
}

/// Runs the case by every variant that can, in both ways that it has (results that repeat bit for bit, or not), holds it to
/// the oracle, and gives each result to `also`.
pub(super) fn each_variant<B: Backend>(
    backend: &mut B,
    mut case: BackwardCase,
    mut also: impl FnMut(&BackwardCase, &BackwardRun),
) {
    let problem = case.problem().unwrap();
    let variants = eligible(&problem, &backend.capabilities());
    assert!(!variants.is_empty());
    for variant in variants {
        case.forward.options.force = Some(variant);
        let mut kernels = Vec::new();
        for deterministic in [false, true] {
            case.deterministic = deterministic;
            let plan = backend.plan(&case.problem().unwrap()).unwrap();
            let kernel = plan.kernel_name();
            if kernels.contains(&kernel) || is_backward_untouched(backend, &case) {
                continue;
            }
            let run = case.run(backend).unwrap();
            let verdict = case.check(&run, Rows::All).unwrap();
            assert!(
                verdict.passed(),
                "{kernel}: {:?}: {verdict}",
                problem.mask()
            );
            also(&case, &run);
            kernels.push(kernel);
        }
    }
}

fn set_row(tensor: &mut HostTensor, head: usize, row: usize, value: impl Fn(usize) -> f32) {
    for dim in 0..tensor.spec().shape.dim {
        tensor.set(0, head, row, dim, value(dim));
    }
}

/// (a) A key that equals a query four times over, at the last visible and the first hidden place.
fn keys_at_edges<B: Backend>(backend: &mut B, edges: &[usize]) {
    let window = Mask::Window {
        left: Some(30),
        right: Some(5),
    };
    for (&row, dtype) in edges
        .iter()
        .flat_map(|row| DType::ALL.map(|dtype| (row, dtype)))
    {
        for mask in [Mask::Causal, window] {
            let mut case = spec(dtype, 130, 150, mask).build_backward().unwrap();
            let edge = row + 20 + if mask == Mask::Causal { 0 } else { 5 };
            for key in [edge, edge + 1].into_iter().filter(|&key| key < 150) {
                let q: Vec<f32> = (0..64)
                    .map(|dim| case.forward.q.get(0, 0, row, dim))
                    .collect();
                set_row(&mut case.forward.k, 0, key, |dim| 4.0 * q[dim]);
            }
            each_variant(backend, case, |_, _| {});
        }
    }
}

/// (b) d_o nonzero in one row: dv and dk are outer products, and dq is 0 elsewhere.
fn one_row_of_d_o<B: Backend>(backend: &mut B) {
    for dtype in [DType::F32, DType::Bf16] {
        for row in [0, 63, 64, 128] {
            let mut case = spec(dtype, 130, 97, Mask::None).build_backward().unwrap();
            for other in (0..130).filter(|&other| other != row) {
                set_row(&mut case.d_o, 0, other, |_| 0.0);
            }
            each_variant(backend, case, |_, run| {
                for other in (0..130).filter(|&other| other != row) {
                    assert!((0..64).all(|dim| run.dq.get(0, 0, other, dim) == 0.0));
                }
            });
        }
    }
}

/// (d) All values alike: dp equals delta, and what is left of their difference is rounding.
fn dp_equals_delta<B: Backend>(backend: &mut B) {
    for dtype in [DType::F32, DType::Bf16] {
        let mut case = spec(dtype, 70, 70, Mask::Causal).build_backward().unwrap();
        for key in 0..70 {
            set_row(&mut case.forward.v, 0, key, |dim| {
                0.25 * (dim % 5) as f32 - 0.5
            });
        }
        each_variant(backend, case, |_, run| {
            let largest = |tensor: &HostTensor| {
                tensor
                    .to_f32(Layout::Bshd)
                    .into_iter()
                    .fold(0.0, |most: f32, x| most.max(x.abs()))
            };
            assert!(largest(&run.dq) < 1e-5 && largest(&run.dk) < 2e-5);
        });
    }
}

/// (e) One key with all of the probability.
fn one_key_weighs<B: Backend>(backend: &mut B) {
    let mut case = spec(DType::Bf16, 70, 70, Mask::None)
        .build_backward()
        .unwrap();
    case.forward.q.fill(|| 1.0);
    set_row(&mut case.forward.k, 0, 33, |_| 6.0);
    each_variant(backend, case, |_, _| {});
}

/// (f) Rows that see no key beside rows that see one.
fn rows_without_keys<B: Backend>(backend: &mut B) {
    let shapes = [(130, 65), (65, 1), (3, 0), (0, 3)];
    for ((seq_q, seq_kv), dtype) in shapes
        .into_iter()
        .flat_map(|shape| DType::ALL.map(|dtype| (shape, dtype)))
    {
        let case = spec(dtype, seq_q, seq_kv, Mask::Causal)
            .build_backward()
            .unwrap();
        each_variant(backend, case, |_, run| {
            for row in 0..seq_q.saturating_sub(seq_kv) {
                assert!((0..64).all(|dim| run.dq.get(0, 0, row, dim) == 0.0));
            }
            let keys = if seq_q == 0 { seq_kv } else { 0 };
            for key in 0..keys {
                assert!((0..64).all(|dim| run.dk.get(0, 0, key, dim) == 0.0));
            }
        });
    }
}

/// Packed keys without a query, in two sequences.
fn packed_keys_without_queries<B: Backend>(backend: &mut B) {
    for dtype in DType::ALL {
        let packed = CaseSpec {
            lengths: Lengths::Varlen(vec![(0, 70), (0, 1)]),
            ..spec(dtype, 0, 0, Mask::Causal)
        };
        each_variant(backend, packed.build_backward().unwrap(), |_, run| {
            for tensor in [&run.dk, &run.dv] {
                assert!(tensor.to_f32(Layout::Bshd).iter().all(|x| *x == 0.0));
            }
        });
    }
}

/// (i), (j), (k) Gradients of very different sizes in two heads, very large and very small ones, large inputs.
fn sizes<B: Backend>(backend: &mut B) {
    for dtype in DType::ALL {
        let two_heads = CaseSpec {
            heads_kv: 2,
            ..spec(dtype, 100, 100, Mask::Causal)
        };
        let mut case = two_heads.build_backward().unwrap();
        for row in 0..100 {
            let values: Vec<f32> = (0..64).map(|dim| case.d_o.get(0, 0, row, dim)).collect();
            set_row(&mut case.d_o, 0, row, |dim| 1e4 * values[dim]);
        }
        if dtype != DType::F16 {
            each_variant(backend, case, |_, _| {});
        }
        for factor in [1024.0, 1.0 / 16384.0] {
            let mut case = spec(dtype, 100, 100, Mask::None).build_backward().unwrap();
            multiply(&mut case.d_o, factor);
            each_variant(backend, case, |_, _| {});
        }
        let mut case = spec(dtype, 100, 100, Mask::Causal)
            .build_backward()
            .unwrap();
        for (tensor, factor) in [
            (&mut case.forward.q, 5.0),
            (&mut case.forward.k, 3.0),
            (&mut case.forward.v, 3.0),
        ] {
            multiply(tensor, factor);
        }
        each_variant(backend, case, |_, _| {});
    }
}

/// The largest |d_o| of a row of f16, by which dS is scaled, may be at any of a lane's components, and negative: if one is overlooked, dS is ∞.
fn largest_d_o_is_anywhere<B: Backend>(backend: &mut B) {
    const HEADS: usize = 16;
    let spec = CaseSpec {
        heads_kv: 1,
        group: HEADS,
        seed: 2, // even: without d_lse
        ..plain(DType::F16, Lengths::one(8, 8), 128)
    };
    let mut case = spec.build_backward().unwrap();
    case.d_o.fill(|| 0.0);
    for head in 0..HEADS {
        let (half, in_half) = (head / 8, head % 8);
        case.d_o
            .set(0, head, in_half, 64 * half + 9 * in_half, -6e4);
    }
    enlarge_differences(&mut case);
    each_variant(backend, case, |_, _| {});
}

/// Makes dS of the largest |d_o| too large for f16, and gradients not.
fn enlarge_differences(case: &mut BackwardCase) {
    for (tensor, factor) in [
        (&mut case.forward.q, 0.125),
        (&mut case.forward.k, 0.125),
        (&mut case.forward.v, 16.0),
    ] {
        multiply(tensor, factor);
    }
}

/// Rows of a head before those that see keys: a lane asks for one of each 128 at once, in place of those beyond the last for that one.
pub fn rows_before() -> impl Iterator<Item = usize> {
    (0..8).map(|loads| 128 * loads)
}

/// Few queries that see keys, behind `before` others, and |d_o| of f16 that is `size` in one of them, and 0 elsewhere. By kernels for
/// modifiers with `sinks`.
pub fn one_d_o(head_dim: usize, sinks: bool, before: usize, size: f32) -> BackwardCase {
    const SEEN: usize = 8;
    let spec = CaseSpec {
        mask: Mask::Causal,
        modifiers: ModifierSpec {
            sinks,
            ..ModifierSpec::default()
        },
        seed: 2, // even: without d_lse
        ..plain(DType::F16, Lengths::one(before + SEEN, SEEN), head_dim)
    };
    let mut case = spec.build_backward().unwrap();
    case.d_o.fill(|| 0.0);
    // Not of the last four, which are asked for once more.
    case.d_o.set(0, 0, before + 3, 0, -size);
    enlarge_differences(&mut case);
    case
}

/// The largest |d_o| may be of any row of a head, too.
fn largest_d_o_is_of_any_row<B: Backend>(backend: &mut B, head_dims: &[usize], sinks: &[bool]) {
    for (&head_dim, &sinks) in
        (head_dims.iter()).flat_map(|dim| sinks.iter().map(move |s| (dim, s)))
    {
        for before in rows_before() {
            each_variant(backend, one_d_o(head_dim, sinks, before, 6e4), |_, _| {});
        }
    }
}

/// Queries before the first key, which see no chunk, and one at it, which sees the first: every element of a thread is of either.
fn queries_before_chunks<B: Backend>(backend: &mut B) {
    // A thread has two of eight neighbours, of 64 or fewer.
    let before = (0..64).filter(|query| query % 8 < 2);
    let lengths = Lengths::Varlen(before.map(|query| (query + 2, 2)).collect());
    let kernels = DType::ALL.map(|dtype| [64, 128, 256].map(|head_dim| (dtype, head_dim)));
    for ((dtype, head_dim), dropout) in
        (kernels.as_flattened().iter()).flat_map(|&kernel| [(kernel, None), (kernel, Some(0.2))])
    {
        let spec = CaseSpec {
            modifiers: ModifierSpec {
                chunk: Some(2),
                dropout,
                ..ModifierSpec::default()
            },
            seed: 2, // even: without d_lse
            ..plain(dtype, lengths.clone(), head_dim)
        };
        each_variant(backend, spec.build_backward().unwrap(), |_, _| {});
    }
}

/// (m) What follows from the probabilities' sum of 1: `Σⱼ dvⱼ = Σᵢ d_oᵢ` over rows that see a key, and with all keys alike
/// dq is 0 without d_lse and `softmax_scale · d_lse · k` with it.
fn identities<B: Backend>(backend: &mut B) {
    for seed in [2, 3] {
        let alike = CaseSpec {
            seed,
            ..spec(DType::F32, 90, 70, Mask::Causal)
        };
        let mut case = alike.build_backward().unwrap();
        for key in 0..70 {
            set_row(&mut case.forward.k, 0, key, |dim| 0.1 * (dim % 7) as f32);
        }
        each_variant(backend, case, |case, run| {
            for dim in 0..64 {
                let dv: f64 = (0..70).map(|j| f64::from(run.dv.get(0, 0, j, dim))).sum();
                let d_o: f64 = (20..90)
                    .map(|i| f64::from(case.d_o.get(0, 0, i, dim)))
                    .sum();
                assert!((dv - d_o).abs() < 1e-4, "{dv} {d_o}");
                for i in 20..90 {
                    let d_lse = case
                        .d_lse
                        .as_ref()
                        .map_or(0.0, |d_lse| d_lse.get(0, 0, i, 0));
                    let expected = d_lse * 0.125 * 0.1 * (dim % 7) as f32;
                    let dq = run.dq.get(0, 0, i, dim);
                    assert!((dq - expected).abs() < 1e-5, "{dq} {expected}");
                }
            }
        });
    }
}

/// (o) A group of query heads on one head of k and v, beside the same heads with k and v repeated.
fn grouped_heads<B: Backend>(backend: &mut B) {
    let grouped = CaseSpec {
        group: 4,
        ..spec(DType::F32, 70, 90, Mask::Causal)
    };
    let case = grouped.build_backward().unwrap();
    let mut repeated = CaseSpec {
        heads_kv: 4,
        group: 1,
        ..grouped
    }
    .build_backward()
    .unwrap();
    for head in 0..4 {
        for key in 0..90 {
            set_row(&mut repeated.forward.k, head, key, |dim| {
                case.forward.k.get(0, 0, key, dim)
            });
            set_row(&mut repeated.forward.v, head, key, |dim| {
                case.forward.v.get(0, 0, key, dim)
            });
        }
    }
    repeated.forward.q = case.forward.q.clone();
    repeated.d_o = case.d_o.clone();
    let mut of_repeated = None;
    each_variant(backend, repeated, |_, run| of_repeated = Some(run.clone()));
    // Of a kernel that is replaced alone, and is none of these, there is no run.
    let Some(of_repeated) = of_repeated else {
        assert!(replaced_kernel().is_some());
        return;
    };
    each_variant(backend, case, |_, run| {
        for (sum, parts) in [(&run.dk, &of_repeated.dk), (&run.dv, &of_repeated.dv)] {
            for key in 0..90 {
                for dim in 0..64 {
                    let expected: f32 = (0..4).map(|head| parts.get(0, head, key, dim)).sum();
                    let got = sum.get(0, 0, key, dim);
                    assert!(
                        (got - expected).abs() < 2e-5,
                        "{key} {dim}: {got} {expected}"
                    );
                }
            }
        }
    });
}

/// (p) The same bits at each run.
fn repeats<B: Backend>(backend: &mut B, times: usize) {
    for dtype in DType::ALL {
        let grouped = CaseSpec {
            group: 3,
            ..spec(dtype, 150, 170, Mask::Causal)
        };
        let mut case = grouped.build_backward().unwrap();
        case.deterministic = true;
        each_variant(backend, case.clone(), |_, _| {});
        let first = case.run(backend).unwrap();
        for _ in 1..times {
            assert_eq!(case.run(backend).unwrap(), first);
        }
    }
}

fn all<B: Backend>(backend: &mut B, edges: &[usize]) {
    keys_at_edges(backend, edges);
    one_row_of_d_o(backend);
    dp_equals_delta(backend);
    one_key_weighs(backend);
    rows_without_keys(backend);
    packed_keys_without_queries(backend);
    sizes(backend);
    largest_d_o_is_anywhere(backend);
    identities(backend);
    grouped_heads(backend);
}

#[test]
fn cpu() {
    let mut cpu = Cpu::new();
    all(&mut cpu, &EDGES);
    repeats(&mut cpu, 5);
}

#[test]
fn sim() {
    let mut sim = Sim::on(SimDevice::with_schedule(SCHEDULES[1]));
    all(&mut sim, &EDGES[..2]);
    repeats(&mut sim, 2);
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("planted gradients") {
        all(&mut gpu, &EDGES);
        largest_d_o_is_of_any_row(&mut gpu, &[64, 128, 256], &[false, true]);
        queries_before_chunks(&mut gpu);
        repeats(&mut gpu, 1000);
    }
}

#[test]
fn sim_rows_of_largest_d_o() {
    largest_d_o_is_of_any_row(&mut Sim::new(), &[64, 128, 192, 256], &[false, true]);
    // Kernels for modifiers and for few components are the same there.
    for shared_bytes in [SM80_SHARED_BYTES, SM86_SHARED_BYTES] {
        let mut sim = Sim::new();
        sim.limit_shared_bytes(shared_bytes);
        largest_d_o_is_of_any_row(&mut sim, &[128, 256], &[false]);
    }
}

#[test]
fn sim_chunks() {
    queries_before_chunks(&mut Sim::new());
}
