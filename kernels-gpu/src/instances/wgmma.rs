//! The Hopper kernels.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::wgmma::{self, WgmmaConfig};
use crate::dtype::DType;

/// The row of a kernel.
pub const fn instance(name: &'static str, dtype: DType, config: &'static WgmmaConfig) -> Instance {
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
        operation: if config.cached {
            Operation::Decode
        } else {
            Operation::Forward
        },
        config: KernelConfig::Wgmma(config),
    }
}

/// `name, element, config, registers|ss [, modifiers [: type]] [=> pages] [; suffix]`: Q from registers or from shared memory, and
/// whether the kernel takes modifiers, or the pages of a cache.
#[doc(hidden)]
#[macro_export]
macro_rules! __wgmma_forward {
    ($name:ident, $dtype:ident, $config:expr, $qk:ident $(, $modifiers:ident $(: $type:ty)?)? $(=> $pages:ident)? $(; $suffix:ident)?) => {
        /// Forward pass in 16 bits on Hopper.
        ///
        /// # Safety
        /// `params` and the tensor maps of q, k, v and o describe the same live allocations and `schedule` their
        /// tiles; `workspace` is the address of a live [`Workspace`](crate::wgmma::scheduler::tile_list::Workspace) that no
        /// concurrent launch uses, with a semaphore of 0 and, in a listed launch, the list of its tiles. The arrays of
        /// modifiers have an element for every pair, and `pages` those of a cache whose lens have been checked.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($config.threads(), 1, $config.cluster)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::ForwardParams,
            _q: $crate::wgmma::tensor_map::TensorMap,
            _k: $crate::wgmma::tensor_map::TensorMap,
            _v: $crate::wgmma::tensor_map::TensorMap,
            _o: $crate::wgmma::tensor_map::TensorMap,
            schedule: $crate::wgmma::scheduler::Schedule,
            workspace: u64,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
            $(
                $pages: $crate::abi::CachePages,
                _v_rows: $crate::wgmma::tensor_map::TensorMap,
            )?
        ) {
            use $crate::wgmma::forward::{forward, traits};
            const CONFIG: $crate::config::wgmma::WgmmaConfig = $config;
            struct Kernel;
            impl traits::TensorMapParams for Kernel {
                #[inline(always)]
                fn address<const PARAMETER: u32>() -> u64 {
                    $crate::cuda_std::tensor_map_parameter!($name $(; $suffix)?, PARAMETER)
                }
            }
            impl traits::ForwardKernel<
                { CONFIG.block_n as usize / 2 },
                { CONFIG.block_n as usize / 4 },
                { CONFIG.head_dim_v as usize / 2 },
            > for Kernel {
                const CONFIG: $crate::config::wgmma::WgmmaConfig = CONFIG;
                type Element = $crate::cuda_std::half::$dtype;
                type QkOperand = $crate::__wgmma_forward!(@qk $qk, $dtype);
                type Modifiers = $crate::__modifiers!(type $($modifiers $(: $type)?)?);
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
                >(
                    &params,
                    &schedule,
                    workspace,
                    &$crate::__modifiers!(value $($modifiers)?),
                    $crate::__wgmma_forward!(@pages $($pages)?),
                )
            }
        }
    };
    (@pages) => {
        &$crate::abi::CachePages::NONE
    };
    (@pages $pages:ident) => {
        &$pages
    };
    (@qk rs, $dtype:ident) => {
        traits::QkRs<$crate::cuda_std::half::$dtype, { CONFIG.head_dim as usize / 4 }>
    };
    (@qk ss, $dtype:ident) => {
        traits::QkSs<$crate::cuda_std::half::$dtype, { CONFIG.head_dim as usize }>
    };
}

macro_rules! instances {
    ($table:ident: $($name:ident = $dtype:ident, $config:expr, $qk:ident $(, $modifiers:ident $(: $type:ty)?)? $(=> $pages:ident)?;)*) => {
        $(
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_90a"))]
            crate::__wgmma_forward!($name, $dtype, $config, $qk $(, $modifiers $(: $type)?)? $(=> $pages)?);
        )*

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
    fa_fwd_wgmma_sm90a_bf16_hd64_modified = Bf16, wgmma::MODIFIED_HD64, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd128_modified = Bf16, wgmma::MODIFIED_HD128, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd256_modified = Bf16, wgmma::MODIFIED_HD256, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd64_modified = F16, wgmma::MODIFIED_HD64, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd128_modified = F16, wgmma::MODIFIED_HD128, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd256_modified = F16, wgmma::MODIFIED_HD256, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd64_varlen_modified = Bf16, wgmma::MODIFIED_HD64.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd128_varlen_modified = Bf16, wgmma::MODIFIED_HD128.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd256_varlen_modified = Bf16, wgmma::MODIFIED_HD256.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd64_varlen_modified = F16, wgmma::MODIFIED_HD64.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd128_varlen_modified = F16, wgmma::MODIFIED_HD128.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd256_varlen_modified = F16, wgmma::MODIFIED_HD256.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd64_biased = Bf16, wgmma::BIASED_HD64, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd128_biased = Bf16, wgmma::BIASED_HD128, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd256_biased = Bf16, wgmma::BIASED_HD256, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd64_biased = F16, wgmma::BIASED_HD64, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd128_biased = F16, wgmma::BIASED_HD128, ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd256_biased = F16, wgmma::BIASED_HD256, ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd64_varlen_biased = Bf16, wgmma::BIASED_HD64.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd128_varlen_biased = Bf16, wgmma::BIASED_HD128.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_bf16_hd256_varlen_biased = Bf16, wgmma::BIASED_HD256.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd64_varlen_biased = F16, wgmma::BIASED_HD64.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd128_varlen_biased = F16, wgmma::BIASED_HD128.for_varlen(), ss, modifiers;
    fa_fwd_wgmma_sm90a_f16_hd256_varlen_biased = F16, wgmma::BIASED_HD256.for_varlen(), ss, modifiers;
}

instances! {
    CACHED:
    fa_decode_wgmma_sm90a_bf16_hd64 = Bf16, wgmma::CACHED_HD64, ss, sinks: crate::abi::SinkParams => pages;
    fa_decode_wgmma_sm90a_bf16_hd128 = Bf16, wgmma::CACHED_HD128, rs, sinks: crate::abi::SinkParams => pages;
    fa_decode_wgmma_sm90a_bf16_hd256 = Bf16, wgmma::CACHED_HD256, ss, sinks: crate::abi::SinkParams => pages;
    fa_decode_wgmma_sm90a_f16_hd64 = F16, wgmma::CACHED_HD64, ss, sinks: crate::abi::SinkParams => pages;
    fa_decode_wgmma_sm90a_f16_hd128 = F16, wgmma::CACHED_HD128, rs, sinks: crate::abi::SinkParams => pages;
    fa_decode_wgmma_sm90a_f16_hd256 = F16, wgmma::CACHED_HD256, ss, sinks: crate::abi::SinkParams => pages;
}
