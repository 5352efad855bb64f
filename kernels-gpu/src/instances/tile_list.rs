//! The kernel that lists tiles: in a table of its own, as no problem is given to it alone.

use super::{Instance, Operation};
use crate::config::tile_list::{SHARED_BYTES, THREADS};

/// Lists the tiles of a varlen launch of a Hopper kernel, which follows it in the same stream. Launched with one block.
///
/// # Safety
/// `params` describes the launch; its arrays of lengths and its workspace are live.
#[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[cuda_std::launch_bounds(THREADS)]
#[cuda_std::kernel]
pub unsafe fn fa_tile_list_wgmma_sm80(params: crate::wgmma::scheduler::tile_list::TileListParams) {
    // SAFETY: forwarded to the launch.
    unsafe { crate::wgmma::scheduler::tile_list::list_tiles(&params) }
}

/// The row of the kernel that lists the tiles of varlen launches of every Hopper kernel. It takes
/// [`TileListParams`](crate::wgmma::scheduler::tile_list::TileListParams) and touches no elements.
pub const TILE_LIST: Instance = Instance::before_wgmma(
    "fa_tile_list_wgmma_sm80",
    Operation::TileList,
    THREADS,
    SHARED_BYTES,
);
