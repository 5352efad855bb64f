//! The kernels that take modifiers of single pairs ([`crate::modifiers`]): masks, biases, sinks, dropout. Those that fit every GPU,
//! larger ones that add dq up, and those of Hopper.

use super::backward::{MODIFIED_ROUND, mma, simt};
use super::mma::instance as mma_forward;
use super::simt::instance as simt_forward;
use super::{Instance, Operation, joined};
use super::{slopes, wgmma, wgmma_backward};
use crate::config::{mma as mma_config, mma_backward, simt as simt_config};
use crate::dtype::DType;

macro_rules! simt_instances {
    ($($forward:ident = $config:expr, $keys:ident, $queries:ident = $backward:expr;)*) => {
        entries! {
            $(
                crate::__simt_forward!($forward, $config, modifiers);
                crate::__simt_backward!($keys, KeepKeys, $backward, "dk and dv in fp32.", modifiers);
                crate::__simt_backward!($queries, KeepQueries, $backward, "dq in fp32.", modifiers);
            )*
        }

        const SIMT: &[Instance] = &[$(
            simt_forward(stringify!($forward), &$config),
            simt(stringify!($keys), Operation::BackwardKeys, &$backward),
            simt(stringify!($queries), Operation::BackwardQueries, &$backward),
        )*];
    };
}

simt_instances! {
    fa_fwd_simt_sm80_f32_hd64_modified = simt_config::MODIFIED_HD64,
        fa_bwd_dkdv_simt_sm80_f32_hd64_modified, fa_bwd_dq_simt_sm80_f32_hd64_modified = simt_config::MODIFIED_BACKWARD_HD64;
    fa_fwd_simt_sm80_f32_hd128_modified = simt_config::MODIFIED_HD128,
        fa_bwd_dkdv_simt_sm80_f32_hd128_modified, fa_bwd_dq_simt_sm80_f32_hd128_modified = simt_config::MODIFIED_BACKWARD_HD128;
    fa_fwd_simt_sm80_f32_hd256_modified = simt_config::MODIFIED_HD256,
        fa_bwd_dkdv_simt_sm80_f32_hd256_modified, fa_bwd_dq_simt_sm80_f32_hd256_modified = simt_config::MODIFIED_BACKWARD_HD256;
}

macro_rules! mma_instances {
    ($($forward:ident = $dtype:ident $config:expr, $keys:ident, $queries:ident = $backward:expr, $($fused:ident = $fused_config:expr),+;)*) => {
        entries! {
            $(
                crate::__mma_forward!($forward, $dtype, $config, modifiers);
                crate::__mma_backward!($keys, $dtype, KeepKeys, false, $backward, "dk and dv.", modifiers);
                crate::__mma_backward!($queries, $dtype, KeepQueries, false, $backward, "dq.", modifiers);
                $(
                    crate::__mma_backward!($fused, $dtype, KeepKeys, true, $fused_config, "dk and dv, and dq added up in f32.", modifiers);
                )+
            )*
        }

        const MMA: &[Instance] = &[$(
            mma_forward(stringify!($forward), DType::$dtype, &$config),
            mma(stringify!($keys), DType::$dtype, Operation::BackwardKeys, &$backward),
            mma(stringify!($queries), DType::$dtype, Operation::BackwardQueries, &$backward),
            $(mma(stringify!($fused), DType::$dtype, Operation::BackwardFused, &$fused_config),)+
        )*];
    };
}

mma_instances! {
    fa_fwd_mma_sm80_bf16_hd64_modified = Bf16 mma_config::MODIFIED_HD64,
        fa_bwd_dkdv_mma_sm80_bf16_hd64_modified, fa_bwd_dq_mma_sm80_bf16_hd64_modified = mma_backward::MODIFIED_HD64,
        fa_bwd_fused_mma_sm80_bf16_hd64_modified = mma_backward::MODIFIED_FUSED_HD64,
        fa_bwd_fused_mma_sm80_bf16_hd64_biased = mma_backward::BIASED_FUSED_HD64;
    fa_fwd_mma_sm80_bf16_hd128_modified = Bf16 mma_config::MODIFIED_HD128,
        fa_bwd_dkdv_mma_sm80_bf16_hd128_modified, fa_bwd_dq_mma_sm80_bf16_hd128_modified = mma_backward::MODIFIED_HD128,
        fa_bwd_fused_mma_sm80_bf16_hd128_modified = mma_backward::MODIFIED_FUSED_HD128,
        fa_bwd_fused_mma_sm80_bf16_hd128_biased = mma_backward::BIASED_FUSED_HD128,
        fa_bwd_fused_mma_sm80_bf16_hd128_smem99k_modified = mma_backward::MODIFIED_FUSED_HD128_SMEM99K,
        fa_bwd_fused_mma_sm80_bf16_hd128_smem99k_biased = mma_backward::BIASED_FUSED_HD128_SMEM99K;
    fa_fwd_mma_sm80_bf16_hd256_modified = Bf16 mma_config::MODIFIED_HD256,
        fa_bwd_dkdv_mma_sm80_bf16_hd256_modified, fa_bwd_dq_mma_sm80_bf16_hd256_modified = mma_backward::MODIFIED_HD256,
        fa_bwd_fused_mma_sm80_bf16_hd256_modified = mma_backward::HD256,
        fa_bwd_fused_mma_sm80_bf16_hd256_smem99k_modified = mma_backward::HD256_SMEM99K;
    fa_fwd_mma_sm80_f16_hd64_modified = F16 mma_config::MODIFIED_HD64,
        fa_bwd_dkdv_mma_sm80_f16_hd64_modified, fa_bwd_dq_mma_sm80_f16_hd64_modified = mma_backward::MODIFIED_HD64,
        fa_bwd_fused_mma_sm80_f16_hd64_modified = mma_backward::MODIFIED_FUSED_HD64,
        fa_bwd_fused_mma_sm80_f16_hd64_biased = mma_backward::BIASED_FUSED_HD64;
    fa_fwd_mma_sm80_f16_hd128_modified = F16 mma_config::MODIFIED_HD128,
        fa_bwd_dkdv_mma_sm80_f16_hd128_modified, fa_bwd_dq_mma_sm80_f16_hd128_modified = mma_backward::MODIFIED_HD128,
        fa_bwd_fused_mma_sm80_f16_hd128_modified = mma_backward::MODIFIED_FUSED_HD128,
        fa_bwd_fused_mma_sm80_f16_hd128_biased = mma_backward::BIASED_FUSED_HD128,
        fa_bwd_fused_mma_sm80_f16_hd128_smem99k_modified = mma_backward::MODIFIED_FUSED_HD128_SMEM99K,
        fa_bwd_fused_mma_sm80_f16_hd128_smem99k_biased = mma_backward::BIASED_FUSED_HD128_SMEM99K;
    fa_fwd_mma_sm80_f16_hd256_modified = F16 mma_config::MODIFIED_HD256,
        fa_bwd_dkdv_mma_sm80_f16_hd256_modified, fa_bwd_dq_mma_sm80_f16_hd256_modified = mma_backward::MODIFIED_HD256,
        fa_bwd_fused_mma_sm80_f16_hd256_modified = mma_backward::HD256,
        fa_bwd_fused_mma_sm80_f16_hd256_smem99k_modified = mma_backward::HD256_SMEM99K;
}

/// Every kernel that takes modifiers: the parameters of the kernel without them, and
/// [`ModifierParams`](crate::abi::ModifierParams).
pub const MODIFIED: &[Instance] =
    &joined::<{ ON_EVERY_GPU.len() + ON_HOPPER.len() }>(ON_EVERY_GPU, ON_HOPPER);

const ON_EVERY_GPU: &[Instance] =
    &joined::<{ ONE_PASS.len() + slopes::MODIFIED.len() }>(ONE_PASS, slopes::MODIFIED);

const ONE_PASS: &[Instance] = &joined::<{ SIMT.len() + OF_HALVES.len() }>(SIMT, OF_HALVES);

const OF_HALVES: &[Instance] = &joined::<{ MMA.len() + MODIFIED_ROUND.len() }>(MMA, MODIFIED_ROUND);

const ON_HOPPER: &[Instance] = &joined::<{ wgmma::MODIFIED.len() + wgmma_backward::MODIFIED.len() }>(
    wgmma::MODIFIED,
    wgmma_backward::MODIFIED,
);

/// What the pairs of every tile and block look like.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
#[cuda_std::kernel]
pub unsafe fn fa_block_states_simt_sm80(params: crate::abi::BlockStatesParams) {
    // SAFETY: forwarded to the launch.
    unsafe {
        crate::tile::block_states::block_states::<{ crate::config::warp_per_row::ROWS }, _>(
            &params,
            &params.modifiers,
        )
    }
}

/// The kernel that finds the state of every tile and block. It takes
/// [`BlockStatesParams`](crate::abi::BlockStatesParams).
pub const BLOCK_STATES: Instance = Instance::warp_per_row(
    "fa_block_states_simt_sm80",
    DType::F32,
    Operation::BlockStates,
);

/// Which probabilities a part of a backward pass keeps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[cuda_std::launch_bounds(
    crate::config::warp_per_row::THREADS,
    crate::config::warp_per_row::KEEP_MASK_BLOCKS
)]
#[cuda_std::kernel]
pub unsafe fn fa_keep_mask_simt_sm80(params: crate::abi::KeepMaskParams) {
    // SAFETY: forwarded to the launch.
    unsafe { crate::tile::keep_mask::keep_mask::<{ crate::config::warp_per_row::ROWS }>(&params) }
}

/// The kernel that makes the keep mask of backward kernels that add dq up. It takes
/// [`KeepMaskParams`](crate::abi::KeepMaskParams).
pub const KEEP_MASK: Instance =
    Instance::warp_per_row("fa_keep_mask_simt_sm80", DType::F32, Operation::KeepMask);

/// The gradients of sinks.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
#[cuda_std::kernel]
pub unsafe fn fa_bwd_sinks_simt_sm80_f32(params: crate::abi::SinkGradientParams) {
    // SAFETY: forwarded to the launch.
    unsafe { crate::backward::sinks::sinks(&params) }
}

/// The kernel that computes the gradients of sinks. It takes
/// [`SinkGradientParams`](crate::abi::SinkGradientParams).
pub const SINK_GRADIENT: Instance = Instance::warp_per_row(
    "fa_bwd_sinks_simt_sm80_f32",
    DType::F32,
    Operation::BackwardSinks,
);
