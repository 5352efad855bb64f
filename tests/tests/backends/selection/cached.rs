//! Attention to a cache: which kernels run chunks of prompts.

use ferroflash::plan::{preferred, why_not};
use ferroflash::{
    CacheLayout, Capabilities, CuSeqlens, DType, ForwardOptions, Layout, Mask, Plan, Problem,
    Shape, Sinks, TensorSpec, Variant,
};
use kernels_gpu::instances::{CHECK_CACHE, TILE_LIST};

use super::{HOPPER, SINCE_AMPERE};

/// Attention of a sequence's `seq_q` queries of eight heads on two to a cache of 100 pages of `page_size` keys.
fn cached(seq_q: usize, page_size: usize, max_pages: usize, options: &ForwardOptions) -> Problem {
    cached_batch(1, seq_q, page_size, max_pages, options)
}

/// As [`cached`], of so many sequences.
fn cached_batch(
    batch: usize,
    seq_q: usize,
    page_size: usize,
    max_pages: usize,
    options: &ForwardOptions,
) -> Problem {
    let spec = |batch, heads, seq| {
        let shape = Shape {
            batch,
            heads,
            seq,
            dim: 128,
        };
        TensorSpec::contiguous(DType::Bf16, shape, Layout::Bshd).expect("small")
    };
    let (q, pages) = (spec(batch, 8, seq_q), spec(100, 2, page_size));
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
    let kernels = |problem: &Problem, here| {
        let plan = Plan::new(problem, here).expect("it can run");
        plan.kernel_names().collect::<Vec<_>>()
    };
    let packed = |counts: Vec<usize>, here| {
        let total = counts.iter().sum();
        let counts = CuSeqlens::of_queries(counts).expect("few");
        kernels(
            &cached(total, 16, 256, &plain.clone().cu_seqlens(counts)),
            here,
        )
    };
    let decode = "fa_decode_mma_sm80_bf16_hd128";
    let on_hopper = "fa_decode_wgmma_sm90a_bf16_hd128";
    let (check, list) = (CHECK_CACHE.name, TILE_LIST.name);
    // A sequence, or no more tiles than multiprocessors, of 128 rows each, need no list.
    let of_batch = |batch, seq_q| {
        let problem = cached_batch(batch, seq_q, 16, 256, &plain);
        kernels(&problem, &HOPPER)
    };
    assert_eq!(of_batch(1, 4000), [check, on_hopper]);
    assert_eq!(of_batch(4, 512), [check, on_hopper]);
    assert_eq!(of_batch(5, 512), [check, list, on_hopper]);
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

/// Codes are converted by the instruction for it where a GPU has one.
#[test]
fn codes_are_converted_by_what_a_gpu_has() {
    let plain = cached(1, 16, 256, &ForwardOptions::new());
    let codes = |spec: &TensorSpec| TensorSpec {
        dtype: DType::E4m3,
        ..*spec
    };
    let layout = plain.cache_layout().expect("of a cache");
    let (q, k) = (*plain.q(), codes(plain.k()));
    let problem = Problem::decode(q, k, k, q, layout, &ForwardOptions::new()).expect("valid");
    for gpu in SINCE_AMPERE {
        let plan = Plan::new(&problem, &Capabilities::Gpu(gpu)).expect("every GPU runs it");
        let arch = if gpu.compute_capability >= (8, 9) {
            "sm89"
        } else {
            "sm80"
        };
        let expected = format!("fa_decode_mma_{arch}_bf16_hd128_e4m3");
        assert_eq!(
            plan.kernel_names().collect::<Vec<_>>(),
            [expected],
            "{gpu:?}"
        );
    }
}
