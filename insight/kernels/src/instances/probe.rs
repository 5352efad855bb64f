//! The probes: in a table of their own, so that no problem is ever given to them.

use crate::config::probe as shape;
use kernels_gpu::dtype::DType;
use kernels_gpu::instances::{Arch, Family, Instance, KernelConfig, Operation};

/// `name = family, arch "sm", dtype, (m, n, k), shared bytes, blocks an SM holds, kernel;`: D of a warp or warpgroup is m × n and a
/// step contracts k, which stand in `block_m`, `block_n` and `head_dim`; 0 where no matrices are multiplied.
macro_rules! instances {
    ($($name:ident = $family:ident, $arch:ident $sm:literal, $dtype:ident, ($m:expr, $n:expr, $k:expr), $shared_bytes:expr,
       $blocks:expr, $kernel:path;)*) => {
        $(
            /// Measures a rate.
            ///
            /// # Safety
            /// `params` describes live allocations.
            #[cfg(all(target_arch = "nvptx64", gpu_arch = $sm))]
            #[cuda_std::launch_bounds(shape::THREADS, $blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::probe::params::ProbeParams) {
                // SAFETY: this entry's contract is the kernel's; the launch vouches for it.
                unsafe { $kernel(&params) }
            }
        )*

        /// The kernels that measure what a GPU can do. They take
        /// [`ProbeParams`](crate::probe::params::ProbeParams).
        pub const PROBES: &[Instance] = &[$(
            Instance {
                name: stringify!($name),
                family: Family::$family,
                arch: Arch::$arch,
                dtype: DType::$dtype,
                head_dim: $k,
                block_m: $m,
                block_n: $n,
                cluster: 1,
                operation: Operation::Insight,
                config: KernelConfig::Fixed,
                threads: shape::THREADS,
                shared_bytes: $shared_bytes,
            }
        ),*];
    };
}

instances! {
    probe_copy = Simt, Sm80 "sm_80", F32, (0, 0, 0), 0, shape::SCALAR_BLOCKS_PER_SM, crate::probe::copy::copy;
    probe_fma = Simt, Sm80 "sm_80", F32, (0, 0, 0), 0, shape::SCALAR_BLOCKS_PER_SM, crate::probe::scalar::fma;
    probe_exp2 = Simt, Sm80 "sm_80", F32, (0, 0, 0), 0, shape::SCALAR_BLOCKS_PER_SM, crate::probe::scalar::exp2;
    probe_mma = Mma, Sm80 "sm_80", Bf16, (shape::MMA_M, shape::MMA_N, shape::MMA_K), 0, shape::MMA_BLOCKS_PER_SM, crate::probe::mma::multiply;
    probe_wgmma = Wgmma, Sm90a "sm_90a", Bf16, (shape::WGMMA_M, shape::WGMMA_N, shape::WGMMA_K), shape::WGMMA_SHARED_BYTES, shape::WGMMA_BLOCKS_PER_SM,
        crate::probe::wgmma::multiply;
}
