//! The kernels that append keys and values to a cache.

use super::{Instance, Operation};
use crate::dtype::DType;

macro_rules! append_instances {
    ($table:ident, $operation:path: $($name:ident = $dtype:ident $element:path $(, $cache:path, $scales:ident)?;)*) => {
        $(
            /// New keys and values into a cache, with rotary embedding.
            ///
            /// # Safety
            /// The parameters describe live allocations that hold every element they can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
            #[cuda_std::kernel]
            pub unsafe fn $name(
                params: crate::abi::AppendParams,
                $($scales: crate::abi::CacheScales,)?
            ) {
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::append::append::<$element, append_instances!(cache $element $(, $cache)?)>(
                        &params,
                        append_instances!(scales $($scales)?),
                    )
                }
            }
        )*

        /// Kernels that append to a cache. They take [`AppendParams`](crate::abi::AppendParams), and those that append to one of
        /// e4m3 [`CacheScales`](crate::abi::CacheScales) behind them.
        pub const $table: &[Instance] =
            &[$(Instance::warp_per_row(stringify!($name), DType::$dtype, $operation)),*];
    };
    (cache $element:path) => { $element };
    (cache $element:path, $cache:path) => { $cache };
    (scales) => { &crate::abi::CacheScales::NONE };
    (scales $scales:ident) => { &$scales };
}

append_instances! {
    APPEND, Operation::Append:
    fa_append_simt_sm80_f16 = F16 cuda_std::half::F16;
    fa_append_simt_sm80_bf16 = Bf16 cuda_std::half::Bf16;
}

append_instances! {
    APPEND_E4M3, Operation::Append:
    fa_append_simt_sm80_f16_e4m3 = F16 cuda_std::half::F16, crate::tile::element::E4m3, scales;
    fa_append_simt_sm80_bf16_e4m3 = Bf16 cuda_std::half::Bf16, crate::tile::element::E4m3, scales;
}
