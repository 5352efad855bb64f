//! fp32 where dS passes from one kernel to the other through the workspace, in chunks; and where it does not fit.

use ferroflash::{Backend, DType, Mask, Variant};
use ferroflash_testing::cases::{BackwardRun, CaseSpec, InputKind, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::specs::plain;

const WINDOW: Mask = Mask::Window {
    left: Some(70),
    right: Some(20),
};
const MASKS: [Mask; 3] = [Mask::None, Mask::Causal, WINDOW];

fn spec(lengths: Lengths, head_dim: usize, mask: Mask) -> CaseSpec {
    CaseSpec {
        mask,
        ..plain(DType::F32, lengths, head_dim)
    }
}

/// Runs the case with at most `limit` bytes for dS by a kernel whose name begins with `kernel`, and holds it to the oracle.
fn run_by<B: Backend>(
    backend: &mut B,
    spec: &CaseSpec,
    limit: Option<usize>,
    kernel: &str,
) -> BackwardRun {
    let mut case = spec.build_backward().unwrap();
    case.forward.options.force = Some(Variant::Simt);
    case.workspace_limit_bytes = limit;
    let plan = backend.plan(&case.problem().unwrap()).unwrap();
    assert!(
        plan.kernel_name().starts_with(kernel),
        "{}",
        plan.kernel_name()
    );
    let run = case.run(backend).unwrap();
    let verdict = case.check(&run, Rows::All).unwrap();
    assert!(verdict.passed(), "{spec}: {verdict}");
    run
}

fn run<B: Backend>(backend: &mut B, spec: &CaseSpec) {
    run_by(backend, spec, None, "fa_bwd_split_dkdv_simt");
}

/// Every head_dim of the table and one between, more queries than keys and fewer, ends of tiles in the middle and none.
fn shapes<B: Backend>(backend: &mut B) {
    let dims = [(64, 64), (128, 128), (256, 256), (40, 24), (72, 128)];
    for (number, (head_dim, head_dim_v)) in dims.into_iter().enumerate() {
        let lengths = [(130, 150), (256, 192), (1, 97), (200, 1)];
        for (length, (seq_q, seq_kv)) in lengths.into_iter().enumerate() {
            let spec = CaseSpec {
                head_dim_v,
                group: 1 + (number + length) % 2,
                kind: InputKind::ANY_DTYPE[length % 2],
                softcap: [None, Some(15.0)][length % 2],
                seed: number as u64,
                ..spec(
                    Lengths::one(seq_q, seq_kv),
                    head_dim,
                    MASKS[(number + length) % 3],
                )
            };
            run(backend, &spec);
        }
    }
}

/// A band without a pair: no dS is stored, and none may be read.
fn nothing_seen<B: Backend>(backend: &mut B) {
    let nothing = Mask::Band {
        lower: Some(0),
        upper: Some(-3),
    };
    for (seq_q, seq_kv) in [(4, 1), (130, 150)] {
        run(backend, &spec(Lengths::one(seq_q, seq_kv), 64, nothing));
    }
}

/// Packed sequences, short and empty ones among them, of which each ends in the rows of the next.
fn packed<B: Backend>(backend: &mut B) {
    for (number, kind) in [
        InputKind::Planted,
        InputKind::NonFinite,
        InputKind::NonFinite,
    ]
    .into_iter()
    .enumerate()
    {
        let lengths = vec![(70, 90), (0, 5), (3, 17), (130, 65), (9, 0)];
        let spec = CaseSpec {
            group: 2,
            kind,
            softcap: [None, Some(15.0)][number % 2],
            ..spec(
                Lengths::Varlen(lengths),
                [64, 128, 256][number],
                MASKS[number],
            )
        };
        run(backend, &spec);
    }
}

/// ∞ and NaN in inputs reach the gradients of what sees them, and no others.
fn not_finite<B: Backend>(backend: &mut B) {
    for (number, head_dim) in [64, 128, 256].into_iter().enumerate() {
        let spec = CaseSpec {
            kind: InputKind::NonFinite,
            seed: 3 + number as u64,
            ..spec(Lengths::one(150, 140), head_dim, MASKS[1 + number % 2])
        };
        run(backend, &spec);
    }
}

/// However the heads are cut into chunks, the bits are the same, as at every run.
fn chunks<B: Backend>(backend: &mut B) {
    let two = Lengths::Dense {
        batch: 2,
        seq_q: 70,
        seq_kv: 130,
    };
    let spec = CaseSpec {
        heads_kv: 3,
        group: 2,
        ..spec(two, 64, Mask::Causal)
    };
    // Two heads of a tile of 128 queries by three of 64 keys.
    let unit_bytes = 2 * 3 * 128 * 64 * size_of::<f32>();
    let split = "fa_bwd_split_dkdv_simt_sm80_f32_hd64";
    let whole = run_by(backend, &spec, None, split);
    for units in [6, 4, 1] {
        let in_chunks = run_by(backend, &spec, Some(units * unit_bytes), split);
        assert_eq!(in_chunks, whole, "{units} units a chunk");
    }
    let too_little = Some(unit_bytes - 1);
    run_by(backend, &spec, too_little, "fa_bwd_dkdv_simt_sm80_f32_hd64");
}

fn all<B: Backend>(backend: &mut B) {
    shapes(backend);
    nothing_seen(backend);
    packed(backend);
    not_finite(backend);
    chunks(backend);
}

ferroflash_tests::on_schedules_in_turn_and_gpu!(all, "gradients in fp32 through a stored dS");
