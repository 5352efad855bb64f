//! Rows of which a warp takes one at a time.

use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};

/// Threads of a warp.
pub const WARP: u32 = 32;

/// Calls `take` with each of `rows` rows, every row with one whole warp; the grid has any number of blocks of whole warps.
#[inline(always)]
pub fn each_row_by_warp(rows: u64, take: impl Fn(u64)) {
    let warps_per_block = block_dim_x() / WARP;
    let mut row = block_idx_x() as u64 * warps_per_block as u64 + (thread_idx_x() / WARP) as u64;
    while row < rows {
        take(row);
        row += grid_dim_x() as u64 * warps_per_block as u64;
    }
}
