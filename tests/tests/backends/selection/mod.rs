//! Which variants are eligible, which is preferred, and what forcing one does.

mod cached;
mod few_queries;
mod packed;

use ferroflash::plan::{GpuCapabilities, eligible, find_instance, preferred, why_not};
use ferroflash::{
    Backend, BackwardOptions, Capabilities, Cpu, DType, Error, ForwardOptions, Layout,
    MAX_HEAD_DIM, Plan, Problem, Shape, Sim, TensorSpec, Variant,
};
use kernels_gpu::instances::Family;

const HOPPER: Capabilities = Capabilities::Gpu(gpu((9, 0), 227 << 10));
const TURING: Capabilities = Capabilities::Gpu(gpu((7, 5), 64 << 10));

/// Compute capabilities since Ampere, and the shared memory of a block there (CUDA C++ Programming Guide, "Technical
/// Specifications").
const SINCE_AMPERE: [GpuCapabilities; 7] = [
    gpu((8, 0), 163 << 10),
    gpu((8, 6), 99 << 10),
    gpu((8, 7), 163 << 10),
    gpu((8, 9), 99 << 10),
    gpu((9, 0), 227 << 10),
    gpu((10, 0), 227 << 10),
    gpu((12, 0), 99 << 10),
];

const fn gpu(compute_capability: (u32, u32), shared_bytes: u32) -> GpuCapabilities {
    GpuCapabilities::new(compute_capability, shared_bytes, 132)
}

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

/// The variant that a plan is for, if there is one.
fn planned(problem: &Problem, here: &Capabilities) -> Option<Variant> {
    Plan::new(problem, here).ok().map(|plan| plan.variant())
}

fn refusal(problem: &Problem, here: &Capabilities) -> (String, String, String) {
    match Plan::new(problem, here) {
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
            assert_eq!(planned(&plain, &here), preferred(&plain, &here));
        }
        assert_eq!(preferred(&plain, &TURING), None);
    }
}

#[test]
fn every_gpu_since_ampere_runs_every_head_dim() {
    for (gpu, dtype) in SINCE_AMPERE
        .into_iter()
        .flat_map(|gpu| DType::ALL.map(|dtype| (gpu, dtype)))
    {
        let (family, tiles) = match dtype {
            DType::F32 => (Family::Simt, &[64, 128, 256][..]),
            _ => (Family::Mma, &[32, 64, 96, 128, 192, 256][..]),
        };
        for head_dim in 1..=MAX_HEAD_DIM {
            let what = format!("{} head_dim {head_dim} on {gpu:?}", dtype.name());
            let plain = problem(dtype, head_dim, None);
            let instance = find_instance(family, &plain, &gpu);
            let instance = instance.unwrap_or_else(|reason| panic!("{what}: {reason}"));
            assert!(instance.shared_bytes <= gpu.shared_bytes, "{what}");
            // Nothing is padded further where shared memory is short.
            let padded = tiles.iter().find(|&&tile| tile as usize >= head_dim);
            assert_eq!(Some(&instance.head_dim), padded, "{what}");
            let variants = eligible(&plain, &Capabilities::Gpu(gpu));
            assert!(
                variants.contains(&Variant::of_family(family).expect("a variant")),
                "{what}"
            );
        }
    }
}

#[test]
fn the_larger_tile_runs_where_it_fits() {
    for gpu in SINCE_AMPERE {
        let suffix = if gpu.shared_bytes > 99 << 10 {
            ""
        } else {
            "_smem99k"
        };
        for head_dim in [128, 256] {
            let plain = problem(DType::F32, head_dim, None);
            let instance = find_instance(Family::Simt, &plain, &gpu).expect("eligible");
            let expected = format!("fa_fwd_simt_sm80_f32_hd{head_dim}{suffix}");
            assert_eq!(instance.name, expected, "{gpu:?}");
        }
    }
}

#[test]
fn a_forced_variant_runs_or_says_why_not() {
    let forced = problem(DType::F32, 64, Some(variant("simt")));
    assert_eq!(planned(&forced, &HOPPER), Some(variant("simt")));
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
            .plan(&problem(dtype, 64, None))
            .expect("eligible")
            .kernel_name()
    };
    assert_eq!(name(DType::F16), "fa_fwd_cpu_f16_tiled");
    let forced = problem(DType::F32, 64, Some(variant("simt")));
    assert!(Cpu::new().plan(&forced).is_err());
}

/// A problem of 16 query heads and one of k and v, head_dim 128.
fn grouped(seq_q: usize) -> Problem {
    let spec = |heads, seq| {
        let shape = Shape {
            batch: 1,
            heads,
            seq,
            dim: 128,
        };
        TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).expect("small")
    };
    let (q, kv) = (spec(16, seq_q), spec(1, 2000));
    Problem::with_dense_output(q, kv, kv, &ForwardOptions::new()).expect("valid")
}

#[test]
fn heads_that_share_tiles_count_as_rows() {
    let Capabilities::Gpu(hopper) = HOPPER else {
        unreachable!("it is a GPU")
    };
    let kernel = |seq_q| {
        let instance = find_instance(Family::Wgmma, &grouped(seq_q), &hopper);
        instance.expect("TMA reaches it").name
    };
    let (no_cluster, clusters) = (
        "fa_fwd_wgmma_sm90a_bf16_hd128_nocluster",
        "fa_fwd_wgmma_sm90a_bf16_hd128",
    );
    // 16 rows; 4800 rows; 512 of each head, as whole tiles are not shared; 1024 of each head.
    assert_eq!(
        [1, 300, 512, 1024].map(kernel),
        [no_cluster, clusters, no_cluster, clusters]
    );
    let sim = Sim::new();
    let heads = |seq_q| {
        sim.plan(&grouped(seq_q))
            .expect("eligible")
            .heads_per_tile()
    };
    assert_eq!([1, 300, 512, 1024].map(heads), [16, 16, 1, 1]);
}

/// A forward pass of f32, and its gradients, of `batch` entries of 4096 heads of one row.
fn of_many_heads(batch: usize) -> [Problem; 2] {
    let shape = Shape {
        batch,
        heads: 1 << 12,
        seq: 1,
        dim: 1,
    };
    let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd).expect("64 bits hold it");
    let forward = Problem::with_dense_output(spec, spec, spec, &ForwardOptions::new());
    let options = BackwardOptions::default();
    let backward = Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options);
    [forward.expect("valid"), backward.expect("valid")]
}

/// A launch has up to 2³¹ − 1 blocks, one a tile.
#[test]
fn more_tiles_than_a_launch_has_blocks_are_refused() {
    let refused = |problem: &Problem| why_not(Variant::Simt, problem, &HOPPER);
    for most in of_many_heads((1 << 19) - 1) {
        assert_eq!(refused(&most), None);
    }
    for problem in of_many_heads(1 << 19) {
        let reason = refused(&problem).expect("2³¹ tiles");
        assert!(
            reason.starts_with("it has 2147483648 tiles of "),
            "{reason}"
        );
        assert!(
            reason.ends_with("a launch has at most 2147483647 blocks"),
            "{reason}"
        );
    }
}
