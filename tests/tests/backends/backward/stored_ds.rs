//! Hopper's kernels for a head_dim beyond 128: dS passes from one to the other through the workspace, in chunks.

use ferroflash::{Backend, DType, Mask, Sim, Variant};
use ferroflash_testing::cases::{
    Arrangement, BackwardCase, BackwardRun, CaseSpec, InputKind, Lengths,
};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::specs::plain;

/// dS of 64 queries and 64 keys.
const TILE_BYTES: usize = 64 * 64 * 2;
const WINDOW: Mask = Mask::Window {
    left: Some(70),
    right: Some(20),
};

/// The head_dims that there are kernels for, and the dtypes.
const WIDTHS: [usize; 2] = [192, 256];
const DTYPES: [DType; 2] = [DType::Bf16, DType::F16];

fn spec(dtype: DType, lengths: Lengths, mask: Mask) -> CaseSpec {
    of_width(dtype, 256, lengths, mask)
}

fn of_width(dtype: DType, head_dim: usize, lengths: Lengths, mask: Mask) -> CaseSpec {
    CaseSpec {
        mask,
        ..plain(dtype, lengths, head_dim)
    }
}

/// Runs the case by these kernels with at most `limit` bytes for dS, and holds it to the oracle.
fn run<B: Backend>(backend: &mut B, spec: &CaseSpec, limit: Option<usize>) -> BackwardRun {
    run_changed(backend, spec, limit, |_| {})
}

/// As [`run`], of a case that `change` has changed.
fn run_changed<B: Backend>(
    backend: &mut B,
    spec: &CaseSpec,
    limit: Option<usize>,
    change: impl Fn(&mut BackwardCase),
) -> BackwardRun {
    let mut case = spec.build_backward().unwrap();
    change(&mut case);
    case.forward.options.force = Some(Variant::Wgmma);
    case.workspace_limit_bytes = limit;
    let kernel = backend
        .plan(&case.problem().unwrap())
        .unwrap()
        .kernel_name();
    assert!(kernel.starts_with("fa_bwd_split_dkdv"), "{kernel}");
    let run = case.run(backend).unwrap();
    let verdict = case.check(&run, Rows::All).unwrap();
    assert!(verdict.passed(), "{spec}: {verdict}");
    run
}

/// Ends of tiles in the middle and none, more queries than keys and fewer, one block and several, grouped heads.
fn shapes<B: Backend>(backend: &mut B, dtype: DType) {
    for (number, (seq_q, seq_kv)) in [(64, 64), (130, 150), (200, 70), (1, 129), (65, 1)]
        .into_iter()
        .enumerate()
    {
        for mask in [Mask::None, Mask::Causal, WINDOW] {
            let spec = CaseSpec {
                group: 1 + number % 2,
                seed: number as u64,
                kind: InputKind::ANY_DTYPE[number % 2],
                ..spec(dtype, Lengths::one(seq_q, seq_kv), mask)
            };
            run(backend, &spec, None);
        }
    }
}

/// Narrower heads, and values narrower than keys.
fn widths<B: Backend>(backend: &mut B, dtype: DType) {
    for (head_dim, head_dim_v) in [(136, 136), (192, 128), (64, 256), (256, 8)] {
        let spec = CaseSpec {
            head_dim,
            head_dim_v,
            arrangements: [Arrangement::BHSD; 3],
            ..spec(dtype, Lengths::one(70, 100), Mask::Causal)
        };
        run(backend, &spec, None);
    }
}

/// More blocks of keys, and of queries, than a ring has stages: each stage is filled again.
fn rings<B: Backend>(backend: &mut B, dtype: DType) {
    for head_dim in WIDTHS {
        for (seq_q, seq_kv) in [(40, 640), (640, 40)] {
            let spec = of_width(dtype, head_dim, Lengths::one(seq_q, seq_kv), Mask::None);
            run(backend, &spec, None);
        }
    }
}

/// Packed sequences, short and empty ones among them, of which each ends in the rows of the next.
fn packed<B: Backend>(backend: &mut B, dtype: DType) {
    for (mask, kind) in [
        (Mask::None, InputKind::Planted),
        (Mask::Causal, InputKind::NonFinite),
        (WINDOW, InputKind::Random),
    ] {
        let lengths = vec![(70, 90), (0, 5), (3, 17), (130, 65), (9, 0)];
        let spec = CaseSpec {
            group: 2,
            kind,
            ..spec(dtype, Lengths::Varlen(lengths), mask)
        };
        run(backend, &spec, None);
    }
}

/// ∞ and NaN in inputs reach the gradients of what sees them, and no others.
fn not_finite<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    let spec = CaseSpec {
        kind: InputKind::NonFinite,
        seed: 4,
        ..of_width(dtype, head_dim, Lengths::one(150, 140), WINDOW)
    };
    run(backend, &spec, None);
}

/// However the heads are cut into chunks, the bits are the same, as at every run.
fn chunks<B: Backend>(backend: &mut B, dtype: DType) {
    let two = Lengths::Dense {
        batch: 2,
        seq_q: 70,
        seq_kv: 130,
    };
    let spec = CaseSpec {
        heads_kv: 3,
        group: 2,
        ..spec(dtype, two, Mask::Causal)
    };
    let unit_bytes = 2 * 2 * 3 * TILE_BYTES;
    let whole = run(backend, &spec, None);
    for units in [4, 1] {
        let in_chunks = run(backend, &spec, Some(units * unit_bytes));
        assert_eq!(in_chunks, whole, "{units} units a chunk");
    }
}

/// Nor do the bits change where one head's dS does not fit, and is computed in parts: heads of its group, or some of their
/// queries.
fn parts<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    let packed = Lengths::Varlen(vec![(300, 110), (5, 70), (129, 130)]);
    for (lengths, mask) in [
        // The band's border goes through corners of tiles.
        (Lengths::one(322, 130), Mask::Causal),
        (Lengths::one(260, 100), WINDOW),
        (packed, Mask::None),
    ] {
        let spec = CaseSpec {
            group: 2,
            ..of_width(dtype, head_dim, lengths, mask)
        };
        let whole = run(backend, &spec, None);
        let (_, _, seq_kv) = spec.lengths.axes();
        let row_bytes = seq_kv.div_ceil(64) * TILE_BYTES;
        for rows in [4, 2] {
            let in_parts = run(backend, &spec, Some(rows * row_bytes));
            assert_eq!(in_parts, whole, "{rows} blocks of queries a part");
        }
    }
}

/// Query heads of a group whose d_o are of very different sizes, by which f16's dS is scaled: sums are rescaled between them, and
/// between parts that have one of them each.
fn sizes<B: Backend>(backend: &mut B, dtype: DType) {
    const FACTORS: [f32; 3] = [1024.0, 1.0 / 16384.0, 1.0];
    let (seq_q, seq_kv) = (70, 130);
    let spec = CaseSpec {
        group: FACTORS.len(),
        ..spec(dtype, Lengths::one(seq_q, seq_kv), Mask::Causal)
    };
    let resize = |case: &mut BackwardCase| {
        for (head, factor) in FACTORS.into_iter().enumerate() {
            for row in 0..seq_q {
                for dim in 0..spec.head_dim {
                    let value = factor * case.d_o.get(0, head, row, dim);
                    case.d_o.set(0, head, row, dim, value);
                }
            }
        }
    };
    let whole = run_changed(backend, &spec, None, resize);
    let head_bytes = 2 * 3 * TILE_BYTES;
    let in_parts = run_changed(backend, &spec, Some(head_bytes), resize);
    assert_eq!(in_parts, whole);
}

fn all<B: Backend>(backend: &mut B) {
    for dtype in DTYPES {
        shapes(backend, dtype);
        widths(backend, dtype);
        rings(backend, dtype);
        packed(backend, dtype);
        chunks(backend, dtype);
        sizes(backend, dtype);
        for head_dim in WIDTHS {
            not_finite(backend, dtype, head_dim);
            parts(backend, dtype, head_dim);
        }
    }
}

ferroflash_tests::on_schedules_in_turn_and_gpu!(all, "gradients of wide heads");

/// Where dS of a tile of dq does not fit, kernels that compute scores twice run; deterministic or not makes no difference.
#[test]
fn the_limit_decides() {
    for dtype in DTYPES {
        the_limit_decides_of(dtype);
    }
}

fn the_limit_decides_of(dtype: DType) {
    let unit_bytes = 2 * 2 * TILE_BYTES;
    let case = spec(dtype, Lengths::one(100, 128), Mask::None).build_backward();
    let mut case = case.unwrap();
    let mut kernel = |limit, deterministic| {
        case.workspace_limit_bytes = Some(limit);
        case.deterministic = deterministic;
        Sim::new()
            .plan(&case.problem().unwrap())
            .unwrap()
            .kernel_name()
    };
    for deterministic in [false, true] {
        let fits = kernel(unit_bytes, deterministic);
        let name = dtype.name();
        assert_eq!(fits, format!("fa_bwd_split_dkdv_wgmma_sm90a_{name}_hd256"));
        let too_large = kernel(unit_bytes - 1, deterministic);
        assert_eq!(too_large, format!("fa_bwd_dkdv_mma_sm80_{name}_hd256"));
    }
    case.workspace_limit_bytes = Some(unit_bytes - 1);
    case.forward.options.force = Some(Variant::Wgmma);
    let refusal = Sim::new().plan(&case.problem().unwrap()).unwrap_err();
    assert!(
        refusal.to_string().contains("workspace_limit_bytes"),
        "{refusal}"
    );
}
