//! The Hopper backward kernels.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::wgmma_backward::{self, WgmmaBackwardConfig};
use crate::dtype::DType;

/// The row of a kernel.
pub const fn instance(
    name: &'static str,
    dtype: DType,
    operation: Operation,
    config: &'static WgmmaBackwardConfig,
) -> Instance {
    Instance {
        name,
        family: Family::Wgmma,
        arch: Arch::Sm90a,
        dtype,
        head_dim: config.head_dim,
        block_m: config.block_m(),
        block_n: config.block_n,
        threads: config.threads(),
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation,
        config: KernelConfig::WgmmaBackward(config),
    }
}

/// Kernel `name` of an element type and a side, with what is kept from registers or from shared memory (rs or ss), and modifiers if it
/// takes any.
#[doc(hidden)]
#[macro_export]
macro_rules! __wgmma_backward {
    ($name:ident, $dtype:ident, $side:ident, $config:expr, $kept:ident $(, $modifiers:ident $(: $type:ty)?)? $(; $suffix:ident)?) => {
        /// Gradients in 16 bits on Hopper.
        ///
        /// # Safety
        /// `params` and the tensor maps of q, k, v and d_o describe the same live allocations. The arrays of modifiers have
        /// an element for every pair.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($config.threads(), 1)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::BackwardParams,
            _q: $crate::wgmma::tensor_map::TensorMap,
            _k: $crate::wgmma::tensor_map::TensorMap,
            _v: $crate::wgmma::tensor_map::TensorMap,
            _d_o: $crate::wgmma::tensor_map::TensorMap,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
        ) {
            use $crate::wgmma::backward::{backward, traits::BackwardKernel};
            use $crate::wgmma::forward::traits;
            const CONFIG: $crate::config::wgmma_backward::WgmmaBackwardConfig = $config;
            struct Kernel;
            impl traits::TensorMapParams for Kernel {
                #[inline(always)]
                fn address<const PARAMETER: u32>() -> u64 {
                    $crate::cuda_std::tensor_map_parameter!($name $(; $suffix)?, PARAMETER)
                }
            }
            impl BackwardKernel<
                { CONFIG.block_n as usize / 2 },
                { CONFIG.block_n as usize / 4 },
                { CONFIG.head_dim as usize / 2 },
            > for Kernel {
                const CONFIG: $crate::config::wgmma_backward::WgmmaBackwardConfig = CONFIG;
                type Side = $crate::backward::side::$side;
                type Modifiers = $crate::__modifiers!(type $($modifiers $(: $type)?)?);
                type Element = $crate::cuda_std::half::$dtype;
                type Kept = $crate::__wgmma_backward!(@kept $kept, $dtype);
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                backward::<
                    Kernel,
                    { CONFIG.producer_registers },
                    { CONFIG.consumer_registers },
                    { CONFIG.block_n as usize / 2 },
                    { CONFIG.block_n as usize / 4 },
                    { CONFIG.head_dim as usize / 2 },
                >(&params, &$crate::__modifiers!(value $($modifiers)?))
            }
        }
    };
    (@kept rs, $dtype:ident) => {
        traits::QkRs<$crate::cuda_std::half::$dtype, { CONFIG.head_dim as usize / 4 }>
    };
    (@kept ss, $dtype:ident) => {
        traits::QkSs<$crate::cuda_std::half::$dtype, { CONFIG.head_dim as usize }>
    };
}

macro_rules! instances {
    ($table:ident: $($name:ident = $dtype:ident, $side:ident, $operation:ident, $config:expr, $kept:ident $(, $modifiers:ident)?;)*) => {
        $(
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_90a"))]
            crate::__wgmma_backward!($name, $dtype, $side, $config, $kept $(, $modifiers)?);
        )*

        pub const $table: &[Instance] = &[$(
            instance(stringify!($name), DType::$dtype, Operation::$operation, &$config)
        ),*];
    };
}

instances! {
    INSTANCES:
    fa_bwd_dkdv_wgmma_sm90a_bf16_hd64 = Bf16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD64, rs;
    fa_bwd_fused_wgmma_sm90a_bf16_hd64 = Bf16, KeepKeys, BackwardFused, wgmma_backward::FUSED_HD64, rs;
    fa_bwd_dq_wgmma_sm90a_bf16_hd64 = Bf16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD64, rs;
    fa_bwd_dkdv_wgmma_sm90a_bf16_hd128 = Bf16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD128, ss;
    fa_bwd_fused_wgmma_sm90a_bf16_hd128 = Bf16, KeepKeys, BackwardFused, wgmma_backward::FUSED_HD128, ss;
    fa_bwd_dq_wgmma_sm90a_bf16_hd128 = Bf16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD128, rs;
    fa_bwd_dkdv_wgmma_sm90a_f16_hd64 = F16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD64, rs;
    fa_bwd_fused_wgmma_sm90a_f16_hd64 = F16, KeepKeys, BackwardFused, wgmma_backward::FUSED_HD64, rs;
    fa_bwd_dq_wgmma_sm90a_f16_hd64 = F16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD64, rs;
    fa_bwd_dkdv_wgmma_sm90a_f16_hd128 = F16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD128, ss;
    fa_bwd_fused_wgmma_sm90a_f16_hd128 = F16, KeepKeys, BackwardFused, wgmma_backward::FUSED_HD128, ss;
    fa_bwd_dq_wgmma_sm90a_f16_hd128 = F16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD128, rs;
}

// For dq at head_dim 64, Q and dO stay in shared memory: ptxas 13.0 lets dS take the registers that they would be kept in
// (`xtask/tools/src/sass/kept.rs`).
instances! {
    MODIFIED:
    fa_bwd_dkdv_wgmma_sm90a_bf16_hd64_modified = Bf16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD64, rs, modifiers;
    fa_bwd_fused_wgmma_sm90a_bf16_hd64_modified = Bf16, KeepKeys, BackwardFused, wgmma_backward::MODIFIED_FUSED_HD64, rs, modifiers;
    fa_bwd_dq_wgmma_sm90a_bf16_hd64_modified = Bf16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD64, ss, modifiers;
    fa_bwd_dkdv_wgmma_sm90a_bf16_hd128_modified = Bf16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD128, ss, modifiers;
    fa_bwd_fused_wgmma_sm90a_bf16_hd128_modified = Bf16, KeepKeys, BackwardFused, wgmma_backward::MODIFIED_FUSED_HD128, ss, modifiers;
    fa_bwd_dq_wgmma_sm90a_bf16_hd128_modified = Bf16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD128, rs, modifiers;
    fa_bwd_dkdv_wgmma_sm90a_f16_hd64_modified = F16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD64, rs, modifiers;
    fa_bwd_fused_wgmma_sm90a_f16_hd64_modified = F16, KeepKeys, BackwardFused, wgmma_backward::MODIFIED_FUSED_HD64, rs, modifiers;
    fa_bwd_dq_wgmma_sm90a_f16_hd64_modified = F16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD64, ss, modifiers;
    fa_bwd_dkdv_wgmma_sm90a_f16_hd128_modified = F16, KeepKeys, BackwardKeys, wgmma_backward::DKDV_HD128, ss, modifiers;
    fa_bwd_fused_wgmma_sm90a_f16_hd128_modified = F16, KeepKeys, BackwardFused, wgmma_backward::MODIFIED_FUSED_HD128, ss, modifiers;
    fa_bwd_dq_wgmma_sm90a_f16_hd128_modified = F16, KeepQueries, BackwardQueries, wgmma_backward::DQ_HD128, rs, modifiers;
    fa_bwd_fused_wgmma_sm90a_bf16_hd64_biased = Bf16, KeepKeys, BackwardFused, wgmma_backward::BIASED_FUSED_HD64, rs, modifiers;
    fa_bwd_fused_wgmma_sm90a_bf16_hd128_biased = Bf16, KeepKeys, BackwardFused, wgmma_backward::BIASED_FUSED_HD128, ss, modifiers;
    fa_bwd_fused_wgmma_sm90a_f16_hd64_biased = F16, KeepKeys, BackwardFused, wgmma_backward::BIASED_FUSED_HD64, rs, modifiers;
    fa_bwd_fused_wgmma_sm90a_f16_hd128_biased = F16, KeepKeys, BackwardFused, wgmma_backward::BIASED_FUSED_HD128, ss, modifiers;
}
