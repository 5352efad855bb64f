//! The kernels of the gradient by a bias. One a head_dim, which fits every GPU, with the tiles of the kernels of dq with modifiers, whose
//! block states they read.

use super::backward::{mma, simt};
use super::{Instance, Operation, joined};
use crate::config::{mma_backward, simt as config};
use crate::dtype::DType;

macro_rules! simt_instances {
    ($($name:ident = $config:path;)*) => {
        $(
            /// The gradient by a bias, in fp32.
            ///
            /// # Safety
            /// `params` and `of` describe live allocations that hold every element they can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads, $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::BackwardParams,
                modifiers: crate::abi::ModifierParams,
                of: crate::abi::BiasGradientParams,
            ) {
                struct Kernel;
                impl crate::simt::SimtKernel for Kernel {
                    const CONFIG: crate::config::simt::SimtConfig = $config;
                    type Modifiers = crate::abi::ModifierParams;
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::simt::bias::<
                        Kernel,
                        { $config.thread_rows },
                        { $config.threads / cuda_std::warp::WARP_SIZE },
                    >(&params, &modifiers, &of)
                }
            }
        )*

        const SIMT: &[Instance] = &[$(
            simt(stringify!($name), Operation::BackwardBias, &$config)
        ),*];
    };
}

simt_instances! {
    fa_bwd_bias_simt_sm80_f32_hd64 = config::MODIFIED_BACKWARD_HD64;
    fa_bwd_bias_simt_sm80_f32_hd128 = config::MODIFIED_BACKWARD_HD128;
    fa_bwd_bias_simt_sm80_f32_hd256 = config::MODIFIED_BACKWARD_HD256;
}

macro_rules! mma_instances {
    ($($name:ident = $dtype:ident $config:path;)*) => {
        $(
            /// The gradient by a bias.
            ///
            /// # Safety
            /// `params` and `of` describe live allocations that hold every element they can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads(), $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::BackwardParams,
                modifiers: crate::abi::ModifierParams,
                of: crate::abi::BiasGradientParams,
            ) {
                const CONFIG: crate::config::mma_backward::MmaBackwardConfig = $config;
                struct Kernel;
                impl crate::mma::MmaBackwardKernel for Kernel {
                    const CONFIG: crate::config::mma_backward::MmaBackwardConfig = CONFIG;
                    const ADDS_DQ: bool = false;
                    const SCALES_DS: bool = false;
                    type Element = cuda_std::half::$dtype;
                    type Side = crate::backward::side::KeepQueries;
                    type Modifiers = crate::abi::ModifierParams;
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::mma::bias::<
                        Kernel,
                        { CONFIG.scores().lane_rows() },
                        { CONFIG.scores().lane_cols() },
                        { CONFIG.score_warps as u32 },
                        { CONFIG.block_n as u32 },
                    >(&params, &modifiers, &of)
                }
            }
        )*

        const MMA: &[Instance] = &[$(
            mma(stringify!($name), DType::$dtype, Operation::BackwardBias, &$config)
        ),*];
    };
}

mma_instances! {
    fa_bwd_bias_mma_sm80_bf16_hd64 = Bf16 mma_backward::BIAS_HD64;
    fa_bwd_bias_mma_sm80_bf16_hd128 = Bf16 mma_backward::BIAS_HD128;
    fa_bwd_bias_mma_sm80_bf16_hd256 = Bf16 mma_backward::BIAS_HD256;
    fa_bwd_bias_mma_sm80_f16_hd64 = F16 mma_backward::BIAS_HD64;
    fa_bwd_bias_mma_sm80_f16_hd128 = F16 mma_backward::BIAS_HD128;
    fa_bwd_bias_mma_sm80_f16_hd256 = F16 mma_backward::BIAS_HD256;
}

/// Every kernel that computes the gradient by a bias: one a dtype and head_dim. They take
/// [`BackwardParams`](crate::abi::BackwardParams), [`ModifierParams`](crate::abi::ModifierParams) and
/// [`BiasGradientParams`](crate::abi::BiasGradientParams).
pub const BIAS: &[Instance] = &joined::<{ SIMT.len() + MMA.len() }>(SIMT, MMA);
