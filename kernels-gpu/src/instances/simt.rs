//! The fp32 kernels.

use super::{Arch, Family, Instance, Operation, TileConfig};
use crate::config::simt::{self, SimtTile};
use crate::dtype::DType;

/// The row of a kernel.
const fn instance(name: &'static str, tile: &'static SimtTile) -> Instance {
    Instance {
        name,
        family: Family::Simt,
        arch: Arch::Sm80,
        dtype: DType::F32,
        head_dim: tile.head_dim as u32,
        block_m: tile.block_m() as u32,
        block_n: SimtTile::BLOCK_N as u32,
        threads: tile.threads,
        cluster: 1,
        shared_bytes: tile.shared_bytes(),
        operation: Operation::Forward,
        config: TileConfig::Simt(tile),
    }
}

macro_rules! instances {
    ($($name:ident = $tile:path;)*) => {
        $(
            /// Forward pass in fp32.
            ///
            /// # Safety
            /// `params` describes live allocations that hold every element it can address.
            #[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
            #[cuda_std::launch_bounds($tile.threads, $tile.min_blocks)]
            #[cuda_std::kernel]
            pub unsafe fn $name(params: crate::abi::ForwardParams) {
                const TILE: SimtTile = $tile;
                // SAFETY: forwarded to the launch.
                unsafe {
                    crate::simt::forward::<
                        { TILE.head_dim },
                        { TILE.threads },
                        { TILE.thread_rows },
                        { TILE.head_dim / SimtTile::LANES_PER_ROW },
                        { TILE.k_chunk },
                    >(&params)
                }
            }
        )*

        pub const INSTANCES: &[Instance] = &[$(instance(stringify!($name), &$tile)),*];
    };
}

instances! {
    fa_fwd_simt_f32_hd64 = simt::HD64;
    fa_fwd_simt_f32_hd128 = simt::HD128;
    fa_fwd_simt_f32_hd128_small = simt::HD128_SMALL;
    fa_fwd_simt_f32_hd256 = simt::HD256;
    fa_fwd_simt_f32_hd256_small = simt::HD256_SMALL;
}
