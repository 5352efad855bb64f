//! The Hopper backward kernels.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::wgmma_backward::{self, WgmmaBackwardConfig};
use crate::dtype::DType;

/// The row of a kernel.
const fn instance(
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

/// `name = dtype, side, operation, config, rs|ss;`: what is kept from registers or from shared memory.
macro_rules! instances {
    ($($name:ident = $dtype:ident, $side:ident, $operation:ident, $config:expr, $kept:ident;)*) => {
        $(
            /// Gradients in 16 bits on Hopper.
            ///
            /// # Safety
            /// `params` and the tensor maps of q, k, v and d_o describe the same live allocations.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_90a"))]
            #[cuda_std::launch_bounds($config.threads(), 1)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::BackwardParams,
                _q: crate::wgmma::tensor_map::TensorMap,
                _k: crate::wgmma::tensor_map::TensorMap,
                _v: crate::wgmma::tensor_map::TensorMap,
                _d_o: crate::wgmma::tensor_map::TensorMap,
            ) {
                use crate::wgmma::backward::{backward, traits::BackwardKernel};
                use crate::wgmma::forward::traits;
                const CONFIG: WgmmaBackwardConfig = $config;
                struct Kernel;
                impl traits::TensorMapParams for Kernel {
                    #[inline(always)]
                    fn address<const PARAMETER: u32>() -> u64 {
                        cuda_std::tensor_map_parameter!($name, PARAMETER)
                    }
                }
                impl BackwardKernel<
                    { CONFIG.block_n as usize / 2 },
                    { CONFIG.block_n as usize / 4 },
                    { CONFIG.head_dim as usize / 2 },
                > for Kernel {
                    const CONFIG: WgmmaBackwardConfig = CONFIG;
                    type Side = crate::backward::side::$side;
                    type Element = cuda_std::half::$dtype;
                    type Kept = instances!(@kept $kept, $dtype);
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
                    >(&params)
                }
            }
        )*

        pub const INSTANCES: &[Instance] = &[$(
            instance(stringify!($name), DType::$dtype, Operation::$operation, &$config)
        ),*];
    };
    (@kept rs, $dtype:ident) => {
        traits::QkRs<cuda_std::half::$dtype, { CONFIG.head_dim as usize / 4 }>
    };
    (@kept ss, $dtype:ident) => {
        traits::QkSs<cuda_std::half::$dtype, { CONFIG.head_dim as usize }>
    };
}

instances! {
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
