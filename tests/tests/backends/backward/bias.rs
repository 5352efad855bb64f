//! The gradient by a bias: every axis that it may share, beside everything else that there is, and inputs for which it is known.

use std::collections::BTreeSet;

use ferroflash::backend::sim::Sim;
use ferroflash::plan::eligible;
use ferroflash::{
    Backend, BackwardOptions, BiasTensor, Cpu, DType, Error, ForwardOptions, GradientOperands,
    HostTensor, Layout, Mask, Operands, Problem, Shape, TensorSpec, backward, backward_into,
    forward,
};
use ferroflash_testing::cases::{AlibiSpec, BackwardCase, CaseSpec, Lengths, ModifierSpec};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_backward_untouched;
use ferroflash_tests::specs::plain;
use kernels_gpu::instances::BIAS;

/// Which of batch, heads and queries share elements: every combination.
fn shared_axes() -> impl Iterator<Item = [bool; 3]> {
    (0..8).map(|number| [1, 2, 4].map(|axis| number & axis != 0))
}

fn build(spec: &CaseSpec) -> BackwardCase {
    let mut case = spec.build_backward().unwrap();
    case.bias_gradient = true;
    case
}

/// Runs the case by every variant, and holds it to the oracle; where it `repeats`, a second run gives the same bits. Returns the
/// kernels that ran.
fn run<B: Backend>(backend: &mut B, spec: &CaseSpec, repeats: bool) -> Vec<String> {
    let mut case = build(spec);
    case.deterministic = true;
    let mut ran = Vec::new();
    for variant in eligible(&case.problem().unwrap(), &backend.capabilities()) {
        case.forward.options.force = Some(variant);
        let plan = backend.plan(&case.problem().unwrap()).unwrap();
        ran.extend(plan.kernel_names().map(str::to_owned));
        if is_backward_untouched(backend, &case) {
            continue;
        }
        let found = case.run(backend).unwrap();
        let verdict = case.check(&found, Rows::All).unwrap();
        assert!(verdict.passed(), "{variant}: {spec}: {verdict}");
        assert!(found.d_bias.is_some());
        if repeats {
            assert_eq!(case.run(backend).unwrap().d_bias, found.d_bias, "{spec}");
        }
    }
    assert!(!ran.is_empty() || backend.name() == "cpu");
    ran
}

/// Every combination of axes, of dense and packed sequences, alone and beside other options.
fn every_shape<B: Backend>(backend: &mut B) -> BTreeSet<String> {
    let mut ran = BTreeSet::new();
    let dense = Lengths::Dense {
        batch: 2,
        // The last tiles have so many rows and columns that every element of a thread is of one.
        seq_q: 77,
        seq_kv: 108,
    };
    let packed = Lengths::Varlen(vec![(33, 70), (0, 5), (66, 20), (9, 0)]);
    for (number, shared) in shared_axes().enumerate() {
        for (case, dtype) in DType::ALL.into_iter().enumerate() {
            let bias = Some((shared, DType::ALL[(number + case) % 3]));
            // Once with each head_dim; beyond its chunk, nothing else hides a query's keys.
            let chunk = (number % 3 == 0).then_some(50);
            let alone = ModifierSpec {
                bias,
                chunk,
                ..ModifierSpec::default()
            };
            let beside = ModifierSpec {
                mask: Some(([true, false, false], 40)),
                prefix: Some((20, true)),
                sinks: true,
                dropout: Some(0.25),
                chunk: None,
                ..alone
            };
            // The simulator takes its time over the larger ones.
            let head_dim = match number {
                3 | 7 => 256,
                1 | 6 => 128,
                _ => 64,
            };
            let spec = CaseSpec {
                group: 2,
                modifiers: alone,
                mask: match (chunk, number % 2) {
                    (None, 1) => Mask::Causal,
                    _ => Mask::None,
                },
                seed: number as u64,
                ..plain(dtype, dense.clone(), head_dim)
            };
            ran.extend(run(backend, &spec, number == 5));
            let spec = CaseSpec {
                heads_kv: 1,
                group: 3,
                modifiers: beside,
                mask: Mask::Causal,
                softcap: Some(15.0),
                alibi: Some(AlibiSpec {
                    steepest: 0.1,
                    is_batched: number % 2 == 0,
                }),
                ..plain(dtype, packed.clone(), 40)
            };
            ran.extend(run(backend, &spec, number == 7));
        }
    }
    ran
}

/// Blocks of f32 that are whole, or lack a few rows, of two sequences whose gradients are added up, beside slopes.
fn whole_tiles<B: Backend>(backend: &mut B) {
    for head_dim in [64, 128, 256] {
        let spec = CaseSpec {
            modifiers: ModifierSpec {
                bias: Some(([true, false, false], DType::F32)),
                ..ModifierSpec::default()
            },
            alibi: Some(AlibiSpec {
                steepest: 0.1,
                is_batched: false,
            }),
            ..plain(
                DType::F32,
                Lengths::Varlen(vec![(130, 248), (120, 120)]),
                head_dim,
            )
        };
        run(backend, &spec, false);
    }
}

#[test]
fn every_shape_agrees_on_the_cpu() {
    every_shape(&mut Cpu::new());
    whole_tiles(&mut Cpu::new());
}

#[test]
fn every_kernel_and_shape_agrees_in_the_simulator() {
    let ran = every_shape(&mut Sim::new());
    let missing: Vec<_> = BIAS.iter().filter(|row| !ran.contains(row.name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn whole_tiles_agree_in_the_simulator() {
    whole_tiles(&mut Sim::new());
}

#[test]
fn every_shape_agrees_on_a_gpu() {
    if let Some(mut gpu) = gpu_or_not_run("gradients by a bias") {
        every_shape(&mut gpu);
        whole_tiles(&mut gpu);
    }
}

const QUERIES: usize = 5;
const KEYS: usize = 6;

/// q, k and v of two heads, and a bias that the heads share.
fn small() -> ([HostTensor; 4], HostTensor) {
    let of = |seq: usize, phase: f32| {
        let shape = Shape {
            batch: 1,
            heads: 2,
            seq,
            dim: 8,
        };
        let values = (0..2 * seq * 8).map(|at| (at as f32 * 0.7 + phase).sin());
        HostTensor::from_f32(&values.collect::<Vec<_>>(), shape, Layout::Bhsd).unwrap()
    };
    let values: Vec<f32> = (0..QUERIES * KEYS).map(|at| (at as f32).cos()).collect();
    let operands = [
        of(QUERIES, 0.0),
        of(KEYS, 1.0),
        of(KEYS, 2.0),
        of(QUERIES, 3.0),
    ];
    (operands, bias(&values))
}

fn bias(values: &[f32]) -> HostTensor {
    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: QUERIES,
        dim: KEYS,
    };
    HostTensor::from_f32(values, shape, Layout::Bhsd).unwrap()
}

fn options(bias: &HostTensor) -> ForwardOptions {
    let options = ForwardOptions::new().mask(Mask::Causal).softcap(3.0);
    options.bias(BiasTensor::new(bias).unwrap())
}

/// The gradient is the difference that a step of an element makes to a loss that is linear in o, and into a tensor that holds
/// anything before.
fn is_a_difference<B: Backend>(backend: &mut B) {
    let (operands, of_bias) = small();
    let memory = backend.memory();
    let [q, k, v, d_o] = operands.each_ref().map(|x| x.upload(memory).unwrap());
    let asked = BackwardOptions::of(&options(&of_bias)).bias_gradient(true);
    let output = forward(backend, &q, &k, &v, &asked.forward).unwrap();
    let mut gradients = backward(backend, &q, &k, &v, &output, &d_o, &asked).unwrap();
    let first = gradients.d_bias.as_ref().unwrap();
    let first = first.download(backend.memory()).unwrap();
    let stale = bias(&[f32::NAN; QUERIES * KEYS]);
    gradients.d_bias = Some(stale.upload(backend.memory()).unwrap());
    backward_into(backend, &q, &k, &v, &output, &d_o, &mut gradients, &asked).unwrap();
    let again = gradients
        .d_bias
        .unwrap()
        .download(backend.memory())
        .unwrap();
    assert_eq!(first, again);

    let mut loss = |values: &[f32]| -> f64 {
        let o = forward(backend, &q, &k, &v, &options(&bias(values)))
            .unwrap()
            .o;
        let o = o.download(backend.memory()).unwrap().to_f32(Layout::Bhsd);
        let d_o = operands[3].to_f32(Layout::Bhsd);
        o.iter()
            .zip(&d_o)
            .map(|(o, d_o)| f64::from(*o) * f64::from(*d_o))
            .sum()
    };
    let values = of_bias.to_f32(Layout::Bhsd);
    let step = 0.02;
    for (at, &got) in first.to_f32(Layout::Bhsd).iter().enumerate() {
        let mut stepped = |by: f32| {
            let mut values = values.clone();
            values[at] += by;
            loss(&values)
        };
        let difference = (stepped(step) - stepped(-step)) / f64::from(2.0 * step);
        assert!(
            (f64::from(got) - difference).abs() < 2e-4,
            "element {at}: {got} for {difference}"
        );
        let is_hidden = at % KEYS > at / KEYS + KEYS - QUERIES;
        assert_eq!(got == 0.0, is_hidden, "element {at}");
    }
}

#[test]
fn gradients_are_differences() {
    is_a_difference(&mut Cpu::new());
    is_a_difference(&mut Sim::new());
    if let Some(mut gpu) = gpu_or_not_run("gradients by a bias, by differences") {
        is_a_difference(&mut gpu);
    }
}

/// The argument that is refused, and why.
fn refused<T>(result: Result<T, Error>) -> (String, String) {
    match result {
        Err(Error::Argument {
            argument, wrong, ..
        }) => (argument.into_owned(), wrong),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (operands, of_bias) = small();
    let mut cpu = Cpu::new();
    let [q, k, v, d_o] = operands.each_ref().map(|x| x.upload(cpu.memory()).unwrap());
    let not_asked = BackwardOptions::of(&options(&of_bias));
    let asked = not_asked.clone().bias_gradient(true);
    let output = forward(&mut cpu, &q, &k, &v, &asked.forward).unwrap();

    let without = BackwardOptions::default().bias_gradient(true);
    let expected = ("bias_gradient".to_owned(), "there is no bias".to_owned());
    let refusal = refused(backward(&mut cpu, &q, &k, &v, &output, &d_o, &without));
    assert_eq!(refusal, expected);

    let right = of_bias.upload(cpu.memory()).unwrap();
    let f16 = of_bias.convert(DType::F16, Layout::Bhsd).unwrap();
    let f16 = f16.upload(cpu.memory()).unwrap();
    let turned = of_bias.convert(DType::F32, Layout::Bshd).unwrap();
    let turned = turned.upload(cpu.memory()).unwrap();
    for (tensor, options, is_right) in [
        (None, &asked, false),
        (Some(&right), &not_asked, false),
        (Some(&f16), &asked, false),
        (Some(&q), &asked, false),
        (Some(&right), &asked, true),
        // Of one head: the same places.
        (Some(&turned), &asked, true),
        (None, &not_asked, true),
    ] {
        let mut gradients = backward(&mut cpu, &q, &k, &v, &output, &d_o, &not_asked).unwrap();
        gradients.d_bias = tensor.cloned();
        let into = backward_into(&mut cpu, &q, &k, &v, &output, &d_o, &mut gradients, options);
        match is_right {
            true => into.unwrap(),
            false => assert_eq!(refused(into).0, "d_bias"),
        }
    }

    let shape = Shape {
        batch: 1,
        heads: 1,
        seq: QUERIES,
        dim: 8,
    };
    let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd).unwrap();
    let kv = Shape { seq: KEYS, ..shape };
    let kv = TensorSpec::contiguous(DType::F32, kv, Layout::Bhsd).unwrap();
    let problem = Problem::backward_with_dense_gradients(spec, kv, kv, spec, spec, &asked).unwrap();
    let plan = cpu.plan(&problem).unwrap();
    for address in [None, Some(0), Some(6)] {
        let gradients = GradientOperands::new(4, 4, 4, 4).d_bias(address);
        let operands = Operands::new(4, 4, 4, 4).lse(4).gradients(gradients);
        // SAFETY: it is refused before an address is used.
        let launched = unsafe { cpu.launch(&plan, &operands) };
        assert_eq!(refused(launched).0, "d_bias");
    }
}
