//! Tile shapes of the ladder's kernels, each of which leaves out something that makes attention fast.

use kernels_gpu::config::limits::SM86_SHARED_BYTES;
use kernels_gpu::units::F32_BYTES;

/// Threads of a block of every kernel of the ladder.
pub const THREADS: u32 = 256;
/// Lanes of a warp.
pub const WARP: u32 = 32;
/// Warps of a block.
pub const WARPS: u32 = THREADS / WARP;
/// Largest head_dim: the kernels that hold a row give each column a thread.
pub const HEAD_DIM: u32 = THREADS;

/// FlashAttention-1's tile: keys are one a lane, query rows one a warp at a time.
pub const FA1_BLOCK_N: u32 = WARP;
/// Query rows of FlashAttention-1's inner loop.
pub const FA1_BLOCK_M: u32 = 32;
/// Appended to a row in shared memory, so that lanes which read one column of consecutive rows use all banks.
pub const ROW_PAD: u32 = 1;

/// Elements from one row of Q, K or V in shared memory to the next.
pub const fn row_elems(head_dim: u32) -> u32 {
    head_dim + ROW_PAD
}

/// Dynamic shared memory of the kernel with a thread for each column: a sum a warp.
pub const COLUMN_SHARED_BYTES: u32 = WARPS * F32_BYTES;

/// Dynamic shared memory of FlashAttention-1: Q, K and V tiles at the largest head_dim, and a row of P a warp.
pub const FA1_SHARED_BYTES: u32 =
    ((FA1_BLOCK_M + 2 * FA1_BLOCK_N) * row_elems(HEAD_DIM) + WARPS * FA1_BLOCK_N) * F32_BYTES;

const _: () = {
    assert!(FA1_SHARED_BYTES <= SM86_SHARED_BYTES);
    assert!(FA1_BLOCK_M.is_multiple_of(WARPS));
};
