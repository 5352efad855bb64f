//! The `mma.sync` kernels.

use super::{Arch, Family, Instance, KernelConfig, Operation};
use crate::config::mma::{self, MmaConfig};
use crate::dtype::DType;

/// The row of a kernel.
pub const fn instance(name: &'static str, dtype: DType, config: &'static MmaConfig) -> Instance {
    Instance {
        name,
        family: Family::Mma,
        arch: Arch::Sm80,
        dtype,
        head_dim: config.head_dim as u32,
        block_m: config.block_m() as u32,
        block_n: config.block_n as u32,
        threads: config.threads(),
        cluster: 1,
        shared_bytes: config.shared_bytes(),
        operation: Operation::Forward,
        config: KernelConfig::Mma(config),
    }
}

#[doc(hidden)]
#[macro_export]
macro_rules! __mma_forward {
    ($name:ident, $element:ident, $config:expr $(, $modifiers:ident $(: $type:ty)?)? $(; $suffix:ident)?) => {
        /// Forward pass by `mma.sync`.
        ///
        /// # Safety
        /// `params` describes live allocations that hold every element it can address.
        $(#[$crate::cuda_std::append_name($suffix)])?
        #[$crate::cuda_std::launch_bounds($config.threads(), $config.min_blocks)]
        #[$crate::cuda_std::kernel]
        pub unsafe fn $name(
            params: $crate::abi::ForwardParams,
            $($modifiers: $crate::__modifiers!(type $modifiers $(: $type)?),)?
        ) {
            const CONFIG: $crate::config::mma::MmaConfig = $config;
            struct Kernel;
            impl $crate::mma::MmaKernel for Kernel {
                const CONFIG: $crate::config::mma::MmaConfig = CONFIG;
                type Element = $crate::mma::elements::$element;
                type Modifiers = $crate::__modifiers!(type $($modifiers $(: $type)?)?);
            }
            // SAFETY: forwarded to the launch.
            unsafe {
                $crate::mma::forward::<
                    Kernel,
                    { CONFIG.lane_rows() },
                    { CONFIG.score_cols() },
                    { CONFIG.output_cols() },
                    { CONFIG.k_steps() },
                >(&params, &$crate::__modifiers!(value $($modifiers)?))
            }
        }
    };
}

macro_rules! instances {
    ($($name:ident = $element:ident, $config:path;)*) => {
        entries! { $(crate::__mma_forward!($name, $element, $config);)* }

        pub const INSTANCES: &[Instance] =
            &[$(instance(stringify!($name), DType::$element, &$config)),*];
    };
}

instances! {
    fa_fwd_mma_sm80_bf16_hd32 = Bf16, mma::HD32;
    fa_fwd_mma_sm80_bf16_hd64 = Bf16, mma::HD64;
    fa_fwd_mma_sm80_bf16_hd96 = Bf16, mma::HD96;
    fa_fwd_mma_sm80_bf16_hd128 = Bf16, mma::HD128;
    fa_fwd_mma_sm80_bf16_hd192 = Bf16, mma::HD192;
    fa_fwd_mma_sm80_bf16_hd256 = Bf16, mma::HD256;
    fa_fwd_mma_sm80_f16_hd32 = F16, mma::HD32;
    fa_fwd_mma_sm80_f16_hd64 = F16, mma::HD64;
    fa_fwd_mma_sm80_f16_hd96 = F16, mma::HD96;
    fa_fwd_mma_sm80_f16_hd128 = F16, mma::HD128;
    fa_fwd_mma_sm80_f16_hd192 = F16, mma::HD192;
    fa_fwd_mma_sm80_f16_hd256 = F16, mma::HD256;
    fa_fwd_mma_sm80_f32_hd64 = F32, mma::F32_HD64;
    fa_fwd_mma_sm80_f32_hd128 = F32, mma::F32_HD128;
}
