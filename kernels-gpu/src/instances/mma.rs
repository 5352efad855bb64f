//! The `mma.sync` kernels.

use super::{Arch, Family, Instance, Operation, TileConfig};
use crate::config::mma::{self, MmaTile};
use crate::dtype::DType;

/// The row of a kernel.
const fn instance(name: &'static str, dtype: DType, tile: &'static MmaTile) -> Instance {
    Instance {
        name,
        family: Family::Mma,
        arch: Arch::Sm80,
        dtype,
        head_dim: tile.head_dim as u32,
        block_m: tile.block_m() as u32,
        block_n: tile.block_n as u32,
        threads: tile.threads(),
        cluster: 1,
        shared_bytes: tile.shared_bytes(),
        operation: Operation::Forward,
        config: TileConfig::Mma(tile),
    }
}

macro_rules! instances {
    ($($name:ident = $element:ident, $tile:path;)*) => {
        $(
            /// Forward pass on 16-bit elements by `mma.sync`.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($tile.threads(), $tile.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::ForwardParams) {
                const TILE: MmaTile = $tile;
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::mma::forward::<
                        cuda_std::half::$element,
                        { TILE.warps },
                        { TILE.lane_rows() },
                        { TILE.score_cols() },
                        { TILE.output_cols() },
                        { TILE.k_steps() },
                        { TILE.q_in_registers },
                    >(&params)
                }
            }
        )*

        pub const INSTANCES: &[Instance] =
            &[$(instance(stringify!($name), DType::$element, &$tile)),*];
    };
}

instances! {
    fa_fwd_mma_bf16_hd32 = Bf16, mma::HD32;
    fa_fwd_mma_bf16_hd64 = Bf16, mma::HD64;
    fa_fwd_mma_bf16_hd96 = Bf16, mma::HD96;
    fa_fwd_mma_bf16_hd128 = Bf16, mma::HD128;
    fa_fwd_mma_bf16_hd192 = Bf16, mma::HD192;
    fa_fwd_mma_bf16_hd256 = Bf16, mma::HD256;
    fa_fwd_mma_f16_hd32 = F16, mma::HD32;
    fa_fwd_mma_f16_hd64 = F16, mma::HD64;
    fa_fwd_mma_f16_hd96 = F16, mma::HD96;
    fa_fwd_mma_f16_hd128 = F16, mma::HD128;
    fa_fwd_mma_f16_hd192 = F16, mma::HD192;
    fa_fwd_mma_f16_hd256 = F16, mma::HD256;
}
