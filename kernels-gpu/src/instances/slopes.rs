//! The kernels of the gradient by ALiBi's slopes. One a head_dim, which fits every GPU: the tiles are those that the other
//! backward kernels have where shared memory is short.

use super::backward::{mma, simt};
use super::{Instance, Operation, joined};
use crate::config::mma_backward;
use crate::config::simt as config;
use crate::dtype::DType;

macro_rules! simt_instances {
    ($table:ident: $($name:ident = $config:path $(, $modifiers:ident)?;)*) => {
        $(
            /// `Σ dz · distance` of every tile of queries, in fp32.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address, and `sums` is that of an f32 a
            /// tile.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads, $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::BackwardParams,
                sums: u64,
                $($modifiers: crate::abi::ModifierParams,)?
            ) {
                struct Kernel;
                impl crate::simt::SimtKernel for Kernel {
                    const CONFIG: crate::config::simt::SimtConfig = $config;
                    type Modifiers = crate::__modifiers!(type $($modifiers)?);
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    let modifiers = crate::__modifiers!(value $($modifiers)?);
                    crate::simt::slopes::<Kernel, { $config.thread_rows }>(&params, &modifiers, sums)
                }
            }
        )*

        const $table: &[Instance] = &[$(
            simt(stringify!($name), Operation::BackwardSlopes, &$config)
        ),*];
    };
}

simt_instances! {
    SIMT:
    fa_bwd_slopes_simt_sm80_f32_hd64 = config::BACKWARD_HD64_SMEM99K;
    fa_bwd_slopes_simt_sm80_f32_hd128 = config::BACKWARD_HD128_SMEM99K;
    fa_bwd_slopes_simt_sm80_f32_hd256 = config::BACKWARD_HD256_SMEM99K;
}

simt_instances! {
    MODIFIED_SIMT:
    fa_bwd_slopes_simt_sm80_f32_hd64_modified = config::MODIFIED_BACKWARD_HD64, modifiers;
    fa_bwd_slopes_simt_sm80_f32_hd128_modified = config::MODIFIED_BACKWARD_HD128, modifiers;
    fa_bwd_slopes_simt_sm80_f32_hd256_modified = config::MODIFIED_BACKWARD_HD256, modifiers;
}

macro_rules! mma_instances {
    ($table:ident: $($name:ident = $dtype:ident $config:path $(, $modifiers:ident)?;)*) => {
        $(
            /// `Σ dz · distance` of every tile of queries.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address, and `sums` is that of an f32 a
            /// tile.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads(), $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::BackwardParams,
                sums: u64,
                $($modifiers: crate::abi::ModifierParams,)?
            ) {
                const CONFIG: crate::config::mma_backward::MmaBackwardConfig = $config;
                struct Kernel;
                impl crate::mma::MmaBackwardKernel for Kernel {
                    const CONFIG: crate::config::mma_backward::MmaBackwardConfig = CONFIG;
                    const ADDS_DQ: bool = false;
                    const SCALES_DS: bool = false;
                    type Element = cuda_std::half::$dtype;
                    type Side = crate::backward::side::KeepQueries;
                    type Modifiers = crate::__modifiers!(type $($modifiers)?);
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::mma::slopes::<
                        Kernel,
                        { CONFIG.scores().lane_rows() },
                        { CONFIG.scores().lane_cols() },
                    >(&params, &crate::__modifiers!(value $($modifiers)?), sums)
                }
            }
        )*

        const $table: &[Instance] = &[$(
            mma(stringify!($name), DType::$dtype, Operation::BackwardSlopes, &$config)
        ),*];
    };
}

mma_instances! {
    MMA:
    fa_bwd_slopes_mma_sm80_bf16_hd64 = Bf16 mma_backward::HD64;
    fa_bwd_slopes_mma_sm80_bf16_hd128 = Bf16 mma_backward::HD128_SMEM99K;
    fa_bwd_slopes_mma_sm80_bf16_hd256 = Bf16 mma_backward::HD256_SMEM99K;
    fa_bwd_slopes_mma_sm80_f16_hd64 = F16 mma_backward::HD64;
    fa_bwd_slopes_mma_sm80_f16_hd128 = F16 mma_backward::HD128_SMEM99K;
    fa_bwd_slopes_mma_sm80_f16_hd256 = F16 mma_backward::HD256_SMEM99K;
}

mma_instances! {
    MODIFIED_MMA:
    fa_bwd_slopes_mma_sm80_bf16_hd64_modified = Bf16 mma_backward::MODIFIED_HD64, modifiers;
    fa_bwd_slopes_mma_sm80_bf16_hd128_modified = Bf16 mma_backward::MODIFIED_HD128, modifiers;
    fa_bwd_slopes_mma_sm80_bf16_hd256_modified = Bf16 mma_backward::MODIFIED_HD256, modifiers;
    fa_bwd_slopes_mma_sm80_f16_hd64_modified = F16 mma_backward::MODIFIED_HD64, modifiers;
    fa_bwd_slopes_mma_sm80_f16_hd128_modified = F16 mma_backward::MODIFIED_HD128, modifiers;
    fa_bwd_slopes_mma_sm80_f16_hd256_modified = F16 mma_backward::MODIFIED_HD256, modifiers;
}

/// The gradients of slopes, from what the tiles left.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
#[cuda_std::kernel]
pub unsafe fn fa_bwd_slope_sums_simt_sm80_f32(params: crate::abi::SlopeSumsParams) {
    // SAFETY: forwarded to the launch.
    unsafe { crate::backward::slope_sums::slope_sums(&params) }
}

/// Every kernel that computes sums of tiles: one a dtype and head_dim. They take
/// [`BackwardParams`](crate::abi::BackwardParams) and the address of the sums.
pub const SLOPES: &[Instance] = &joined::<{ SIMT.len() + MMA.len() }>(SIMT, MMA);

/// Those of them with modifiers, which have the tiles of the kernels of dq with modifiers. They take
/// [`ModifierParams`](crate::abi::ModifierParams) too.
pub const MODIFIED: &[Instance] =
    &joined::<{ MODIFIED_SIMT.len() + MODIFIED_MMA.len() }>(MODIFIED_SIMT, MODIFIED_MMA);

/// The kernel that adds them up. It takes [`SlopeSumsParams`](crate::abi::SlopeSumsParams).
pub const SLOPE_SUMS: Instance = Instance::warp_per_row(
    "fa_bwd_slope_sums_simt_sm80_f32",
    DType::F32,
    Operation::BackwardSlopeSums,
);
