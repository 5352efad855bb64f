//! The fp32 kernels.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::simt::{self, SimtConfig};
use crate::dtype::DType;

/// The row of a kernel.
pub const fn instance(name: &'static str, config: &'static SimtConfig) -> Instance {
    Instance {
        name,
        family: Family::Simt,
        arch: Arch::Sm80,
        dtype: DType::F32,
        head_dim: config.head_dim as u32,
        block_m: config.block_m() as u32,
        block_n: SimtConfig::BLOCK_N as u32,
        threads: config.threads,
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation: Operation::Forward,
        config: KernelConfig::Simt(config),
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __simt_forward {
    ($name:ident, $config:expr $(, $modifiers:ident $(: $type:ty)?)? $(; $suffix:ident)?) => {
        /// Forward pass in fp32.
        ///
        /// # Safety
        /// `params` describes live allocations that hold every element it can address.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($config.threads, $config.min_blocks)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::ForwardParams,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
        ) {
            struct Kernel;
            impl $crate::simt::SimtKernel for Kernel {
                const CONFIG: $crate::config::simt::SimtConfig = $config;
                type Modifiers = $crate::__modifiers!(type $($modifiers $(: $type)?)?);
                const LOADS_AHEAD: bool = true;
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                $crate::simt::forward::<Kernel, { $config.thread_rows }, { $config.output_cols() }>(
                    &params,
                    &$crate::__modifiers!(value $($modifiers)?),
                )
            }
        }
    };
}

macro_rules! instances {
    ($($name:ident = $config:path;)*) => {
        entries! { $(crate::__simt_forward!($name, $config);)* }

        pub const INSTANCES: &[Instance] = &[$(instance(stringify!($name), &$config)),*];
    };
}

instances! {
    fa_fwd_simt_sm80_f32_hd64 = simt::HD64;
    fa_fwd_simt_sm80_f32_hd128 = simt::HD128;
    fa_fwd_simt_sm80_f32_hd128_smem99k = simt::HD128_SMEM99K;
    fa_fwd_simt_sm80_f32_hd256 = simt::HD256;
    fa_fwd_simt_sm80_f32_hd256_smem99k = simt::HD256_SMEM99K;
}
