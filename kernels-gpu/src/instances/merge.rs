//! The kernels that merge partial results, one a dtype.

use super::{Instance, Operation};
use crate::dtype::DType;

macro_rules! merge_instances {
    ($($name:ident = $dtype:ident $element:path;)*) => {
        $(
            /// o and lse from those for parts of the keys.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds(crate::config::warp_per_row::THREADS)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::MergeParams) {
                // SAFETY: forwarded to the launch.
                unsafe { crate::merge::merge::<$element>(&params) }
            }
        )*

        /// Every kernel that merges partial results: one a dtype. They take
        /// [`MergeParams`](crate::abi::MergeParams).
        pub const MERGE: &[Instance] =
            &[$(Instance::warp_per_row(stringify!($name), DType::$dtype, Operation::Merge)),*];
    };
}

merge_instances! {
    fa_merge_simt_sm80_f32 = F32 crate::tile::element::F32;
    fa_merge_simt_sm80_f16 = F16 cuda_std::half::F16;
    fa_merge_simt_sm80_bf16 = Bf16 cuda_std::half::Bf16;
}
