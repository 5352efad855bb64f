//! The kernels that append keys and values to a cache.

use super::{Instance, Operation};
use crate::dtype::DType;

macro_rules! append_instances {
    ($($name:ident = $dtype:ident $element:path;)*) => {
        $(
            /// New keys and values into a cache, with rotary embedding.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::AppendParams) {
                // SAFETY: forwarded to the launch.
                unsafe { crate::append::append::<$element>(&params) }
            }
        )*

        /// Every kernel that appends to a cache. They take [`AppendParams`](crate::abi::AppendParams).
        pub const APPEND: &[Instance] =
            &[$(Instance::warp_per_row(stringify!($name), DType::$dtype, Operation::Append)),*];
    };
}

append_instances! {
    fa_append_simt_sm80_f16 = F16 cuda_std::half::F16;
    fa_append_simt_sm80_bf16 = Bf16 cuda_std::half::Bf16;
}
