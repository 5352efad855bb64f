//! Forward and backward of every kernel, beside the oracle.

use std::collections::BTreeSet;

use ferroflash::backend::sim::Sim;
use ferroflash::plan::eligible;
use ferroflash::{Backend, Cpu, DType, Documents, Mask, Problem, ScoreModification, Variant};
use ferroflash_testing::cases::{
    Arrangement, BackwardCase, CaseSpec, InputKind, Lengths, ModifierSpec,
};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use kernels_gpu::config::limits::SM86_SHARED_BYTES;
use kernels_gpu::modifiers::ScoreModKernels;
use score_mod_example::{
    BlockHoles, DistanceBias, DocumentCausal, SlidingWindow, block_holes, distance_bias,
    document_causal, sliding_window,
};

/// Rows and keys in which a tile of every kernel has a border.
const SEQ: usize = 150;
const BATCH: usize = 2;
const HEADS: usize = 2;

/// Two query heads on one head of k and v.
fn case(dtype: DType, head_dim: usize, modifiers: ModifierSpec) -> BackwardCase {
    let spec = CaseSpec {
        dtype,
        lengths: Lengths::Dense {
            batch: BATCH,
            seq_q: SEQ,
            seq_kv: SEQ,
        },
        heads_kv: 1,
        group: HEADS,
        head_dim,
        head_dim_v: head_dim,
        mask: Mask::None,
        scale_factor: None,
        softcap: None,
        alibi: None,
        modifiers,
        kind: InputKind::Random,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: ferroflash::Layout::Bshd,
        o: None,
        seed: 7,
    };
    let mut case = spec.build_backward().unwrap();
    // No kernel computes it beside a score modification.
    case.bias_gradient = false;
    case
}

/// Documents of each sequence.
fn ids() -> Vec<u32> {
    let of_row = |row: usize| row % SEQ / (23 + row / SEQ * 30);
    (0..BATCH * SEQ).map(|row| of_row(row) as u32).collect()
}

/// A modification, the dtypes that it is compiled for, and its head_dim.
type Compiled = (ScoreModification, &'static [DType], usize);

/// All of them, for `heads` query heads; `ids` are those of the documents of `batch` sequences.
fn modifications(heads: usize, ids: &[u32], batch: usize) -> [Compiled; 4] {
    let table: Vec<f32> = (0..heads * 40).map(|at| (at as f32 * 1.3).sin()).collect();
    let without_f16 = &[DType::F32, DType::Bf16];
    [
        // Its derivative is negative: a score that grows loses weight.
        (
            distance_bias(&table, heads as u32, 4.0, -1.2).unwrap(),
            &DType::ALL,
            64,
        ),
        (document_causal(ids, batch as u32).unwrap(), without_f16, 64),
        (block_holes(5, 6).unwrap(), without_f16, 64),
        (sliding_window(37).unwrap(), &[DType::Bf16], 128),
    ]
}

/// Both passes of `case` on every variant that can run them agree with the oracle; returns the kernels that ran.
fn agrees<B: Backend>(backend: &mut B, mut case: BackwardCase, what: &str) -> Vec<String> {
    let mut ran = Vec::new();
    for variant in variants(backend, &case.forward.problem().unwrap(), what) {
        case.forward.options.force = Some(variant);
        let plan = backend.plan(&case.forward.problem().unwrap()).unwrap();
        ran.extend(plan.kernel_names().map(str::to_owned));
        let (o, lse) = case.forward.run(backend).unwrap();
        let verdict = case.forward.check(&o, &lse, Rows::All).unwrap();
        assert!(verdict.passed(), "{what}: {variant}: {verdict}");
    }
    case.forward.options.force = None;
    for deterministic in [false, true] {
        case.deterministic = deterministic;
        for variant in variants(backend, &case.problem().unwrap(), what) {
            case.forward.options.force = Some(variant);
            let plan = backend.plan(&case.problem().unwrap()).unwrap();
            ran.extend(plan.kernel_names().map(str::to_owned));
            let run = case.run(backend).unwrap();
            let verdict = case.check(&run, Rows::All).unwrap();
            assert!(verdict.passed(), "{what}: {variant}: {verdict}");
        }
        case.forward.options.force = None;
    }
    ran
}

/// The variants that can run `problem`, of which there is one at least.
fn variants<B: Backend>(backend: &B, problem: &Problem, what: &str) -> Vec<Variant> {
    let variants = eligible(problem, &backend.capabilities());
    assert!(!variants.is_empty(), "{what}");
    variants
}

/// Every modification alone, and beside built-in options.
fn all_agree<B: Backend>(backend: &mut B) -> BTreeSet<String> {
    let beside = ModifierSpec {
        bias: Some(([true, false, true], DType::F16)),
        prefix: Some((20, false)),
        sinks: true,
        dropout: Some(0.25),
        ..ModifierSpec::default()
    };
    let mut ran = BTreeSet::new();
    for (own, dtypes, head_dim) in modifications(HEADS, &ids(), BATCH) {
        for &dtype in dtypes {
            let what = format!("{} {dtype:?}", own.name());
            let mut alone = case(dtype, head_dim, ModifierSpec::default());
            alone.forward.options = alone.forward.options.score_mod(own.clone());
            ran.extend(agrees(backend, alone, &what));

            let mut composed = case(dtype, head_dim - 16, beside);
            let options = composed.forward.options.score_mod(own.clone());
            composed.forward.options = options.mask(Mask::Causal);
            // Hopper's backward kernels have no softcap.
            let mut capped = composed.clone();
            capped.forward.options = capped.forward.options.softcap(20.0);
            ran.extend(agrees(backend, composed, &format!("{what}, composed")));
            ran.extend(agrees(backend, capped, &format!("{what}, capped")));
        }
    }
    ran
}

#[test]
fn both_passes_agree_on_the_cpu() {
    all_agree(&mut Cpu::new());
}

#[test]
fn every_kernel_agrees_in_the_simulator() {
    let mut ran = all_agree(&mut Sim::new());
    ran.extend(packed_agree(&mut Sim::new()));
    let tables = [
        DistanceBias::INSTANCES,
        DocumentCausal::INSTANCES,
        BlockHoles::INSTANCES,
        SlidingWindow::INSTANCES,
    ];
    let missing = tables.into_iter().flatten();
    let missing: Vec<_> = missing.filter(|row| !ran.contains(row.name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // A bias alone hides nothing: nobody looks for hidden blocks.
    assert!(ran.contains(DocumentCausal::BLOCK_STATES.name));
    assert!(ran.contains(BlockHoles::BLOCK_STATES.name));
    assert!(ran.contains(SlidingWindow::BLOCK_STATES.name));
}

#[test]
fn both_passes_agree_on_a_gpu() {
    if let Some(mut gpu) = gpu_or_not_run("score modifications") {
        all_agree(&mut gpu);
    }
}

/// Lengths of packed sequences: tiles of every kernel end inside of one, and one query has many keys.
const PACKED: [(usize, usize); 3] = [(70, 70), (1, 33), (90, 20)];

/// Packed sequences, in which rows are counted from each one's first; returns the kernels that ran.
fn packed_agree<B: Backend>(backend: &mut B) -> BTreeSet<String> {
    let rows: usize = PACKED.iter().map(|&(queries, _)| queries).sum();
    let ids: Vec<u32> = (0..PACKED.len() * rows)
        .map(|row| (row % rows / 13) as u32)
        .collect();
    let mut ran = BTreeSet::new();
    for (own, dtypes, head_dim) in modifications(3, &ids, PACKED.len()) {
        for &dtype in dtypes {
            let spec = CaseSpec {
                lengths: Lengths::Varlen(PACKED.to_vec()),
                head_dim,
                ..drawn(dtype)
            };
            let mut case = spec.build_backward().unwrap();
            let options = case.forward.options.mask(Mask::Causal);
            case.forward.options = options.score_mod(own.clone());
            let what = format!("packed {} {dtype:?}", own.name());
            ran.extend(agrees(backend, case, &what));
        }
    }
    ran
}

fn drawn(dtype: DType) -> CaseSpec {
    CaseSpec {
        dtype,
        lengths: Lengths::one(SEQ, SEQ),
        heads_kv: 1,
        group: 3,
        head_dim: 64,
        head_dim_v: 40,
        mask: Mask::None,
        scale_factor: None,
        softcap: None,
        alibi: None,
        modifiers: ModifierSpec::default(),
        kind: InputKind::Random,
        arrangements: [Arrangement::BSHD; 3],
        o_layout: ferroflash::Layout::Bshd,
        o: None,
        seed: 11,
    }
}

#[test]
fn packed_sequences_agree() {
    packed_agree(&mut Cpu::new());
    if let Some(mut gpu) = gpu_or_not_run("score modifications of packed sequences") {
        packed_agree(&mut gpu);
    }
}

/// Documents that are causal, by the modification and by built-in options: the same bits, in both passes.
#[test]
fn a_built_in_option_and_its_like_give_the_same_bits() {
    for dtype in [DType::F32, DType::Bf16] {
        let mut own = case(dtype, 64, ModifierSpec::default());
        let mut built_in = own.clone();
        let modification = document_causal(&ids(), BATCH as u32).unwrap();
        own.forward.options = own.forward.options.score_mod(modification);
        let ids: Vec<i32> = ids().into_iter().map(|id| id as i32).collect();
        let documents = Documents::per_batch(&ids, &ids);
        let options = built_in.forward.options.mask(Mask::Causal);
        built_in.forward.options = options.documents(documents);
        // Bits are those of a family: Hopper's forward kernels run in the first simulator alone.
        let mut sims = [Sim::new(), Sim::new()];
        sims[1].limit_shared_bytes(SM86_SHARED_BYTES);
        for mut sim in sims {
            let [own, built_in] = [&own, &built_in].map(|case| case.run(&mut sim).unwrap());
            assert_eq!(own, built_in, "{dtype:?}");
        }
    }
}

/// Bytes of global memory that both passes of a modification ask for.
fn bytes_read(own: ScoreModification, deterministic: bool) -> u64 {
    use ferroflash::backend::Device as _;
    let mut sim = Sim::new();
    let mut case = case(DType::Bf16, 64, ModifierSpec::default());
    case.forward.options = case.forward.options.score_mod(own);
    case.deterministic = deterministic;
    sim.memory().take_statistics();
    case.run(&mut sim).unwrap();
    sim.memory().take_counts().unwrap().global_bytes
}

#[test]
fn hidden_blocks_are_not_loaded() {
    // Sums of dq are cleared and rounded whatever is hidden.
    for (deterministic, most) in [(true, 0.67), (false, 0.8)] {
        let of = |block_log2| {
            let own = block_holes(block_log2, 0).unwrap();
            bytes_read(own, deterministic) as f64
        };
        let (blocks, all) = (of(5), of(31));
        assert!(blocks < most * all, "{blocks} of {all}");
    }
}
