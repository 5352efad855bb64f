//! Packed sequences: which kernels take them, and which short ones.

use ferroflash::plan::{eligible, find_instance, preferred};
use ferroflash::{
    Capabilities, CuSeqlens, DType, DeviceLengths, ForwardOptions, Layout, Plan, Problem, Shape,
    TensorSpec, Variant,
};
use kernels_gpu::instances::Family;

use super::{HOPPER, planned, problem, variant};

/// A packed problem whose operands have rows of `heads · head_dim` elements.
pub fn packed(dtype: DType, head_dim: usize, force: Option<Variant>) -> Problem {
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
    let kernels = |lengths| {
        let problem = packed_of(lengths, DType::Bf16, 64, None);
        let plan = Plan::new(&problem, &HOPPER).expect("eligible");
        plan.kernel_names().collect::<Vec<_>>()
    };
    // Packed ones have a block for each tile, or are of about one length.
    let hopper = "fa_fwd_wgmma_sm90a_bf16_hd64_varlen";
    assert_eq!(kernels([4, 6]), [hopper]);
    assert_eq!(kernels([50_000, 49_000]), [hopper]);
    let listed = kernels([4, 50_000]);
    assert_eq!(listed, ["fa_tile_list_wgmma_sm80", hopper]);
    // The tiles of padded ones whose keys are partly used are listed, or go to kernels that need no list.
    let options = ForwardOptions::new;
    let differ = || options().lengths(DeviceLengths::seqused_kv());
    let padded_of = |seq, options: &ForwardOptions, heads, dim, dtype| {
        let shape = Shape {
            batch: 2,
            heads,
            seq,
            dim,
        };
        let spec = TensorSpec::contiguous(dtype, shape, Layout::Bshd).expect("small");
        Problem::with_dense_output(spec, spec, spec, options).expect("valid")
    };
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
                let problem = padded_of(longest, &differ(), 2, head_dim, dtype);
                assert_eq!(chosen(&problem), expected, "{longest} rows of {head_dim}");
            }
        }
    }
    let plan = Plan::new(&padded_of(6, &differ(), 2, 64, DType::Bf16), &HOPPER).expect("eligible");
    assert!(plan.kernel_names().eq(["fa_fwd_mma_sm80_bf16_hd64"]));
    assert_eq!(plan.workspace_bytes(), 0);
    let of_length = |seq, options: &ForwardOptions, heads| {
        chosen(&padded_of(seq, options, heads, 64, DType::Bf16))
    };
    let padded = |options: &ForwardOptions, heads| of_length(512, options, heads);
    assert_eq!(padded(&options(), 2), Variant::Wgmma);
    assert_eq!(padded(&differ(), 2), Variant::Mma);
    assert_eq!(padded(&differ().softcap(9.0), 2), Variant::Mma);
    // More tiles than a GPU works on at once, and kernels whose modifiers were not timed.
    assert_eq!(padded(&differ(), 16), Variant::Mma);
    assert_eq!(padded(&differ(), 17), Variant::Wgmma);
    assert_eq!(of_length(1, &differ(), 132), Variant::Mma);
    assert_eq!(of_length(1, &differ(), 133), Variant::Wgmma);
    assert_eq!(padded(&differ().chunk(9), 2), Variant::Wgmma);
}
