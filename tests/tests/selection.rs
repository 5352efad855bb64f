//! Which variants are eligible, which is preferred, and what forcing one does.

use ferroflash::variant::{GpuCapabilities, eligible, preferred, select, why_not};
use ferroflash::{
    Backend, Capabilities, Cpu, DType, Error, ForwardOptions, Layout, Problem, Shape, TensorSpec,
    Variant,
};
use kernels_gpu::instances::Family;

const HOPPER: Capabilities = Capabilities::Gpu(GpuCapabilities {
    compute_capability: (9, 0),
    shared_bytes: 227 << 10,
    families: &Family::ALL,
});
const TURING: Capabilities = Capabilities::Gpu(GpuCapabilities {
    compute_capability: (7, 5),
    shared_bytes: 64 << 10,
    families: &Family::ALL,
});

fn problem(dtype: DType, head_dim: usize, force: Option<Variant>) -> Problem {
    let shape = Shape {
        batch: 1,
        heads: 2,
        seq: 10,
        dim: head_dim,
    };
    let spec = TensorSpec::contiguous(dtype, shape, Layout::Bshd).expect("small");
    let options = ForwardOptions::new().force(force);
    Problem::with_dense_output(spec, spec, spec, &options).expect("valid")
}

fn variant(name: &str) -> Variant {
    name.parse().expect("a variant")
}

fn refusal(problem: &Problem, here: &Capabilities) -> (String, String, String) {
    match select(problem, here) {
        Err(Error::Argument {
            argument,
            wrong,
            allowed,
        }) => (argument.into_owned(), wrong, allowed),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn each_backend_has_its_variants() {
    let plain = problem(DType::F32, 64, None);
    assert_eq!(eligible(&plain, &Capabilities::Cpu), [variant("tiled")]);
    assert!(eligible(&plain, &HOPPER).contains(&variant("simt")));
    assert!(!eligible(&plain, &HOPPER).contains(&variant("tiled")));
    assert!(eligible(&plain, &TURING).is_empty());
    let reason = why_not(variant("simt"), &plain, &TURING).expect("too old");
    assert_eq!(
        reason,
        "it needs compute capability 8.0 or newer, this is 7.5"
    );
}

#[test]
fn the_preferred_variant_is_the_first_eligible_one() {
    for head_dim in [1, 64, 65, 256] {
        let plain = problem(DType::F32, head_dim, None);
        for here in [Capabilities::Cpu, HOPPER] {
            assert_eq!(
                preferred(&plain, &here),
                eligible(&plain, &here).first().copied()
            );
            assert_eq!(select(&plain, &here).ok(), preferred(&plain, &here));
        }
        assert_eq!(preferred(&plain, &TURING), None);
    }
}

#[test]
fn a_forced_variant_runs_or_says_why_not() {
    let forced = problem(DType::F32, 64, Some(variant("simt")));
    assert_eq!(select(&forced, &HOPPER).ok(), Some(variant("simt")));
    let (argument, wrong, allowed) = refusal(&forced, &Capabilities::Cpu);
    assert_eq!(argument, "force");
    assert_eq!(
        wrong,
        "variant simt cannot run this problem here: it runs on the cuda and sim backends"
    );
    assert_eq!(allowed, "one of tiled");

    let half = problem(DType::Bf16, 64, Some(variant("simt")));
    let (argument, wrong, _) = refusal(&half, &HOPPER);
    assert_eq!(argument, "force");
    assert!(wrong.ends_with("it has no bf16 kernel"), "{wrong}");
}

#[test]
fn a_problem_that_nothing_can_run_names_every_reason() {
    let (argument, wrong, _) = refusal(&problem(DType::F32, 64, None), &TURING);
    assert_eq!(argument, "backend");
    assert!(
        wrong.contains("simt: it needs compute capability 8.0 or newer"),
        "{wrong}"
    );
    assert!(
        wrong.contains("tiled: it runs on the cpu backend"),
        "{wrong}"
    );
}

#[test]
fn every_name_parses_back() {
    for variant in Variant::all() {
        assert_eq!(variant.name().parse::<Variant>().ok(), Some(variant));
    }
    assert!("Simt".parse::<Variant>().is_err());
}

#[test]
fn a_backend_tells_what_it_runs() {
    let name = |dtype| {
        Cpu::new()
            .kernel_name(&problem(dtype, 64, None))
            .expect("eligible")
    };
    assert_eq!(name(DType::F16), "fa_fwd_cpu_f16_tiled");
    let forced = problem(DType::F32, 64, Some(variant("simt")));
    assert!(Cpu::new().kernel_name(&forced).is_err());
}
