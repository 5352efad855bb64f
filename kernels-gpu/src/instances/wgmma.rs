//! The Hopper kernels.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::wgmma::{self, WgmmaConfig};
use crate::dtype::DType;

/// The row of a kernel.
const fn instance(name: &'static str, dtype: DType, config: &'static WgmmaConfig) -> Instance {
    Instance {
        name,
        family: Family::Wgmma,
        arch: Arch::Sm90a,
        dtype,
        head_dim: config.head_dim,
        block_m: config.block_m(),
        block_n: config.block_n,
        threads: config.threads(),
        cluster: config.cluster,
        shared_bytes: config.shared_bytes(),
        operation: Operation::Forward,
        config: KernelConfig::Wgmma(config),
    }
}

/// `name = element, config, registers|ss [, modifiers];`: Q from registers or from shared memory, and whether the kernel takes
/// modifiers.
macro_rules! kernels {
    ($($name:ident = $dtype:ident, $config:expr, $qk:ident $(, $modifiers:ident)?;)*) => {
        $(
            /// Forward pass in 16 bits on Hopper.
            ///
            /// # Safety
            /// `params` and the tensor maps of q, k, v and o describe the same live allocations and `schedule` their
            /// tiles; `workspace` is the address of a live [`Workspace`](crate::wgmma::scheduler::tile_list::Workspace) that no
            /// concurrent launch uses, with a semaphore of 0 and, in a varlen launch, the list of its tiles. The arrays of
            /// modifiers have an element for every pair.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_90a"))]
            #[cuda_std::launch_bounds($config.threads(), 1, $config.cluster)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::ForwardParams,
                _q: crate::wgmma::tensor_map::TensorMap,
                _k: crate::wgmma::tensor_map::TensorMap,
                _v: crate::wgmma::tensor_map::TensorMap,
                _o: crate::wgmma::tensor_map::TensorMap,
                schedule: crate::wgmma::scheduler::Schedule,
                workspace: u64,
                $($modifiers: crate::abi::ModifierParams,)?
            ) {
                use crate::wgmma::forward::{forward, traits};
                const CONFIG: WgmmaConfig = $config;
                struct Kernel;
                impl traits::TensorMapParams for Kernel {
                    #[inline(always)]
                    fn address<const PARAMETER: u32>() -> u64 {
                        cuda_std::tensor_map_parameter!($name, PARAMETER)
                    }
                }
                impl traits::ForwardKernel<
                    { CONFIG.block_n as usize / 2 },
                    { CONFIG.block_n as usize / 4 },
                    { CONFIG.head_dim_v as usize / 2 },
                > for Kernel {
                    const CONFIG: WgmmaConfig = CONFIG;
                    type Element = cuda_std::half::$dtype;
                    type QkOperand = kernels!(@qk $qk, $dtype);
                    type Modifiers = crate::__modifiers!(type $($modifiers)?);
                }
                // SAFETY: forwarded to the launch.
                unsafe {
                    forward::<
                        Kernel,
                        { CONFIG.producer_registers },
                        { CONFIG.consumer_registers },
                        { CONFIG.block_n as usize / 2 },
                        { CONFIG.block_n as usize / 4 },
                        { CONFIG.head_dim_v as usize / 2 },
                    >(&params, &schedule, workspace, &crate::__modifiers!(value $($modifiers)?))
                }
            }
        )*
    };
    (@qk rs, $dtype:ident) => {
        traits::QkRs<cuda_std::half::$dtype, { CONFIG.head_dim as usize / 4 }>
    };
    (@qk ss, $dtype:ident) => {
        traits::QkSs<cuda_std::half::$dtype, { CONFIG.head_dim as usize }>
    };
}

macro_rules! instances {
    ($table:ident: $($name:ident = $dtype:ident, $config:expr, $qk:ident $(, $modifiers:ident)?;)*) => {
        kernels! { $($name = $dtype, $config, $qk $(, $modifiers)?;)* }

        pub const $table: &[Instance] =
            &[$(instance(stringify!($name), DType::$dtype, &$config)),*];
    };
}

instances! {
    INSTANCES:
    fa_fwd_wgmma_sm90a_bf16_hd64 = Bf16, wgmma::HD64, ss;
    fa_fwd_wgmma_sm90a_bf16_hd96 = Bf16, wgmma::HD96, rs;
    fa_fwd_wgmma_sm90a_bf16_hd128 = Bf16, wgmma::HD128, rs;
    fa_fwd_wgmma_sm90a_bf16_hd128_nocluster = Bf16, wgmma::HD128_NOCLUSTER, rs;
    fa_fwd_wgmma_sm90a_bf16_hd192_v128 = Bf16, wgmma::HD192_V128, ss;
    fa_fwd_wgmma_sm90a_bf16_hd192 = Bf16, wgmma::HD192, ss;
    fa_fwd_wgmma_sm90a_bf16_hd256 = Bf16, wgmma::HD256, ss;
    fa_fwd_wgmma_sm90a_bf16_hd256_nocluster = Bf16, wgmma::HD256_NOCLUSTER, ss;
    fa_fwd_wgmma_sm90a_f16_hd64 = F16, wgmma::HD64, ss;
    fa_fwd_wgmma_sm90a_f16_hd96 = F16, wgmma::HD96, rs;
    fa_fwd_wgmma_sm90a_f16_hd128 = F16, wgmma::HD128, rs;
    fa_fwd_wgmma_sm90a_f16_hd128_nocluster = F16, wgmma::HD128_NOCLUSTER, rs;
    fa_fwd_wgmma_sm90a_f16_hd192_v128 = F16, wgmma::HD192_V128, ss;
    fa_fwd_wgmma_sm90a_f16_hd192 = F16, wgmma::HD192, ss;
    fa_fwd_wgmma_sm90a_f16_hd256 = F16, wgmma::HD256, ss;
    fa_fwd_wgmma_sm90a_f16_hd256_nocluster = F16, wgmma::HD256_NOCLUSTER, ss;
    fa_fwd_wgmma_sm90a_bf16_hd64_varlen = Bf16, wgmma::HD64.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_bf16_hd96_varlen = Bf16, wgmma::HD96.for_varlen(), rs;
    fa_fwd_wgmma_sm90a_bf16_hd128_varlen = Bf16, wgmma::HD128.for_varlen(), rs;
    fa_fwd_wgmma_sm90a_bf16_hd128_nocluster_varlen = Bf16, wgmma::HD128_NOCLUSTER.for_varlen(), rs;
    fa_fwd_wgmma_sm90a_bf16_hd192_v128_varlen = Bf16, wgmma::HD192_V128.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_bf16_hd192_varlen = Bf16, wgmma::HD192.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_bf16_hd256_varlen = Bf16, wgmma::HD256.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_bf16_hd256_nocluster_varlen = Bf16, wgmma::HD256_NOCLUSTER.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_f16_hd64_varlen = F16, wgmma::HD64.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_f16_hd96_varlen = F16, wgmma::HD96.for_varlen(), rs;
    fa_fwd_wgmma_sm90a_f16_hd128_varlen = F16, wgmma::HD128.for_varlen(), rs;
    fa_fwd_wgmma_sm90a_f16_hd128_nocluster_varlen = F16, wgmma::HD128_NOCLUSTER.for_varlen(), rs;
    fa_fwd_wgmma_sm90a_f16_hd192_v128_varlen = F16, wgmma::HD192_V128.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_f16_hd192_varlen = F16, wgmma::HD192.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_f16_hd256_varlen = F16, wgmma::HD256.for_varlen(), ss;
    fa_fwd_wgmma_sm90a_f16_hd256_nocluster_varlen = F16, wgmma::HD256_NOCLUSTER.for_varlen(), ss;
}

instances! {
    MODIFIED:
    fa_fwd_wgmma_sm90a_bf16_hd64_modified = Bf16, wgmma::HD64_MODIFIED, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd128_modified = Bf16, wgmma::HD128_MODIFIED, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd256_modified = Bf16, wgmma::HD256_MODIFIED, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd64_modified = F16, wgmma::HD64_MODIFIED, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd128_modified = F16, wgmma::HD128_MODIFIED, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd256_modified = F16, wgmma::HD256_MODIFIED, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd64_varlen_modified = Bf16, wgmma::HD64_MODIFIED.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd128_varlen_modified = Bf16, wgmma::HD128_MODIFIED.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd256_varlen_modified = Bf16, wgmma::HD256_MODIFIED.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd64_varlen_modified = F16, wgmma::HD64_MODIFIED.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd128_varlen_modified = F16, wgmma::HD128_MODIFIED.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd256_varlen_modified = F16, wgmma::HD256_MODIFIED.for_varlen(), ss, modifiers;
}
