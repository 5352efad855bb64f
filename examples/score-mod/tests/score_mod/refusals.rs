//! What is refused, by name.

use bytemuck::{Pod, Zeroable};
use ferroflash::backend::sim::Sim;
use ferroflash::{
    AlibiSlopes, Backend, BackwardOptions, BiasTensor, DType, Error, ForwardOptions, Layout,
    Operands, Plan, Problem, PtxModules, ScoreModification, Shape, TensorSpec,
};
use kernels_gpu::instances::Instance;
use kernels_gpu::modifiers::{ScoreMod, ScoreModKernels};
use score_mod_example::{BlockHoles, DocumentCausal, block_holes, document_causal, ptx};

fn problem(dtype: DType, dim: usize, own: ScoreModification) -> Result<Problem, Error> {
    let shape = Shape {
        batch: 1,
        heads: 2,
        seq: 16,
        dim,
    };
    let spec = TensorSpec::contiguous(dtype, shape, Layout::Bshd)?;
    Problem::with_dense_output(spec, spec, spec, &ForwardOptions::new().score_mod(own))
}

/// The argument that is refused, and why.
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> (String, String) {
    match result {
        Err(Error::Argument {
            argument, wrong, ..
        }) => (argument.into_owned(), wrong),
        other => panic!("expected a refused argument, got {other:?}"),
    }
}

fn planned(dtype: DType, dim: usize, own: ScoreModification) -> Result<Plan, Error> {
    Sim::new().plan(&problem(dtype, dim, own)?)
}

#[test]
fn kernels_that_were_not_compiled() {
    let holes = || block_holes(4, 1).unwrap();
    planned(DType::Bf16, 64, holes()).unwrap();
    let (argument, wrong) = refused(planned(DType::F16, 64, holes()));
    assert_eq!(argument, "backend");
    let lacking = "mma: it has no f16 kernel with score modification block_holes";
    assert!(wrong.contains(lacking), "{wrong}");
    let (_, wrong) = refused(planned(DType::F32, 128, holes()));
    assert!(
        wrong.contains("simt: it has no kernel for head_dim 128"),
        "{wrong}"
    );

    // The table has the row, and the PTX is for another architecture, or there is none.
    let value = BlockHoles {
        block_log2: 4,
        hole: 1,
    };
    // SAFETY: there are no kernels.
    let elsewhere = unsafe { ScoreModification::new(value, PtxModules::NONE) }.unwrap();
    let (_, wrong) = refused(planned(DType::Bf16, 64, elsewhere));
    for (family, arch) in [("mma", "sm_80"), ("wgmma", "sm_90a")] {
        let lacking =
            format!("{family}: score modification block_holes was not compiled for {arch}");
        assert!(wrong.contains(&lacking), "{wrong}");
    }
}

#[test]
fn backward_kernels_that_were_not_compiled() {
    let own = block_holes(4, 1).unwrap();
    let forward = ForwardOptions::new().score_mod(own);
    let shape = Shape {
        batch: 1,
        heads: 2,
        seq: 16,
        dim: 64,
    };
    let spec = TensorSpec::contiguous(DType::F16, shape, Layout::Bshd).unwrap();
    let options = BackwardOptions::of(&forward);
    let problem =
        Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options).unwrap();
    let (_, wrong) = refused(Sim::new().plan(&problem));
    let lacking = "mma: it has no f16 backward kernel with score modification block_holes";
    assert!(wrong.contains(lacking), "{wrong}");
}

/// Gradients by what is added to scores, which no kernel computes beside a score modification.
#[test]
fn gradients_of_slopes_and_biases() {
    let shape = |seq, dim| Shape {
        batch: 1,
        heads: 2,
        seq,
        dim,
    };
    let spec = TensorSpec::contiguous(DType::Bf16, shape(16, 64), Layout::Bshd).unwrap();
    let bias = TensorSpec::contiguous(DType::F32, shape(16, 16), Layout::Bhsd).unwrap();
    let forward = ForwardOptions::new()
        .score_mod(block_holes(4, 1).unwrap())
        .alibi(AlibiSlopes::geometric(2).unwrap())
        .bias(BiasTensor::on_device(&bias));
    let of = |options: &BackwardOptions| {
        Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, options).unwrap()
    };
    let options = BackwardOptions::of(&forward);
    Sim::new().plan(&of(&options)).unwrap();
    for (options, lacking) in [
        (
            options.clone().alibi_gradient(true),
            "mma: it computes no gradient by ALiBi's slopes with score modification block_holes",
        ),
        (
            options.bias_gradient(true),
            "mma: it computes no gradient by a bias with score modification block_holes",
        ),
    ] {
        let (_, wrong) = refused(Sim::new().plan(&of(&options)));
        assert!(wrong.contains(lacking), "{wrong}");
    }
}

/// Kernels of [`BlockHoles`], and other parameters.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Larger([u32; 5]);

impl ScoreMod for Larger {}

impl ScoreModKernels for Larger {
    const NAME: &'static str = BlockHoles::NAME;
    const INSTANCES: &'static [Instance] = BlockHoles::INSTANCES;
    const BLOCK_STATES: &'static Instance = BlockHoles::BLOCK_STATES;
}

#[test]
fn parameters_of_another_size() {
    // SAFETY: it is refused.
    let made = unsafe { ScoreModification::new(Larger([0; 5]), ptx()) };
    let wrong = "block_holes was compiled with 8 bytes of parameters".to_owned();
    assert_eq!(refused(made), ("score_mod".to_owned(), wrong));
}

#[test]
fn buffers_that_do_not_fit() {
    let own = |ids: &[u32], batch| document_causal(ids, batch).unwrap();
    problem(DType::F32, 64, own(&[0; 16], 1)).unwrap();
    let none = DocumentCausal::new(1, 16);
    // SAFETY: the PTX is that of the type.
    let none = unsafe { ScoreModification::new(none, ptx()) }.unwrap();
    let wrong = "document_causal refuses its buffers".to_owned();
    let expected = ("score_mod".to_owned(), wrong);
    for own in [none.clone(), none.clone().buffer(&[0u32; 15])] {
        assert_eq!(refused(problem(DType::F32, 64, own)), expected);
    }
    let holes = block_holes(4, 1).unwrap();
    let (_, wrong) = refused(problem(DType::F32, 64, holes.clone().buffer(&[0u32])));
    assert_eq!(wrong, "block_holes refuses its buffers");
    let many = (0..5).fold(holes, |own, _| own.buffer(&[0u32]));
    let (_, wrong) = refused(problem(DType::F32, 64, many));
    assert_eq!(wrong, "block_holes has 5 buffers");

    // One on the device, whose address is missing.
    let on_device = none.buffer_on_device(64);
    let problem = problem(DType::F32, 64, on_device).unwrap();
    let mut sim = Sim::new();
    let plan = sim.plan(&problem).unwrap();
    // SAFETY: nothing is launched.
    let launched = unsafe { sim.launch(&plan, &Operands::new(16, 16, 16, 16)) };
    assert_eq!(refused(launched).0, "buffer 0 of score_mod");
}
