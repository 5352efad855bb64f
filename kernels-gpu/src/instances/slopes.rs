//! The kernels of the gradient by ALiBi's slopes. One a head_dim, which fits every GPU: the tiles are those that the other
//! backward kernels have where shared memory is short.

use super::backward::{mma, simt};
use super::{Instance, Operation, joined};
use crate::config::mma_backward;
use crate::config::simt as config;
use crate::dtype::DType;

macro_rules! simt_instances {
    ($($name:ident = $config:path;)*) => {
        $(
            /// `Σ dz · distance` of every tile of queries, in fp32.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address, and `sums` is that of an f32 a
            /// tile.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads, $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::BackwardParams, sums: u64) {
                struct Kernel;
                impl crate::simt::SimtKernel for Kernel {
                    const CONFIG: crate::config::simt::SimtConfig = $config;
                    type Modifiers = crate::modifiers::NoModifiers;
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    let modifiers = crate::modifiers::NoModifiers;
                    crate::simt::slopes::<Kernel, { $config.thread_rows }>(&params, &modifiers, sums)
                }
            }
        )*

        const SIMT: &[Instance] = &[$(
            simt(stringify!($name), Operation::BackwardSlopes, &$config)
        ),*];
    };
}

simt_instances! {
    fa_bwd_slopes_simt_sm80_f32_hd64 = config::BACKWARD_HD64_SMEM99K;
    fa_bwd_slopes_simt_sm80_f32_hd128 = config::BACKWARD_HD128_SMEM99K;
    fa_bwd_slopes_simt_sm80_f32_hd256 = config::BACKWARD_HD256_SMEM99K;
}

macro_rules! mma_instances {
    ($($name:ident = $dtype:ident $config:path;)*) => {
        $(
            /// `Σ dz · distance` of every tile of queries.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address, and `sums` is that of an f32 a
            /// tile.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads(), $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::BackwardParams, sums: u64) {
                const CONFIG: crate::config::mma_backward::MmaBackwardConfig = $config;
                struct Kernel;
                impl crate::mma::MmaBackwardKernel for Kernel {
                    const CONFIG: crate::config::mma_backward::MmaBackwardConfig = CONFIG;
                    const ADDS_DQ: bool = false;
                    const SCALES_DS: bool = false;
                    type Element = cuda_std::half::$dtype;
                    type Side = crate::backward::side::KeepQueries;
                    type Modifiers = crate::modifiers::NoModifiers;
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::mma::slopes::<
                        Kernel,
                        { CONFIG.scores().lane_rows() },
                        { CONFIG.scores().lane_cols() },
                    >(&params, &crate::modifiers::NoModifiers, sums)
                }
            }
        )*

        const MMA: &[Instance] = &[$(
            mma(stringify!($name), DType::$dtype, Operation::BackwardSlopes, &$config)
        ),*];
    };
}

mma_instances! {
    fa_bwd_slopes_mma_sm80_bf16_hd64 = Bf16 mma_backward::HD64;
    fa_bwd_slopes_mma_sm80_bf16_hd128 = Bf16 mma_backward::HD128_SMEM99K;
    fa_bwd_slopes_mma_sm80_bf16_hd256 = Bf16 mma_backward::HD256_SMEM99K;
    fa_bwd_slopes_mma_sm80_f16_hd64 = F16 mma_backward::HD64;
    fa_bwd_slopes_mma_sm80_f16_hd128 = F16 mma_backward::HD128_SMEM99K;
    fa_bwd_slopes_mma_sm80_f16_hd256 = F16 mma_backward::HD256_SMEM99K;
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

/// The kernel that adds them up. It takes [`SlopeSumsParams`](crate::abi::SlopeSumsParams).
pub const SLOPE_SUMS: Instance = Instance::warp_per_row(
    "fa_bwd_slope_sums_simt_sm80_f32",
    DType::F32,
    Operation::BackwardSlopeSums,
);
