//! The fp32 backward kernels between which dS passes.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::simt::SimtConfig;
use crate::config::simt_split::{self, SplitKeysConfig, SplitQueriesConfig};
use crate::dtype::DType;

/// The row of a kernel of dk and dv.
const fn keys(name: &'static str, config: &'static SplitKeysConfig) -> Instance {
    Instance {
        name,
        family: Family::Simt,
        arch: Arch::Sm80,
        dtype: DType::F32,
        head_dim: config.group.head_dim as u32,
        block_m: config.group.block_m() as u32,
        block_n: SimtConfig::BLOCK_N as u32,
        threads: config.threads(),
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation: Operation::BackwardSplitKeys,
        config: KernelConfig::Simt(&config.group),
    }
}

/// The row of a kernel of dq.
const fn queries(name: &'static str, config: &'static SplitQueriesConfig) -> Instance {
    Instance {
        name,
        block_m: SplitQueriesConfig::BLOCK_M as u32,
        block_n: config.block_n() as u32,
        threads: config.threads,
        shared_bytes: config.shared_bytes(),
        operation: Operation::BackwardSplitQueries,
        ..keys(name, &config.keys)
    }
}

macro_rules! instances {
    ($($keys:ident, $queries:ident = $config:path;)*) => {
        $(
            /// dk and dv in fp32, and dS to the workspace.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.keys.threads(), $config.keys.group.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $keys(params: crate::abi::BackwardParams) {
                struct Kernel;
                impl crate::simt::split::SplitKeysKernel for Kernel {
                    const CONFIG: SplitKeysConfig = $config.keys;
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::simt::split::keys::<
                        Kernel,
                        { $config.keys.group.thread_rows },
                        { $config.keys.group.output_cols() },
                    >(&params)
                }
            }

            /// dq in fp32, of the dS in the workspace.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($config.threads, $config.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $queries(params: crate::abi::BackwardParams) {
                struct Kernel;
                impl crate::simt::split::SplitQueriesKernel for Kernel {
                    const CONFIG: SplitQueriesConfig = $config;
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::simt::split::queries::<
                        Kernel,
                        { $config.thread_cols() },
                        { $config.lanes() },
                    >(&params)
                }
            }
        )*

        pub const INSTANCES: &[Instance] = &[$(
            keys(stringify!($keys), &$config.keys),
            queries(stringify!($queries), &$config),
        )*];
    };
}

instances! {
    fa_bwd_split_dkdv_simt_sm80_f32_hd64, fa_bwd_split_dq_simt_sm80_f32_hd64 = simt_split::HD64;
    fa_bwd_split_dkdv_simt_sm80_f32_hd128, fa_bwd_split_dq_simt_sm80_f32_hd128 = simt_split::HD128;
    fa_bwd_split_dkdv_simt_sm80_f32_hd256, fa_bwd_split_dq_simt_sm80_f32_hd256 = simt_split::HD256;
}
