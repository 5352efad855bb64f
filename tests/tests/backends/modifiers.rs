//! Masks, biases, sinks and dropout: planted inputs, refusals, and that dropout is the same everywhere.

use ferroflash::backend::sim::Sim;
use ferroflash::plan::eligible;
use ferroflash::{
    Backend, BiasTensor, BlockMask, Cpu, DType, Documents, Dropout, Error, ForwardOptions,
    HostTensor, Layout, Mask, MaskTensor, Modifiers, PrefixLengths, Problem, Shape, Sinks,
    TensorSpec, Variant, backward, forward,
};
use ferroflash_testing::cases::{
    AlibiSpec, BackwardCase, Case, CaseSpec, Lengths, Limits, ModifierSpec,
};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::random_cases::agree_on;
use ferroflash_tests::replaced::{is_backward_untouched, is_case_untouched, is_plan_untouched};
use ferroflash_tests::specs::plain;
use ferroflash_tests::verdicts::variant_is_right;
use kernels_gpu::config::limits::SM86_SHARED_BYTES;
use kernels_gpu::instances::MODIFIED;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Rows and keys of a case that a tile of every kernel has a border in.
const SEQ: usize = 150;

/// A case of one batch entry, two query heads on one.
fn spec(dtype: DType, head_dim: usize, modifiers: ModifierSpec) -> CaseSpec {
    CaseSpec {
        group: 2,
        modifiers,
        seed: 7,
        ..plain(dtype, Lengths::one(SEQ, SEQ), head_dim)
    }
}

/// Options of which each hides pairs, and what they are called.
fn hiding() -> Vec<(&'static str, Mask, Modifiers)> {
    let mut all = Vec::new();
    let mut add = |name, mask, edit: &dyn Fn(&mut Modifiers)| {
        let mut modifiers = Modifiers::default();
        edit(&mut modifiers);
        all.push((name, mask, modifiers));
    };
    let shown = |query: usize, key: usize| u8::from(key <= query + 3 && key % 7 != 2);
    let bytes: Vec<u8> = (0..SEQ * SEQ).map(|at| shown(at / SEQ, at % SEQ)).collect();
    let mask = MaskTensor::new(&bytes, [1, 1, SEQ, SEQ]).unwrap();
    add("mask", Mask::None, &|of| of.mask = Some(mask.clone()));
    let blocks = BlockMask::from_lists(
        &[2, 1, 2],
        &[0, 1, 0, 2, 0, 0, 1, 2, 0],
        [1, 1, 3, 3],
        [64, 64],
    );
    let blocks = blocks.unwrap();
    add("blocks", Mask::None, &|of| of.blocks = Some(blocks.clone()));
    let ids: Vec<i32> = (0..SEQ as i32).map(|row| row / 37).collect();
    let documents = Documents::new(&ids, &ids);
    add("documents", Mask::Causal, &|of| {
        of.documents = Some(documents.clone())
    });
    add("prefix", Mask::Causal, &|of| {
        of.prefix = Some(PrefixLengths::uniform(41))
    });
    // The band reaches beyond the chunk on either side.
    let window = Mask::Window {
        left: Some(60),
        right: Some(20),
    };
    add("chunk", window, &|of| of.chunk = Some(50));
    add("dilation", Mask::None, &|of| of.dilation = Some(3));
    all
}

/// Makes a key dominate the row of a query of head 0; its value is NaN if the query does not see it.
fn plant(case: &mut Case, query: usize, key: usize, is_seen: bool) {
    let dims = case.q.spec().shape.dim;
    for dim in 0..dims {
        let value = case.q.get(0, 0, query, dim);
        case.k.set(0, 0, key, dim, value * 3.0);
        let of_value = if is_seen { 1.0 } else { f32::NAN };
        case.v.set(0, 0, key, dim, of_value);
    }
}

/// Of one query, a key that it sees and a neighbour that is hidden from it dominate; the hidden one's value is NaN, and another
/// query that does see it is the only kind of row that may show that.
fn planted_keys_decide<B: Backend>(backend: &mut B, dtype: DType, head_dim: usize) {
    for (name, mask, modifiers) in hiding() {
        let mut case = spec(dtype, head_dim, ModifierSpec::default())
            .build()
            .unwrap();
        case.options = case.options.clone().mask(mask);
        case.options.modifiers = modifiers;
        // The last query sees its own position, and some key before it is hidden from it, by any of them but the prefix.
        plant(&mut case, SEQ - 1, SEQ - 1, true);
        plant(&mut case, SEQ - 1, SEQ - 3, false);
        for variant in eligible(&case.problem().unwrap(), &backend.capabilities()) {
            variant_is_right(backend, variant, &mut case, name);
        }
    }
}

#[test]
fn planted_keys_decide_on_the_cpu() {
    planted_keys_decide(&mut Cpu::new(), DType::F32, 64);
}

#[test]
fn planted_keys_decide_in_the_simulator() {
    let mut sim = Sim::new();
    for (dtype, head_dim) in [(DType::F32, 64), (DType::Bf16, 128), (DType::F16, 64)] {
        planted_keys_decide(&mut sim, dtype, head_dim);
    }
}

#[test]
fn planted_keys_decide_on_a_gpu() {
    let Some(mut gpu) = gpu_or_not_run("planted keys beside modifiers") else {
        return;
    };
    for dtype in DType::ALL {
        for head_dim in [64, 128, 256] {
            planted_keys_decide(&mut gpu, dtype, head_dim);
        }
    }
}

/// Every kernel with modifiers, in both passes, under several of them at once.
#[test]
fn every_kernel_with_modifiers_agrees() {
    let modifiers = ModifierSpec {
        bias: Some(([true, false, false], DType::F16)),
        documents: Some((60, false)),
        prefix: Some((20, false)),
        sinks: true,
        dropout: Some(0.25),
        ..ModifierSpec::default()
    };
    let mut sim = Sim::new();
    let mut ran = BTreeSet::new();
    // Rows that end a tile of every kernel in the middle; of several lengths, for kernels that are for those alone.
    let several = Lengths::Varlen(vec![(3, 17), (SEQ, SEQ), (0, 5), (9, 0)]);
    for dtype in DType::ALL {
        for (head_dim, lengths) in [64, 128, 256]
            .into_iter()
            .flat_map(|dim| [(dim, Lengths::one(SEQ, SEQ)), (dim, several.clone())])
        {
            let is_varlen = lengths == several;
            let mut spec = spec(dtype, head_dim, modifiers);
            spec.lengths = lengths;
            spec.mask = Mask::Causal;
            spec.alibi = Some(AlibiSpec {
                steepest: 0.1,
                is_batched: is_varlen,
            });
            let mut case = spec.build().unwrap();
            let problem = case.problem().unwrap();
            for variant in eligible(&problem, &sim.capabilities()) {
                if is_varlen && variant != Variant::Wgmma {
                    continue;
                }
                case.options.force = Some(variant);
                let plan = sim.plan(&case.problem().unwrap()).unwrap();
                ran.extend(plan.kernel_names().map(str::to_owned));
                if is_plan_untouched(&plan) {
                    continue;
                }
                let (o, lse) = case.run(&mut sim).unwrap();
                let verdict = case.check(&o, &lse, Rows::All).unwrap();
                assert!(
                    verdict.passed(),
                    "{variant} {dtype:?} {head_dim}: {verdict}"
                );
            }
            ran.extend(forward_without_bias(&mut sim, &spec));
            ran.extend(gradients_agree(&mut sim, &spec, is_varlen));
        }
    }
    let missing: Vec<_> = MODIFIED
        .iter()
        .filter(|row| !ran.contains(row.name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Compares gradients of `spec` by every variant, with its bias and without; returns the names of the kernels.
fn gradients_agree(sim: &mut Sim, spec: &CaseSpec, is_varlen: bool) -> BTreeSet<String> {
    // Hopper's kernels take no slopes beside modifiers, and run without.
    let without_slopes = CaseSpec {
        alibi: None,
        ..spec.clone()
    };
    let mut ran = BTreeSet::new();
    for (spec, variant) in [
        (spec, Variant::Simt),
        (spec, Variant::Mma),
        (&without_slopes, Variant::Wgmma),
    ] {
        if variant != Variant::Wgmma && is_varlen {
            continue;
        }
        // In 16 bits there are other kernels where bits are to repeat, and where a block has little shared memory.
        let ways = [
            (false, u32::MAX),
            (false, SM86_SHARED_BYTES),
            (true, u32::MAX),
        ];
        let mut of_ways = BTreeSet::new();
        for bias in [spec.modifiers.bias, None] {
            let spec = CaseSpec {
                modifiers: ModifierSpec {
                    bias,
                    ..spec.modifiers
                },
                ..spec.clone()
            };
            let mut case = spec.build_backward().unwrap();
            if !eligible(&case.problem().unwrap(), &sim.capabilities()).contains(&variant) {
                continue;
            }
            case.forward.options.force = Some(variant);
            for (deterministic, shared_bytes) in ways {
                case.deterministic = deterministic;
                sim.limit_shared_bytes(shared_bytes);
                of_ways.extend(new_kernels_agree(sim, &case, &of_ways));
            }
            sim.limit_shared_bytes(u32::MAX);
        }
        ran.extend(of_ways);
    }
    ran
}

/// Compares the gradients of `case`, if it can run and does so by a kernel that is not among those that `ran`; returns the names of its
/// kernels.
fn new_kernels_agree(sim: &mut Sim, case: &BackwardCase, ran: &BTreeSet<String>) -> Vec<String> {
    let Ok(plan) = sim.plan(&case.problem().unwrap()) else {
        return vec![];
    };
    let kernels: Vec<_> = plan.kernel_names().map(str::to_owned).collect();
    if kernels.iter().all(|name| ran.contains(name)) || is_backward_untouched(sim, case) {
        return kernels;
    }
    let run = case.run(sim).unwrap();
    let verdict = case.check(&run, Rows::All).unwrap();
    assert!(verdict.passed(), "{kernels:?}: {verdict}");
    kernels
}

/// Runs the forward pass of `spec` on Hopper without its bias, which has kernels of its own there; returns their names, none if no such kernel is
/// for the rest.
fn forward_without_bias(sim: &mut Sim, spec: &CaseSpec) -> Vec<String> {
    let modifiers = ModifierSpec {
        bias: None,
        ..spec.modifiers
    };
    let spec = CaseSpec {
        modifiers,
        ..spec.clone()
    };
    let mut case = spec.build().unwrap();
    if !eligible(&case.problem().unwrap(), &sim.capabilities()).contains(&Variant::Wgmma) {
        return vec![];
    }
    variant_is_right(sim, Variant::Wgmma, &mut case, &spec.to_string());
    let plan = sim.plan(&case.problem().unwrap()).unwrap();
    plan.kernel_names().map(str::to_owned).collect()
}

/// Values of o where every probability is 1 / seq_kv and v marks the key: which pairs dropout kept.
fn kept<B: Backend>(
    backend: &mut B,
    variant: Option<Variant>,
    dtype: DType,
    dropout: Dropout,
) -> Vec<bool> {
    const KEYS: usize = 64;
    let shape = Shape {
        batch: 2,
        heads: 3,
        seq: KEYS,
        dim: KEYS,
    };
    let zeros = HostTensor::from_f32(&vec![0.0; 2 * 3 * KEYS * KEYS], shape, Layout::Bhsd).unwrap();
    let mut marks = zeros.clone();
    for (batch, head, key) in
        (0..2).flat_map(|b| (0..3).flat_map(move |h| (0..KEYS).map(move |k| (b, h, k))))
    {
        marks.set(batch, head, key, key, KEYS as f32);
    }
    let options = ForwardOptions::new().dropout(dropout).force(variant);
    let [q, v] = [zeros, marks].map(|tensor| {
        let tensor = tensor.convert(dtype, Layout::Bhsd).unwrap();
        tensor.upload(backend.memory()).unwrap()
    });
    let o = forward(backend, &q, &q, &v, &options).unwrap().o;
    let o = o.download(backend.memory()).unwrap().to_f32(Layout::Bhsd);
    let scale = dropout.scale();
    let is_either = |&o: &f32| o == 0.0 || (o - scale).abs() < 0.01 * scale;
    assert!(o.iter().all(is_either), "kept or dropped");
    o.iter().map(|&o| o != 0.0).collect()
}

/// Every family of `backend` drops what [`Dropout::keeps`] says.
fn families_drop_the_same<B: Backend>(backend: &mut B) {
    const KEYS: usize = 64;
    let dropout = Dropout::new(0.3, 0x1234_5678_9abc).unwrap().offset(5);
    let expected: Vec<bool> = (0..2 * 3 * KEYS * KEYS)
        .map(|at| {
            let (row, key) = (at / KEYS, at % KEYS);
            let (plane, query) = (row / KEYS, row % KEYS);
            dropout.keeps([plane / 3, plane % 3], 3, query, key)
        })
        .collect();
    for dtype in DType::ALL {
        let shape = Shape {
            batch: 2,
            heads: 3,
            seq: KEYS,
            dim: KEYS,
        };
        let spec = TensorSpec::contiguous(dtype, shape, Layout::Bhsd).unwrap();
        let options = ForwardOptions::new().dropout(dropout);
        let problem = Problem::with_dense_output(spec, spec, spec, &options).unwrap();
        let variants = eligible(&problem, &backend.capabilities());
        assert!(!variants.is_empty());
        for variant in variants {
            assert!(
                kept(backend, Some(variant), dtype, dropout) == expected,
                "{variant} {dtype:?}"
            );
        }
    }
}

#[test]
fn all_families_drop_the_same() {
    families_drop_the_same(&mut Cpu::new());
    families_drop_the_same(&mut Sim::new());
    if let Some(mut gpu) = gpu_or_not_run("what dropout drops") {
        families_drop_the_same(&mut gpu);
    }
}

/// Statistics of the generator as attention uses it: the rate over all pairs, and of neighbours along every axis that both are kept
/// as often as if they were independent.
#[test]
fn what_is_dropped_is_random() {
    const SIZE: usize = 160;
    for p in [0.1f32, 0.5, 0.85] {
        let dropout = Dropout::new(p, 42).unwrap();
        let keeps =
            |[batch, head, query, key]: [usize; 4]| dropout.keeps([batch, head], 4, query, key);
        let q = 1.0 - f64::from(p);
        let steps = [
            [0, 0, 0, 0],
            [1, 0, 0, 0],
            [0, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 1],
            [0, 0, 8, 0],
            [0, 0, 0, 8],
        ];
        let others = Dropout::new(p, 43).unwrap();
        let later = dropout.offset(1);
        let mut counts = [0u32; 9];
        let mut all = 0;
        for (head, query) in (0..3).flat_map(|head| (0..SIZE).map(move |query| (head, query))) {
            for key in 0..SIZE {
                let at = [0, head, query, key];
                all += 1;
                if !keeps(at) {
                    continue;
                }
                for (count, step) in counts.iter_mut().zip(steps) {
                    let other = std::array::from_fn(|axis| at[axis] + step[axis]);
                    *count += u32::from(keeps(other));
                }
                counts[7] += u32::from(others.keeps([0, head], 4, query, key));
                counts[8] += u32::from(later.keeps([0, head], 4, query, key));
            }
        }
        for (index, count) in counts.into_iter().enumerate() {
            // Both of a pair with itself: the rate. χ² with one degree of freedom, of which 16 is beyond 4 standard deviations.
            let expected = if index == 0 { q } else { q * q };
            let n = f64::from(all);
            let off = f64::from(count) - n * expected;
            let chi2 = off * off / (n * expected * (1.0 - expected));
            assert!(chi2 < 16.0, "p {p}, statistic {index}: χ² {chi2}");
        }
    }
}

fn refused(options: ForwardOptions) -> (String, String) {
    let shape = |heads, seq| Shape {
        batch: 2,
        heads,
        seq,
        dim: 8,
    };
    let spec =
        |heads, seq| TensorSpec::contiguous(DType::F32, shape(heads, seq), Layout::Bshd).unwrap();
    let (q, kv) = (spec(4, 5), spec(2, 6));
    named(Problem::with_dense_output(q, kv, kv, &options).map(|_| ()))
}

fn named(result: Result<(), Error>) -> (String, String) {
    match result {
        Err(Error::Argument {
            argument, wrong, ..
        }) => (argument.into_owned(), wrong),
        other => panic!("expected a refused argument, got {other:?}"),
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let message = |argument: &str, wrong: &str| (argument.to_owned(), wrong.to_owned());
    let mask =
        |shape: [usize; 4]| MaskTensor::new(&vec![1; shape.iter().product()], shape).unwrap();
    let options = ForwardOptions::new();
    assert_eq!(
        refused(options.clone().mask_tensor(mask([3, 1, 1, 6]))),
        message("mask", "batch is 3")
    );
    assert_eq!(
        refused(options.clone().mask_tensor(mask([1, 2, 1, 6]))),
        message("mask", "heads_q is 2")
    );
    assert_eq!(
        refused(options.clone().mask_tensor(mask([1, 1, 5, 1]))),
        message("mask", "seq_kv is 1")
    );
    let bias = HostTensor::from_f32(
        &[0.0; 24],
        Shape {
            batch: 1,
            heads: 1,
            seq: 4,
            dim: 6,
        },
        Layout::Bhsd,
    );
    let bias = BiasTensor::new(&bias.unwrap()).unwrap();
    assert_eq!(
        refused(options.clone().bias(bias)),
        message("bias", "seq_q is 4")
    );
    assert_eq!(
        refused(options.clone().sinks(Sinks::per_head(&[0.0; 3]).unwrap())).0,
        "sinks"
    );
    assert_eq!(
        refused(options.clone().documents(Documents::new(&[1; 5], &[1; 5]))),
        message("doc_kv", "it has 5 ids")
    );
    assert_eq!(
        refused(
            options
                .clone()
                .documents(Documents::per_batch(&[1; 5], &[1; 12]))
        )
        .0,
        "doc_q"
    );
    assert_eq!(
        refused(options.clone().prefix(PrefixLengths::per_batch(&[1; 3]))).0,
        "prefix_len"
    );
    assert_eq!(
        refused(options.clone().chunk(0)),
        message("chunk", "it is 0")
    );
    assert_eq!(refused(options.clone().dilation(0)).0, "dilation");
    let blocks = BlockMask::new(&[1; 2], [1, 1, 1, 2], [8, 8]).unwrap();
    assert_eq!(
        refused(options.block_mask(blocks)),
        message("blocks", "seq_kv is 2")
    );

    for p in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(named(Dropout::new(p, 0).map(|_| ())).0, "dropout", "{p}");
    }
    for sink in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(named(Sinks::per_head(&[0.0, sink]).map(|_| ())).0, "sinks");
    }
    assert_eq!(
        named(MaskTensor::new(&[1; 5], [1, 1, 2, 3]).map(|_| ())).0,
        "mask"
    );
    let lists = |counts: &[i32], indices: &[i32]| {
        named(BlockMask::from_lists(counts, indices, [1, 1, 2, 2], [4, 4]).map(|_| ()))
    };
    assert_eq!(lists(&[1], &[0; 4]).0, "block_counts");
    assert_eq!(lists(&[1, 3], &[0; 4]).0, "block_counts");
    assert_eq!(lists(&[1, -1], &[0; 4]).0, "block_counts");
    assert_eq!(lists(&[1, 1], &[0; 3]).0, "block_indices");
    assert_eq!(
        lists(&[1, 2], &[0, 0, 1, 2]),
        message("block_indices", "element 3 is 2")
    );
    assert_eq!(lists(&[1, 1], &[-1, 0, 0, 0]).0, "block_indices");
}

/// The gradient by sinks, by differences of a loss that is linear in o and lse.
fn sink_gradients_are_differences<B: Backend>(backend: &mut B, dtype: DType) {
    let modifiers = ModifierSpec {
        sinks: true,
        dropout: Some(0.2),
        ..ModifierSpec::default()
    };
    // An odd number of sequences: kernels take two at once, and the last.
    let spec = CaseSpec {
        lengths: Lengths::Dense {
            batch: 3,
            seq_q: 70,
            seq_kv: 90,
        },
        ..spec(dtype, 64, modifiers)
    };
    let mut case = spec.build_backward().unwrap();
    case.forward.options = case.forward.options.clone().mask(Mask::Causal);
    let memory = backend.memory();
    let [q, k, v] =
        [&case.forward.q, &case.forward.k, &case.forward.v].map(|x| x.upload(memory).unwrap());
    let d_o = case.d_o.upload(memory).unwrap();
    let options = case.options().sink_gradient(true);
    let output = forward(backend, &q, &k, &v, &options.forward).unwrap();
    let gradients = backward(backend, &q, &k, &v, &output, &d_o, &options).unwrap();
    let computed = gradients
        .d_sinks
        .unwrap()
        .download(backend.memory())
        .unwrap();

    // In f32 on the CPU, of inputs as they were rounded.
    let mut cpu = Cpu::new();
    let widened = |tensor: &HostTensor| tensor.convert(DType::F32, Layout::Bshd).unwrap();
    let exact = [&case.forward.q, &case.forward.k, &case.forward.v].map(widened);
    let exact = exact.map(|tensor| tensor.upload(cpu.memory()).unwrap());
    let d_o = widened(&case.d_o).to_f32(Layout::Bshd);
    let sinks = case.forward.options.modifiers.sinks.clone().unwrap();
    let mut loss = |head: usize, step: f32| -> f64 {
        let values = [0, 1].map(|at| sinks.get(at) + if at == head { step } else { 0.0 });
        let options = case
            .forward
            .options
            .clone()
            .sinks(Sinks::per_head(&values).unwrap());
        let [q, k, v] = &exact;
        let o = forward(&mut cpu, q, k, v, &options).unwrap().o;
        let o = o.download(cpu.memory()).unwrap().to_f32(Layout::Bshd);
        o.iter()
            .zip(&d_o)
            .map(|(o, d_o)| f64::from(*o) * f64::from(*d_o))
            .sum()
    };
    for head in 0..2 {
        let step = 0.05;
        let difference = (loss(head, step) - loss(head, -step)) / f64::from(2.0 * step);
        let got = f64::from(computed.get(0, head, 0, 0));
        let allowed = 0.02 * (1.0 + difference.abs());
        assert!(
            (got - difference).abs() < allowed,
            "{dtype:?} head {head}: {got} for {difference}"
        );
    }
}

#[test]
fn sink_gradients_agree_with_differences() {
    sink_gradients_are_differences(&mut Cpu::new(), DType::F32);
    for dtype in DType::ALL {
        sink_gradients_are_differences(&mut Sim::new(), dtype);
    }
    if let Some(mut gpu) = gpu_or_not_run("gradients by sinks") {
        for dtype in DType::ALL {
            sink_gradients_are_differences(&mut gpu, dtype);
        }
    }
}

/// Cases that have modifiers, all of them.
fn modified(dtypes: &[DType], limits: Limits) -> impl Strategy<Value = CaseSpec> + use<> {
    let strategy = ferroflash_testing::cases::strategy(dtypes, limits);
    strategy.prop_filter("modifiers", |spec| {
        spec.modifiers != ModifierSpec::default()
    })
}

/// Both passes of a case with modifiers agree with the oracle.
fn agrees<B: Backend>(backend: &mut B, spec: &CaseSpec) -> Result<(), TestCaseError> {
    let fail = |error: Error| TestCaseError::fail(format!("{spec}: {error}"));
    let mut case = spec.build_backward().map_err(fail)?;
    let problem = case.forward.problem().map_err(fail)?;
    for variant in eligible(&problem, &backend.capabilities()) {
        case.forward.options.force = Some(variant);
        if is_case_untouched(backend, &case.forward) {
            continue;
        }
        let (o, lse) = case.forward.run(backend).map_err(fail)?;
        let verdict = case.forward.check(&o, &lse, Rows::All).map_err(fail)?;
        prop_assert!(verdict.passed(), "{variant}: {spec}: {verdict}");
    }
    case.forward.options.force = None;
    for variant in eligible(&case.problem().map_err(fail)?, &backend.capabilities()) {
        case.forward.options.force = Some(variant);
        if is_backward_untouched(backend, &case) {
            continue;
        }
        let run = case.run(backend).map_err(fail)?;
        let verdict = case.check(&run, Rows::All).map_err(fail)?;
        prop_assert!(verdict.passed(), "{variant}: {spec}: {verdict}");
    }
    Ok(())
}

/// Arrays that differ by batch entry have no element where there are no entries, and those that all share are read by none.
#[test]
fn an_empty_batch_reads_no_modifiers() {
    let none = Lengths::Dense {
        batch: 0,
        seq_q: 40,
        seq_kv: 40,
    };
    for is_shared in [false, true] {
        let axes = [is_shared, false, false];
        let modifiers = ModifierSpec {
            mask: Some((axes, 40)),
            bias: Some((axes, DType::F32)),
            blocks: Some([16, 33]),
            documents: Some((9, !is_shared)),
            prefix: Some((5, !is_shared)),
            chunk: Some(16),
            dilation: Some(2),
            sinks: true,
            dropout: Some(0.1),
        };
        for alone in 0..7 {
            let only = |index: usize| alone == 6 || alone == index;
            let modifiers = ModifierSpec {
                mask: modifiers.mask.filter(|_| only(0)),
                blocks: modifiers.blocks.filter(|_| only(1)),
                documents: modifiers.documents.filter(|_| only(2)),
                prefix: modifiers.prefix.filter(|_| only(3)),
                chunk: modifiers.chunk.filter(|_| only(4)),
                dilation: modifiers.dilation.filter(|_| only(5)),
                ..modifiers
            };
            for dtype in DType::ALL {
                let spec = CaseSpec {
                    modifiers,
                    mask: Mask::Causal,
                    ..plain(dtype, none.clone(), 64)
                };
                let agrees = agrees(&mut Sim::new(), &spec);
                assert!(agrees.is_ok(), "{agrees:?}");
            }
        }
    }
}

#[test]
fn combinations_agree_in_the_simulator() {
    agree_on(
        Sim::new(),
        40,
        &modified(&DType::ALL, Limits::SIMULATED),
        agrees,
    );
}

#[test]
fn combinations_agree_on_a_gpu() {
    let limits = Limits {
        work: 5_000_000,
        ..Limits::FAST
    };
    if let Some(gpu) = gpu_or_not_run("modifiers") {
        agree_on(gpu, 400, &modified(&DType::ALL, limits), agrees);
    }
}
