//! Keys that `seqused_kv` leaves unused: no query sees them, and their gradients are 0. By every kernel of gradients, and every one with
//! modifiers that is given such lengths; plain forward kernels meet them in `device_lengths`. And lengths of packed sequences that are wrong.

use std::collections::BTreeSet;

use bytemuck::cast_slice;
use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::backend::{Device, Gpu};
use ferroflash::{
    Backend, Cpu, DType, DeviceLengths, Error, GradientOperands, HostTensor, KnownArrays, Layout,
    Mask, Memory, Operands, Plan, Problem, Shape, Tensor, TensorSpec, Variant,
};
use ferroflash_testing::cases::{
    AlibiSpec, BackwardCase, BackwardRun, Case, CaseSpec, Lengths, ModifierSpec,
};
use ferroflash_testing::oracle::{
    self, BackwardInputs, GradientTensors, Inputs, Rows, check_backward,
};
use ferroflash_tests::device_lengths::PATTERN;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;
use kernels_gpu::config::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};
use kernels_gpu::instances::{self, Family, Instance, Operation};

const BATCH: usize = 4;
const SEQ_Q: usize = 40;
const SEQ_KV: usize = 100;
/// Some, one, none, and more than there are, of the last, behind whose keys there is nothing.
const USED: [i32; BATCH] = [67, 1, 0, 200];
const HEAD_DIMS: [usize; 4] = [40, 72, 136, 200];
/// Of this one, plain cases have two heads of k and v.
const DEARER_DIM: usize = 40;

/// Keys that a sequence uses.
fn used(batch: usize) -> usize {
    (USED[batch] as usize).min(SEQ_KV)
}

/// Batch entry, head, key and component of each element of an unused key.
fn unused(shape: Shape) -> impl Iterator<Item = [usize; 4]> {
    let heads = (0..BATCH).flat_map(move |batch| (0..shape.heads).map(move |head| [batch, head]));
    let keys =
        heads.flat_map(|[batch, head]| (used(batch)..SEQ_KV).map(move |key| [batch, head, key]));
    keys.flat_map(move |[batch, head, key]| (0..shape.dim).map(move |dim| [batch, head, key, dim]))
}

/// A case whose unused keys and values are NaN, in the lengths that only the device knows; of the first sequence's keys one component alone,
/// so that all but one of a row's sums are finite.
fn case(spec: &CaseSpec) -> BackwardCase {
    let mut case = spec.build_backward().expect("small");
    let Case { k, v, options, .. } = &mut case.forward;
    options.lengths = DeviceLengths::seqused_kv().into();
    for (tensor, is_whole) in [(k, false), (v, true)] {
        for [batch, head, key, dim] in unused(tensor.spec().shape) {
            if is_whole || batch > 0 || dim == 0 {
                tensor.set(batch, head, key, dim, f32::NAN);
            }
        }
    }
    case
}

fn spec(dtype: DType, head_dim: usize) -> CaseSpec {
    let lengths = Lengths::Dense {
        batch: BATCH,
        seq_q: SEQ_Q,
        seq_kv: SEQ_KV,
    };
    CaseSpec {
        group: 2,
        seed: 7, // with d_lse, and gradients by slopes and bias
        ..plain(dtype, lengths, head_dim)
    }
}

/// Uploads bytes that no result is.
fn filled<M: Memory>(memory: &mut M, spec: TensorSpec) -> Tensor<M> {
    let bytes = vec![PATTERN; spec.shape.element_count().unwrap() * spec.dtype.bytes()];
    let tensor = HostTensor::new(spec, 0, bytes).unwrap();
    tensor.upload(memory).unwrap()
}

/// The plans of both passes; that of the backward pass by what is best where the family that is asked for has none.
fn plans<B: Backend>(backend: &B, case: &BackwardCase) -> Result<[Plan; 2], Error> {
    let here = backend.capabilities();
    let forward = Plan::new(&case.forward.problem()?, &here)?;
    let backward = Plan::new(&case.problem()?, &here).or_else(|_| {
        let mut by_any = case.clone();
        by_any.forward.options.force = None;
        Plan::new(&by_any.problem()?, &here)
    })?;
    Ok([forward, backward])
}

/// The kernels of `plans`.
fn names(plans: &[Plan; 2]) -> Vec<String> {
    let names = plans.iter().flat_map(Plan::kernel_names);
    names.map(str::to_owned).collect()
}

fn run<B: Backend>(
    backend: &mut B,
    case: &BackwardCase,
    plans: &[Plan; 2],
    arrays: &KnownArrays<'_>,
) -> BackwardRun {
    let [forward, problem] = plans.each_ref().map(Plan::problem);
    let gradients = problem.gradients().expect("of a backward pass");
    let memory = backend.memory();
    let Case { q, k, v, .. } = &case.forward;
    let [q, k, v, d_o] = [q, k, v, &case.d_o].map(|tensor| tensor.upload(memory).unwrap());
    let d_lse = (case.d_lse.as_ref()).map(|d_lse| d_lse.upload(memory).unwrap());
    let [q_sums, kv_sums] = arrays.cu_seqlens;
    let lengths = [q_sums, kv_sums, arrays.seqused_kv].map(|lengths| {
        (!lengths.is_empty()).then(|| {
            let mut buffer = memory.alloc(size_of_val(lengths)).unwrap();
            memory.write(&mut buffer, cast_slice(lengths)).unwrap();
            buffer
        })
    });
    let lse_shape = Shape {
        dim: 1,
        ..forward.o().shape
    };
    let lse_spec = TensorSpec::contiguous(DType::F32, lse_shape, Layout::Bhsd);
    let [o, lse] = [*forward.o(), lse_spec.unwrap()].map(|spec| filled(memory, spec));
    let [dq, dk, dv] = [gradients.dq, gradients.dk, gradients.dv].map(|spec| filled(memory, spec));
    let [d_slopes, d_bias] = [problem.d_alibi_slopes(), problem.d_bias()]
        .map(|spec| spec.map(|spec| filled(memory, *spec)));
    let at = |tensor: &Tensor<B::Memory>| tensor.address(&*memory);
    let of_gradients = GradientOperands::new(at(&d_o), at(&dq), at(&dk), at(&dv))
        .d_lse(d_lse.as_ref().map(at))
        .d_alibi_slopes(d_slopes.as_ref().map(at))
        .d_bias(d_bias.as_ref().map(at));
    let [q_sums, kv_sums, used] =
        (lengths.each_ref()).map(|buffer| buffer.as_ref().map(|buffer| memory.address(buffer)));
    let operands = Operands::new(at(&q), at(&k), at(&v), at(&o))
        .lse(at(&lse))
        .cu_seqlens(q_sums.zip(kv_sums).map(<[u64; 2]>::from))
        .seqused_kv(used)
        .gradients(of_gradients);
    for plan in plans {
        // SAFETY: every tensor is of the problem's shape, and lives until it is read below.
        unsafe { backend.launch(plan, &operands) }.unwrap();
    }
    let memory = backend.memory();
    let mut download = |tensor: &Tensor<B::Memory>| tensor.download(memory).unwrap();
    BackwardRun {
        o: download(&o),
        lse: download(&lse),
        dq: download(&dq),
        dk: download(&dk),
        dv: download(&dv),
        d_alibi_slopes: d_slopes.as_ref().map(&mut download),
        d_bias: d_bias.as_ref().map(&mut download),
    }
}

/// Compares all results with the oracle's of the lengths in `arrays`.
fn check_results(case: &BackwardCase, run: &BackwardRun, arrays: &KnownArrays<'_>, what: &str) {
    let known = |problem: Problem| problem.with_known_arrays(arrays);
    let Case { q, k, v, .. } = &case.forward;
    let inputs = || Inputs { q, k, v };
    let (o, lse) = (&run.o, &run.lse);
    let forward = known(case.forward.problem().unwrap());
    let verdict = oracle::check(&forward, inputs(), o, lse, Rows::All);
    assert!(verdict.passed(), "{what}: {verdict}");
    let given = BackwardInputs {
        inputs: inputs(),
        o,
        lse,
        d_o: &case.d_o,
        d_lse: case.d_lse.as_ref(),
    };
    let computed = GradientTensors {
        dq: &run.dq,
        dk: &run.dk,
        dv: &run.dv,
        d_alibi_slopes: run.d_alibi_slopes.as_ref(),
        d_bias: run.d_bias.as_ref(),
    };
    let verdict = check_backward(&known(case.problem().unwrap()), given, computed, Rows::All);
    assert!(verdict.passed(), "{what}: {verdict}");
}

/// The arrays of a batch whose keys are used in part.
fn used_arrays() -> KnownArrays<'static> {
    KnownArrays {
        seqused_kv: &USED,
        ..KnownArrays::default()
    }
}

/// Compares all results with the oracle's of the used keys, and the gradients of the others with 0.
fn check(case: &BackwardCase, run: &BackwardRun, what: &str) {
    check_results(case, run, &used_arrays(), what);
    for gradient in [&run.dk, &run.dv] {
        for [batch, head, key, dim] in unused(gradient.spec().shape) {
            let element = gradient.get(batch, head, key, dim);
            assert!(element == 0.0, "{what}: batch {batch}, key {key}");
        }
    }
}

/// Cases without a mask, in which nothing but the lengths hides unused keys, and with one; and of each option that has kernels of its own:
/// slopes and their gradient, modifiers and the gradient by a bias, both.
fn cases(dtype: DType, head_dim: usize) -> Vec<BackwardCase> {
    let one_head = spec(dtype, head_dim);
    let open = CaseSpec {
        heads_kv: if head_dim == DEARER_DIM { 2 } else { 1 },
        ..one_head.clone()
    };
    let causal = CaseSpec {
        mask: Mask::Causal,
        ..open.clone()
    };
    let slopes = CaseSpec {
        alibi: Some(AlibiSpec {
            steepest: 0.1,
            is_batched: true,
        }),
        softcap: Some(3.0),
        ..one_head.clone()
    };
    let modified = |mask: Mask, spec: &CaseSpec| CaseSpec {
        mask,
        modifiers: ModifierSpec {
            bias: Some(([true, false, false], DType::F16)),
            documents: Some((60, false)),
            sinks: true,
            dropout: Some(0.25),
            ..ModifierSpec::default()
        },
        ..spec.clone()
    };
    let both = modified(Mask::None, &slopes);
    let modified = modified(Mask::Causal, &one_head);
    // Hopper's forward kernels are for problems with a bias, or for others.
    let unbiased = CaseSpec {
        modifiers: ModifierSpec {
            bias: None,
            ..modified.modifiers
        },
        ..modified.clone()
    };
    [open, causal, slopes, modified, both, unbiased]
        .iter()
        .map(case)
        .collect()
}

/// Each kernel that a family has for a case on this GPU, with and without gradients that repeat, once a `turn`; adds which kernels they are.
fn each_kernel<D: Device, T: Ord + Copy>(
    gpu: &mut Gpu<D>,
    mut case: BackwardCase,
    arrays: &KnownArrays<'_>,
    turn: T,
    ran: &mut BTreeSet<(T, String)>,
    check: impl Fn(&BackwardCase, &BackwardRun, &str),
) {
    for (variant, deterministic) in [Variant::Simt, Variant::Mma, Variant::Wgmma]
        .into_iter()
        .flat_map(|variant| [false, true].map(|deterministic| (variant, deterministic)))
    {
        case.forward.options.force = Some(variant);
        case.deterministic = deterministic;
        let Ok(plans) = plans(gpu, &case) else {
            continue;
        };
        let names = names(&plans);
        let kernels: Vec<_> = names.iter().map(|name| (turn, name.clone())).collect();
        if kernels.iter().all(|kernel| ran.contains(kernel)) {
            continue;
        }
        if !names.iter().all(|name| is_untouched(name)) {
            let run = run(gpu, &case, &plans, arrays);
            check(&case, &run, &format!("{names:?}"));
        }
        ran.extend(kernels);
    }
}

/// Each kernel once without a mask and once with one; adds whether it was without, and which kernels they are.
fn by_families<D: Device>(gpu: &mut Gpu<D>, ran: &mut BTreeSet<(bool, String)>) {
    for (dtype, head_dim) in
        (DType::ALL.into_iter()).flat_map(|dtype| HEAD_DIMS.map(|head_dim| (dtype, head_dim)))
    {
        for case in cases(dtype, head_dim) {
            let is_open = case.forward.options.mask == Mask::None;
            each_kernel(gpu, case, &used_arrays(), is_open, ran, check);
        }
    }
}

/// Rows of q, and of k and v, of a sequence at the end of operands: those that are copied at a time are cut in the first of a block, in
/// another, and in a block that is not the first.
const LAST: [(usize, usize); 3] = [(5, 7), (30, 37), (133, 139)];
/// Those of the sequence before it.
const FIRST: (usize, usize) = (20, 30);

/// Packed sequences, two of them without rows, whose promised length is more than any has.
fn packed(
    dtype: DType,
    head_dim: usize,
    (modifiers, has_slopes): (ModifierSpec, bool),
    last: (usize, usize),
) -> BackwardCase {
    let lengths = vec![FIRST, last, (0, 0), (0, 0)];
    let promised = DeviceLengths::cu_seqlens(lengths.len(), 200, 200).expect("short");
    let spec = CaseSpec {
        lengths: Lengths::Varlen(lengths),
        group: 1,
        alibi: has_slopes.then_some(AlibiSpec {
            steepest: 0.1,
            is_batched: true,
        }),
        modifiers,
        ..spec(dtype, head_dim)
    };
    let mut case = spec.build_backward().expect("small");
    case.forward.options.lengths = promised.into();
    case
}

/// Each kernel that a family has for packed sequences, on cu_seqlens that begin before the first row, end behind the last, and decrease:
/// nothing outside is read or written, which the simulator checks, and results are those of what kernels clamp them to.
fn wrong_sums<D: Device>(gpu: &mut Gpu<D>, ran: &mut BTreeSet<((usize, usize), String)>) {
    let [q, kv] = [
        [-7, FIRST.0 as i32, 1 << 30, 3, i32::MIN],
        [i32::MIN, FIRST.1 as i32, i32::MAX, 9, -1],
    ];
    let arrays = KnownArrays {
        cu_seqlens: [&q, &kv],
        ..KnownArrays::default()
    };
    let modified = ModifierSpec {
        dropout: Some(0.25),
        ..ModifierSpec::default()
    };
    for (dtype, head_dim) in
        (DType::ALL.into_iter()).flat_map(|dtype| HEAD_DIMS.map(|head_dim| (dtype, head_dim)))
    {
        // Hopper's kernels of gradients take no slopes.
        for (has_slopes, last) in [true, false]
            .into_iter()
            .flat_map(|has_slopes| LAST.map(|last| (has_slopes, last)))
        {
            for modifiers in [ModifierSpec::default(), modified] {
                let case = packed(dtype, head_dim, (modifiers, has_slopes), last);
                each_kernel(gpu, case, &arrays, last, ran, |case, run, what| {
                    check_results(case, run, &arrays, what);
                });
            }
        }
    }
}

#[test]
fn cpu() {
    let mut cpu = Cpu::new();
    for dtype in DType::ALL {
        for case in cases(dtype, 40) {
            let plans = plans(&cpu, &case).unwrap();
            let run = run(&mut cpu, &case, &plans, &used_arrays());
            check(&case, &run, dtype.name());
        }
    }
}

/// Simulated GPUs of every amount of shared memory that kernels are for.
fn sims(schedule: u64) -> [Sim; 3] {
    [SM90_SHARED_BYTES, SM80_SHARED_BYTES, SM86_SHARED_BYTES].map(|shared_bytes| {
        let mut sim = Sim::on(SimDevice::with_schedule(schedule));
        sim.limit_shared_bytes(shared_bytes);
        sim
    })
}

#[test]
fn sim_wrong_sums() {
    let mut ran = BTreeSet::new();
    for mut sim in sims(SCHEDULES[0]) {
        wrong_sums(&mut sim, &mut ran);
    }
}

#[test]
fn sim() {
    let mut ran = BTreeSet::new();
    for mut sim in sims(SCHEDULES[1]) {
        by_families(&mut sim, &mut ran);
    }
    let tables: [&[Instance]; 3] = [instances::BACKWARD, instances::MODIFIED, instances::BIAS];
    // Hopper's forward kernels for such lengths are those for packed sequences.
    let knows_lengths = |kernel: &Instance| {
        let is_hopper = kernel.family == Family::Wgmma && kernel.operation == Operation::Forward;
        is_hopper && !kernel.name.contains("varlen")
    };
    let ran: BTreeSet<_> = ran.into_iter().map(|(_, name)| name).collect();
    let missing: Vec<_> = (tables.into_iter().flatten())
        .filter(|kernel| !knows_lengths(kernel) && !ran.contains(kernel.name))
        .map(|kernel| kernel.name)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients of unused keys") {
        by_families(&mut gpu, &mut BTreeSet::new());
        wrong_sums(&mut gpu, &mut BTreeSet::new());
    }
}
