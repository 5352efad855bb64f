//! The Hopper backward kernels that pass dS through a workspace.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::wgmma_backward_split::{self, SplitKeysConfig, SplitQueriesConfig};
use crate::dtype::DType;

/// The row of a kernel of dk and dv.
const fn keys(name: &'static str, dtype: DType, config: &'static SplitKeysConfig) -> Instance {
    Instance {
        name,
        family: Family::Wgmma,
        arch: Arch::Sm90a,
        dtype,
        head_dim: config.blocks.head_dim,
        block_m: config.blocks.block_m(),
        block_n: config.blocks.block_n,
        threads: config.threads(),
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation: Operation::BackwardSplitKeys,
        config: KernelConfig::Fixed,
    }
}

/// The row of a kernel of dq.
const fn queries(
    name: &'static str,
    dtype: DType,
    config: &'static SplitQueriesConfig,
) -> Instance {
    Instance {
        name,
        family: Family::Wgmma,
        arch: Arch::Sm90a,
        dtype,
        head_dim: config.blocks.head_dim,
        block_m: config.blocks.block_m(),
        block_n: config.blocks.block_n,
        threads: config.blocks.threads(),
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation: Operation::BackwardSplitQueries,
        config: KernelConfig::Fixed,
    }
}

macro_rules! instances {
    ($($keys:ident, $queries:ident = $dtype:ident, $keys_config:expr, $queries_config:expr;)*) => {
        $(
            keys_kernel!($keys, $dtype, $keys_config);
            queries_kernel!($queries, $dtype, $queries_config);
        )*

        pub const INSTANCES: &[Instance] = &[$(
            keys(stringify!($keys), DType::$dtype, &$keys_config),
            queries(stringify!($queries), DType::$dtype, &$queries_config),
        )*];
    };
}

macro_rules! keys_kernel {
    ($name:ident, $dtype:ident, $config:expr) => {
        /// dk and dv in 16 bits on Hopper, and dS to a workspace.
        ///
        /// # Safety
        /// `params` and the tensor maps of q, k, v and d_o describe the same live allocations, and a workspace that holds the
        /// chunk's dS.
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
            use crate::wgmma::backward::split;
            use crate::wgmma::backward::traits::BackwardKernel;
            use crate::wgmma::forward::traits;
            const CONFIG: SplitKeysConfig = $config;
            const S_REGS: usize = CONFIG.blocks.block_n as usize / 2;
            const P_REGS: usize = CONFIG.blocks.block_n as usize / 4;
            const SUM_REGS: usize = CONFIG.blocks.head_dim as usize / 2;
            struct Kernel;
            impl traits::TensorMapParams for Kernel {
                #[inline(always)]
                fn address<const PARAMETER: u32>() -> u64 {
                    cuda_std::tensor_map_parameter!($name, PARAMETER)
                }
            }
            impl BackwardKernel<S_REGS, P_REGS, SUM_REGS> for Kernel {
                const CONFIG: crate::config::wgmma_backward::WgmmaBackwardConfig = CONFIG.blocks;
                type Side = crate::backward::side::KeepKeys;
                type Modifiers = crate::modifiers::NoModifiers;
                type Element = cuda_std::half::$dtype;
                type Kept =
                    traits::QkSs<cuda_std::half::$dtype, { CONFIG.blocks.head_dim as usize }>;
            }
            impl split::SplitKeysKernel<S_REGS, P_REGS, SUM_REGS> for Kernel {
                const SPLIT: SplitKeysConfig = CONFIG;
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                split::keys::<
                    Kernel,
                    { CONFIG.blocks.producer_registers },
                    { CONFIG.blocks.consumer_registers },
                    S_REGS,
                    P_REGS,
                    SUM_REGS,
                >(&params)
            }
        }
    };
}

macro_rules! queries_kernel {
    ($name:ident, $dtype:ident, $config:expr) => {
        /// dq in 16 bits on Hopper, of dS in a workspace.
        ///
        /// # Safety
        /// As for the kernel of dk and dv, which has run with the same parameters.
        #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_90a"))]
        #[cuda_std::launch_bounds($config.blocks.threads(), 1)]
        #[cuda_std::kernel]
        pub unsafe fn $name(
            params: crate::abi::BackwardParams,
            _q: crate::wgmma::tensor_map::TensorMap,
            _k: crate::wgmma::tensor_map::TensorMap,
            _v: crate::wgmma::tensor_map::TensorMap,
            _d_o: crate::wgmma::tensor_map::TensorMap,
        ) {
            use crate::wgmma::backward::split;
            const CONFIG: SplitQueriesConfig = $config;
            const SUM_REGS: usize = CONFIG.blocks.head_dim as usize / 2;
            struct Kernel;
            impl crate::wgmma::forward::traits::TensorMapParams for Kernel {
                #[inline(always)]
                fn address<const PARAMETER: u32>() -> u64 {
                    cuda_std::tensor_map_parameter!($name, PARAMETER)
                }
            }
            impl split::SplitQueriesKernel<SUM_REGS> for Kernel {
                const SPLIT: SplitQueriesConfig = CONFIG;
                type Element = cuda_std::half::$dtype;
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                split::queries::<
                    Kernel,
                    { CONFIG.blocks.producer_registers },
                    { CONFIG.blocks.consumer_registers },
                    SUM_REGS,
                >(&params)
            }
        }
    };
}

instances! {
    fa_bwd_split_dkdv_wgmma_sm90a_bf16_hd192, fa_bwd_split_dq_wgmma_sm90a_bf16_hd192
        = Bf16, wgmma_backward_split::KEYS_HD192, wgmma_backward_split::QUERIES_HD192;
    fa_bwd_split_dkdv_wgmma_sm90a_bf16_hd256, fa_bwd_split_dq_wgmma_sm90a_bf16_hd256
        = Bf16, wgmma_backward_split::KEYS_HD256, wgmma_backward_split::QUERIES_HD256;
    fa_bwd_split_dkdv_wgmma_sm90a_f16_hd192, fa_bwd_split_dq_wgmma_sm90a_f16_hd192
        = F16, wgmma_backward_split::KEYS_HD192, wgmma_backward_split::QUERIES_HD192;
    fa_bwd_split_dkdv_wgmma_sm90a_f16_hd256, fa_bwd_split_dq_wgmma_sm90a_f16_hd256
        = F16, wgmma_backward_split::KEYS_HD256, wgmma_backward_split::QUERIES_HD256;
}
