//! The ladder's kernels: in a table of their own, so that no problem is ever given to them.

use crate::config::ladder::{
    COLUMN_SHARED_BYTES, FA1_BLOCK_M, FA1_BLOCK_N, FA1_SHARED_BYTES, HEAD_DIM, THREADS,
};
use kernels_gpu::dtype::DType;
use kernels_gpu::instances::{Arch, Family, Instance, KernelConfig, Operation};

macro_rules! instances {
    ($($name:ident = $kernel:path, ($block_m:expr, $block_n:expr), $shared_bytes:expr;)*) => {
        $(
            /// A rung of the ladder, in fp32.
            ///
            /// # Safety
            /// `params` describes live allocations.
            #[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds(THREADS)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::ladder::params::LadderParams) {
                // SAFETY: this entry's contract is the kernel's; the launch vouches for it.
                unsafe { $kernel(&params) }
            }
        )*

        /// The kernels that `ferroflash ladder` climbs on a GPU, from the bottom up. They take
        /// [`LadderParams`](crate::ladder::params::LadderParams).
        pub const LADDER: &[Instance] = &[$(
            Instance {
                name: stringify!($name),
                family: Family::Simt,
                arch: Arch::Sm80,
                dtype: DType::F32,
                head_dim: HEAD_DIM,
                block_m: $block_m,
                block_n: $block_n,
                cluster: 1,
                operation: Operation::Insight,
                config: KernelConfig::Fixed,
                threads: THREADS,
                shared_bytes: $shared_bytes,
            }
        ),*];
    };
}

instances! {
    ladder_scores = crate::ladder::unfused::scores, (1, 1), 0;
    ladder_softmax = crate::ladder::unfused::softmax, (1, 1), 0;
    ladder_output = crate::ladder::unfused::output, (1, 1), 0;
    ladder_column = crate::ladder::column::forward, (1, 1), COLUMN_SHARED_BYTES;
    ladder_fa1 = crate::ladder::fa1::forward, (FA1_BLOCK_M, FA1_BLOCK_N), FA1_SHARED_BYTES;
}
