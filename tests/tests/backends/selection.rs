//! Which variants are eligible, which is preferred, and what forcing one does.

use ferroflash::plan::{GpuCapabilities, eligible, find_instance, preferred, why_not};
use ferroflash::{
    AlibiSlopes, Backend, BackwardOptions, CacheLayout, Capabilities, Cpu, CuSeqlens, DType,
    DeviceLengths, Dropout, Error, ForwardOptions, Layout, MAX_HEAD_DIM, Mask, Plan, Problem,
    Shape, Sim, Sinks, TensorSpec, Variant,
};
use kernels_gpu::instances::{CHECK_CACHE, Family, TILE_LIST};

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

/// A packed problem whose operands have rows of `heads · head_dim` elements.
fn packed(dtype: DType, head_dim: usize, force: Option<Variant>) -> Problem {
    packed_of([4, 6], dtype, head_dim, force)
}

/// Of two packed sequences.
fn packed_of(
    lengths: [usize; 2],
    dtype: DType,
    head_dim: usize,
    force: Option<Variant>,
) -> Problem {
    let shape = Shape::packed(lengths.iter().sum(), 2, head_dim);
    let spec = TensorSpec::contiguous(dtype, shape, Layout::Bshd).expect("small");
    let lengths = lengths.map(|length| (length, length));
    let options = ForwardOptions::new()
        .cu_seqlens(CuSeqlens::from_lengths(lengths).expect("short"))
        .force(force);
    Problem::with_dense_output(spec, spec, spec, &options).expect("valid")
}

#[test]
fn packed_sequences_go_to_kernels_that_take_them() {
    let Capabilities::Gpu(hopper) = HOPPER else {
        unreachable!()
    };
    let kernel = |family, problem: &Problem| {
        let instance = find_instance(family, problem, &hopper);
        instance.map(|instance| instance.name)
    };
    for dtype in [DType::F16, DType::Bf16] {
        let name = dtype.name();
        let wgmma = |head_dim| kernel(Family::Wgmma, &packed(dtype, head_dim, None));
        for (head_dim, tile) in [
            (8, "64"),
            (64, "64"),
            (96, "96"),
            (128, "128_nocluster"),
            (192, "192"),
            (256, "256_nocluster"),
        ] {
            let expected = format!("fa_fwd_wgmma_sm90a_{name}_hd{tile}_varlen");
            assert_eq!(wgmma(head_dim), Ok(expected.as_str()));
        }
        // Clusters from 1024 rows on, which the longest sequence has to have.
        for (longest, tile) in [(1023, "128_nocluster"), (1024, "128")] {
            let problem = packed_of([1000, longest], dtype, 128, None);
            let expected = format!("fa_fwd_wgmma_sm90a_{name}_hd{tile}_varlen");
            assert_eq!(kernel(Family::Wgmma, &problem), Ok(expected.as_str()));
        }
        // A packed operand that TMA cannot take is reported for the kernel that takes packed ones.
        let reason = wgmma(60).expect_err("no multiple of 8");
        assert!(
            reason.contains("head_dim 60 is not a multiple of 8"),
            "{reason}"
        );
        let dense = kernel(Family::Wgmma, &problem(dtype, 64, None));
        assert_eq!(
            dense,
            Ok(format!("fa_fwd_wgmma_sm90a_{name}_hd64").as_str())
        );
        let both = [packed(dtype, 64, None), problem(dtype, 64, None)];
        let [mma_packed, mma_dense] = both.map(|problem| kernel(Family::Mma, &problem));
        assert_eq!((mma_packed.is_ok(), mma_packed), (true, mma_dense));
    }
    let long = packed_of([4, 1000], DType::Bf16, 128, None);
    assert_eq!(preferred(&long, &HOPPER), Some(Variant::Wgmma));
    let forced = packed(DType::F32, 64, Some(variant("simt")));
    assert_eq!(planned(&forced, &HOPPER), Some(variant("simt")));
    assert_eq!(
        eligible(&packed(DType::F32, 64, None), &Capabilities::Cpu),
        [variant("tiled")]
    );
}

#[test]
fn short_sequences_wait_for_no_list_of_tiles() {
    let chosen = |problem: &Problem| preferred(problem, &HOPPER).expect("eligible");
    for (head_dim, most) in [
        (40, 512),
        (64, 512),
        (72, 192),
        (128, 192),
        (136, 256),
        (256, 256),
    ] {
        for dtype in [DType::F16, DType::Bf16] {
            for (longest, expected) in [(most, Variant::Mma), (most + 1, Variant::Wgmma)] {
                let problem = packed_of([longest, 3], dtype, head_dim, None);
                assert_eq!(chosen(&problem), expected, "{longest} rows of {head_dim}");
            }
        }
    }
    let plan = Plan::new(&packed(DType::Bf16, 64, None), &HOPPER).expect("eligible");
    assert!(plan.kernel_names().eq(["fa_fwd_mma_sm80_bf16_hd64"]));
    assert_eq!(plan.workspace_bytes(), 0);
    // Of equal lengths no tile is listed.
    let of_length = |seq, options: &ForwardOptions, heads| {
        let shape = Shape {
            batch: 2,
            heads,
            seq,
            dim: 64,
        };
        let spec = TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).expect("small");
        chosen(&Problem::with_dense_output(spec, spec, spec, options).expect("valid"))
    };
    let dense = |options: &ForwardOptions, heads| of_length(512, options, heads);
    let options = ForwardOptions::new;
    assert_eq!(dense(&options(), 2), Variant::Wgmma);
    let differ = || options().lengths(DeviceLengths::seqused_kv());
    assert_eq!(dense(&differ(), 2), Variant::Mma);
    assert_eq!(dense(&differ().softcap(9.0), 2), Variant::Mma);
    // More tiles than a GPU works on at once, and kernels whose modifiers were not timed.
    assert_eq!(dense(&differ(), 16), Variant::Mma);
    assert_eq!(dense(&differ(), 17), Variant::Wgmma);
    assert_eq!(of_length(1, &differ(), 132), Variant::Mma);
    assert_eq!(of_length(1, &differ(), 133), Variant::Wgmma);
    assert_eq!(dense(&differ().chunk(9), 2), Variant::Wgmma);
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

/// Operands of few queries and many keys.
#[derive(Clone, Copy, Debug)]
struct Few {
    batch: usize,
    heads_kv: usize,
    group: usize,
    seq_q: usize,
    seq_kv: usize,
    head_dim: usize,
}

/// One query on 8192 keys, 64 heads on 8.
const FEW: Few = Few {
    batch: 1,
    heads_kv: 8,
    group: 8,
    seq_q: 1,
    seq_kv: 8192,
    head_dim: 128,
};

impl Few {
    fn problem(&self, dtype: DType, options: &ForwardOptions) -> Problem {
        let spec = |heads, seq| {
            let shape = Shape {
                batch: self.batch,
                heads,
                seq,
                dim: self.head_dim,
            };
            TensorSpec::contiguous(dtype, shape, Layout::Bshd).expect("small")
        };
        let (q, kv) = (
            spec(self.heads_kv * self.group, self.seq_q),
            spec(self.heads_kv, self.seq_kv),
        );
        Problem::with_dense_output(q, kv, kv, options).expect("valid")
    }

    /// The variant that runs it in bf16.
    fn variant(&self, here: &Capabilities, options: &ForwardOptions) -> Variant {
        let problem = self.problem(DType::Bf16, options);
        let plan = Plan::new(&problem, here).expect("eligible");
        assert_eq!(preferred(&problem, here), Some(plan.variant()));
        assert_eq!(
            eligible(&problem, here).first().copied(),
            Some(plan.variant())
        );
        plan.variant()
    }
}

/// By what `bench/results/decode-log.md` says of both, and by the sizes at which both take as long.
#[test]
fn few_queries_on_many_keys_are_decoded() {
    let plain = ForwardOptions::new();
    let on_hopper = |few: Few| few.variant(&HOPPER, &plain);
    for few in [
        FEW,
        Few {
            seq_kv: 131_072,
            ..FEW
        },
        Few {
            seq_q: 8,
            seq_kv: 131_072,
            ..FEW
        },
        Few {
            seq_kv: 2048,
            ..FEW
        },
        Few { batch: 4, ..FEW },
        Few {
            head_dim: 64,
            ..FEW
        },
        Few {
            group: 1,
            seq_q: 64,
            heads_kv: 2,
            ..FEW
        },
    ] {
        assert_eq!(on_hopper(few), Variant::Decode, "{few:?}");
    }
    for few in [
        Few {
            seq_kv: 1024,
            ..FEW
        },
        Few { batch: 8, ..FEW },
        Few { batch: 64, ..FEW },
        Few { seq_q: 9, ..FEW },
        Few {
            group: 65,
            heads_kv: 1,
            ..FEW
        },
        Few { seq_q: 0, ..FEW },
    ] {
        assert_eq!(on_hopper(few), Variant::Wgmma, "{few:?}");
    }
    // Where Hopper's kernels are none, a tile of few rows is as slow as one of many, and each head has its own.
    let ampere = Capabilities::Gpu(SINCE_AMPERE[0]);
    for few in [
        FEW,
        Few {
            seq_kv: 1024,
            ..FEW
        },
        Few { batch: 64, ..FEW },
    ] {
        assert_eq!(few.variant(&ampere, &plain), Variant::Decode, "{few:?}");
    }
    let one_head = Few { group: 1, ..FEW };
    for few in [
        Few {
            seq_kv: 256,
            ..one_head
        },
        Few {
            batch: 64,
            ..one_head
        },
        Few { seq_q: 9, ..FEW },
        Few { seq_kv: 0, ..FEW },
    ] {
        assert_eq!(few.variant(&ampere, &plain), Variant::Mma, "{few:?}");
    }
}

#[test]
fn options_decide_whether_few_queries_are_decoded() {
    let few = Few {
        seq_kv: 65_536,
        ..FEW
    };
    let options = ForwardOptions::new;
    let window = |left| Mask::Window {
        left: Some(left),
        right: Some(0),
    };
    let slopes = AlibiSlopes::geometric(64).expect("some heads");
    let sinks = Sinks::per_head(&[0.5; 64]).expect("some heads");
    for options in [
        options().mask(Mask::Causal).softcap(20.0),
        options().mask(window(4095)),
        options().alibi(slopes),
        options().sinks(sinks.clone()),
        options().lengths(DeviceLengths::seqused_kv()),
        options().force(Variant::Decode),
    ] {
        assert_eq!(few.variant(&HOPPER, &options), Variant::Decode);
    }
    let dropout = Dropout::new(0.5, 1).expect("a rate");
    for options in [
        options().mask(window(127)),
        options().dropout(dropout),
        options().sinks(sinks).chunk(9),
        options().force(Variant::Wgmma),
    ] {
        let problem = few.problem(DType::Bf16, &options);
        assert_eq!(planned(&problem, &HOPPER), Some(Variant::Wgmma));
    }
    let forced = options().force(Variant::Mma);
    let plan = Plan::new(&few.problem(DType::Bf16, &forced), &HOPPER).expect("eligible");
    assert_eq!(plan.kernel_name(), "fa_fwd_mma_sm80_bf16_hd128");
    let f32 = few.problem(DType::F32, &options());
    assert_eq!(planned(&f32, &HOPPER), Some(Variant::Simt));
    let cpu = few.problem(DType::Bf16, &options());
    assert_eq!(planned(&cpu, &Capabilities::Cpu), Some(Variant::Tiled));
}

#[test]
fn what_decode_kernels_cannot_do_is_refused_by_name() {
    let reason = |problem: &Problem, here| why_not(Variant::Decode, problem, here);
    let expected = |words: &str| Some(words.to_owned());
    let f32 = problem(DType::F32, 64, None);
    assert_eq!(reason(&f32, &HOPPER), expected("it has no f32 kernel"));
    assert_eq!(
        reason(&packed(DType::Bf16, 64, None), &HOPPER),
        expected("it has no kernel for packed sequences without a cache")
    );
    let half = problem(DType::F16, 64, None);
    assert_eq!(reason(&half, &HOPPER), None);
    assert_eq!(
        reason(&half, &Capabilities::Cpu),
        expected("it runs on the cuda and sim backends")
    );
    let many_rows = Few {
        heads_kv: 1,
        group: 256,
        seq_q: 1 << 24,
        seq_kv: 9,
        head_dim: 1,
        ..FEW
    };
    assert_eq!(
        reason(
            &many_rows.problem(DType::F16, &ForwardOptions::new()),
            &HOPPER
        ),
        expected("its items of work are more than it can number")
    );
    let options = ForwardOptions::new().chunk(9);
    assert_eq!(
        reason(&FEW.problem(DType::F16, &options), &HOPPER),
        expected("it has no kernel with modifiers (masks, biases, sinks, dropout)")
    );
    let spec = *half.q();
    let options = BackwardOptions::default();
    let backward = Problem::backward_with_dense_gradients(spec, spec, spec, spec, spec, &options);
    assert_eq!(
        reason(&backward.expect("valid"), &HOPPER),
        expected("it has no kernel for gradients")
    );
    let layout = CacheLayout::Contiguous;
    let cached = Problem::decode(spec, spec, spec, spec, layout, &ForwardOptions::new());
    let cached = cached.expect("valid");
    assert_eq!(
        eligible(&cached, &HOPPER),
        [Variant::Decode, Variant::Wgmma]
    );
    assert_eq!(
        why_not(Variant::Mma, &cached, &HOPPER),
        expected("it has no f16 kernel for a cache")
    );
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

/// Attention of `seq_q` queries of eight heads on two to a cache of 100 pages of `page_size` keys.
fn cached(seq_q: usize, page_size: usize, max_pages: usize, options: &ForwardOptions) -> Problem {
    let spec = |batch, heads, seq| {
        let shape = Shape {
            batch,
            heads,
            seq,
            dim: 128,
        };
        TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).expect("small")
    };
    let (q, pages) = (spec(1, 8, seq_q), spec(100, 2, page_size));
    let layout = CacheLayout::Paged {
        max_pages,
        table_stride: max_pages,
    };
    Problem::decode(q, pages, pages, q, layout, options).expect("valid")
}

/// Prompts on Hopper, where TMA reaches the pages and tiles of queries fill the GPU; drafts and others stay with decode kernels.
#[test]
fn long_chunks_of_prompts_run_on_hopper() {
    let plain = ForwardOptions::new().mask(Mask::Causal);
    let sinks = Sinks::per_head(&[0.5; 8]).expect("finite");
    let mut with_sinks = plain.clone();
    with_sinks.modifiers.sinks = Some(sinks);
    let ampere = Capabilities::Gpu(SINCE_AMPERE[0]);
    for (problem, here, expected) in [
        (cached(2048, 16, 256, &plain), &HOPPER, Variant::Wgmma),
        (cached(2048, 16, 256, &plain), &ampere, Variant::Decode),
        (cached(2048, 16, 256, &with_sinks), &HOPPER, Variant::Wgmma),
        (cached(2048, 24, 256, &plain), &HOPPER, Variant::Decode),
        (cached(2048, 8, 256, &plain), &HOPPER, Variant::Decode),
        // 64 rows, and a few more on so many keys that one block would have them all.
        (cached(16, 16, 4, &plain), &HOPPER, Variant::Decode),
        (cached(17, 16, 8192, &plain), &HOPPER, Variant::Decode),
        (cached(17, 16, 64, &plain), &HOPPER, Variant::Wgmma),
    ] {
        let q = problem.q().shape;
        assert_eq!(preferred(&problem, here), Some(expected), "{q:?}");
    }
    let packed = |counts: Vec<usize>, here| {
        let total = counts.iter().sum();
        let counts = CuSeqlens::of_queries(counts).expect("few");
        let problem = cached(total, 16, 256, &plain.clone().cu_seqlens(counts));
        let plan = Plan::new(&problem, here).expect("it can run");
        plan.kernel_names().collect::<Vec<_>>()
    };
    let decode = "fa_decode_mma_sm80_bf16_hd128";
    let on_hopper = "fa_decode_wgmma_sm90a_bf16_hd128";
    let (check, list) = (CHECK_CACHE.name, TILE_LIST.name);
    assert_eq!(
        packed(vec![1, 2000, 5], &HOPPER),
        [decode, check, list, on_hopper]
    );
    assert_eq!(
        packed(vec![1, 16, 5], &HOPPER),
        [format!("{decode}_rows16")]
    );
    assert_eq!(
        packed(vec![1, 2000, 5], &ampere),
        [format!("{decode}_rows16")]
    );
    let reason = why_not(Variant::Wgmma, &cached(2048, 24, 256, &plain), &HOPPER);
    assert!(reason.is_some_and(|reason| reason.contains("these have 24")));
    let reason = why_not(Variant::Mma, &cached(2048, 16, 256, &plain), &HOPPER);
    assert!(reason.is_some_and(|reason| reason.contains("no bf16 kernel for a cache")));
}
