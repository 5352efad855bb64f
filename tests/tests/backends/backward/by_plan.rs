//! A plan of the backward pass, kept and run with tensors, and with addresses and a workspace of the caller's.

use ferroflash::backend::sim::{Sim, SimDevice};
use ferroflash::plan::eligible;
use ferroflash::{
    Backend, Cpu, DType, Error, GradientOperands, Gradients, HostTensor, Mask, Memory, Operands,
    Output, OutputGradients, Plan, Tensor, Workspace, backward_planned, backward_planned_into,
    forward,
};
use ferroflash_testing::cases::{AlibiSpec, BackwardCase, BackwardRun, CaseSpec, Lengths};
use ferroflash_testing::oracle::Rows;
use ferroflash_tests::gpu::gpu_or_not_run;
use ferroflash_tests::replaced::is_backward_untouched;
use ferroflash_tests::schedules::SCHEDULES;
use ferroflash_tests::specs::plain;

fn case(dtype: DType, alibi: Option<AlibiSpec>) -> BackwardCase {
    let spec = CaseSpec {
        group: 2,
        mask: Mask::Causal,
        alibi,
        seed: 1, // with d_lse
        ..plain(dtype, Lengths::one(70, 90), 64)
    };
    spec.build_backward().unwrap()
}

/// Fewer rows than a block has, whose terms do not fill what it copies of them.
fn few_rows(dtype: DType, head_dim: usize) -> BackwardCase {
    let spec = CaseSpec {
        mask: Mask::Causal,
        seed: 1, // with d_lse
        ..plain(dtype, Lengths::one(9, 20), head_dim)
    };
    spec.build_backward().unwrap()
}

/// The tensors of a case on a backend, and what its forward pass gave.
struct Scene<M: Memory> {
    inputs: [Tensor<M>; 3],
    output: Output<M>,
    d_o: Tensor<M>,
    d_lse: Tensor<M>,
}

fn scene<B: Backend>(backend: &mut B, case: &BackwardCase) -> Scene<B::Memory> {
    let options = case.forward_options(&backend.capabilities()).unwrap();
    let memory = backend.memory();
    let mut upload = |tensor: &HostTensor| tensor.upload(memory).unwrap();
    let of = &case.forward;
    let inputs = [&of.q, &of.k, &of.v].map(&mut upload);
    let (d_o, d_lse) = (upload(&case.d_o), upload(case.d_lse.as_ref().unwrap()));
    let [q, k, v] = &inputs;
    let output = forward(backend, q, k, v, &options).unwrap();
    Scene {
        inputs,
        output,
        d_o,
        d_lse,
    }
}

impl<M: Memory> Scene<M> {
    fn downloaded(&self, memory: &mut M, gradients: &Gradients<M>) -> BackwardRun {
        let mut download = |tensor: &Tensor<M>| tensor.download(memory).unwrap();
        BackwardRun {
            o: download(&self.output.o),
            lse: download(self.output.lse.as_ref().unwrap()),
            dq: download(&gradients.dq),
            dk: download(&gradients.dk),
            dv: download(&gradients.dv),
            d_alibi_slopes: gradients.d_alibi_slopes.as_ref().map(&mut download),
            d_bias: gradients.d_bias.as_ref().map(download),
        }
    }

    /// The addresses of everything.
    fn operands(&self, memory: &M, gradients: &Gradients<M>) -> Operands {
        let at = |tensor: &Tensor<M>| tensor.address(memory);
        let [q, k, v] = self.inputs.each_ref().map(at);
        let [dq, dk, dv] = [&gradients.dq, &gradients.dk, &gradients.dv].map(at);
        let of_gradients = GradientOperands::new(at(&self.d_o), dq, dk, dv)
            .d_lse(at(&self.d_lse))
            .d_alibi_slopes(gradients.d_alibi_slopes.as_ref().map(at))
            .d_bias(gradients.d_bias.as_ref().map(at));
        Operands::new(q, k, v, at(&self.output.o))
            .lse(self.output.lse.as_ref().map(at))
            .gradients(of_gradients)
    }
}

/// By a kept plan, twice, into new tensors, into tensors that hold others' numbers, and by addresses with a workspace that the
/// caller prepared once: right each time, and where results repeat, the bits of [`ferroflash::backward`].
fn of_case<B: Backend>(backend: &mut B, mut case: BackwardCase) {
    let problem = case.problem().unwrap();
    for variant in eligible(&problem, &backend.capabilities()) {
        for deterministic in [false, true] {
            case.forward.options.force = Some(variant);
            case.deterministic = deterministic;
            if is_backward_untouched(backend, &case) {
                continue;
            }
            let expected = case.run(backend).unwrap();
            let plan = backend.plan(&case.problem().unwrap()).unwrap();
            let scene = scene(backend, &case);
            let check = |run: &BackwardRun| {
                let verdict = case.check(run, Rows::All).unwrap();
                assert!(verdict.passed(), "{}: {verdict}", plan.kernel_name());
                if deterministic {
                    assert!(run == &expected, "{}: other bits", plan.kernel_name());
                }
            };
            let [q, k, v] = &scene.inputs;
            let d_output = OutputGradients::new(&scene.d_o, &scene.d_lse);
            let planned = backward_planned(backend, &plan, q, k, v, &scene.output, d_output);
            let mut gradients = planned.unwrap();
            check(&scene.downloaded(backend.memory(), &gradients));
            let output = &scene.output;
            backward_planned_into(backend, &plan, q, k, v, output, d_output, &mut gradients)
                .unwrap();
            check(&scene.downloaded(backend.memory(), &gradients));

            let bytes = plan.workspace_bytes();
            let memory = backend.memory();
            let mut buffer = memory.alloc(bytes.max(1)).unwrap();
            // A workspace holds anything but where the plan asks for zeros.
            let mut before = vec![0xa5; bytes];
            before[..plan.zeroed_workspace_bytes()].fill(0);
            memory.write(&mut buffer, &before).unwrap();
            let address = memory.address(&buffer);
            for _ in 0..2 {
                let workspace = Workspace { address, bytes };
                let operands = scene.operands(backend.memory(), &gradients);
                let operands = operands.workspace(workspace);
                // SAFETY: every tensor is of the problem's shape, and lives until it is read.
                unsafe { backend.launch(&plan, &operands) }.unwrap();
                check(&scene.downloaded(backend.memory(), &gradients));
            }
            too_little(backend, &plan, &scene, &gradients, address);
        }
    }
}

/// A workspace that lacks a byte is refused by name.
fn too_little<B: Backend>(
    backend: &mut B,
    plan: &Plan,
    scene: &Scene<B::Memory>,
    gradients: &Gradients<B::Memory>,
    address: u64,
) {
    let Some(bytes) = plan.workspace_bytes().checked_sub(1) else {
        return;
    };
    let operands = scene.operands(backend.memory(), gradients);
    let operands = operands.workspace(Workspace { address, bytes });
    // SAFETY: refused before an address is used.
    let refused = unsafe { backend.launch(plan, &operands) };
    assert_eq!(argument(refused), "workspace");
}

#[track_caller]
fn argument<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Argument { argument, .. }) => argument.into_owned(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("accepted"),
    }
}

fn all<B: Backend>(backend: &mut B) {
    let alibi = Some(AlibiSpec {
        steepest: 0.1,
        is_batched: false,
    });
    for dtype in DType::ALL {
        for alibi in [None, alibi] {
            of_case(backend, case(dtype, alibi));
        }
        for head_dim in [64, 128, 256] {
            of_case(backend, few_rows(dtype, head_dim));
        }
    }
}

#[test]
fn a_plan_takes_the_tensors_it_was_made_for() {
    let mut cpu = Cpu::new();
    let case = case(DType::F32, None);
    let scene = scene(&mut cpu, &case);
    let [q, k, v] = &scene.inputs;
    let output = &scene.output;
    let plan = cpu.plan(&case.problem().unwrap()).unwrap();
    let forward = cpu.plan(&case.forward.problem().unwrap()).unwrap();
    let mut planned = |plan, [q, k, v]: [&_; 3], d_o| {
        argument(backward_planned(&mut cpu, plan, q, k, v, output, d_o))
    };
    assert_eq!(planned(&forward, [q, k, v], &scene.d_o), "plan");
    assert_eq!(planned(&plan, [k, k, v], &scene.d_o), "q");
    assert_eq!(planned(&plan, [q, q, v], &scene.d_o), "k");
    assert_eq!(planned(&plan, [q, k, q], &scene.d_o), "v");
    assert_eq!(planned(&plan, [q, k, v], k), "d_o");
    let gradients = backward_planned(&mut cpu, &plan, q, k, v, output, &scene.d_o).unwrap();
    let Gradients { dq, dk, dv, .. } = gradients;
    let mut into = |dq: &Tensor<_>, dk: &Tensor<_>, dv: &Tensor<_>, d_o| {
        let mut to = Gradients::new(dq.clone(), dk.clone(), dv.clone());
        argument(backward_planned_into(
            &mut cpu, &plan, q, k, v, output, d_o, &mut to,
        ))
    };
    assert_eq!(into(&dk, &dk, &dv, &scene.d_o), "dq");
    assert_eq!(into(&dq, &dq, &dv, &scene.d_o), "dk");
    assert_eq!(into(&dq, &dk, &dq, &scene.d_o), "dv");
    assert_eq!(into(&dq, &dk, &dk, &scene.d_o), "dv");
    assert_eq!(into(&dq, &dk, &dv, &dq), "dq");
}

#[test]
fn cpu() {
    all(&mut Cpu::new());
}

#[test]
fn sim() {
    all(&mut Sim::on(SimDevice::with_schedule(SCHEDULES[1])));
}

#[test]
fn cuda() {
    if let Some(mut gpu) = gpu_or_not_run("gradients by plan and addresses") {
        all(&mut gpu);
    }
}
