//! Where a thread is in its block and grid, and the block-wide barrier.
//!
//! Launches here are one-dimensional: a kernel computes its own coordinates from linear indices.

use core::arch::nvptx::{_block_dim_x, _block_idx_x, _grid_dim_x, _thread_idx_x};

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    fn barrier_cta_sync_all(id: u32);
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    fn barrier_cta_red_or_all(id: u32, condition: bool) -> bool;
}

/// Index of this thread in its block (`%tid.x`).
#[inline(always)]
pub fn thread_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { _thread_idx_x() as u32 }
}

/// Threads in a block (`%ntid.x`).
#[inline(always)]
pub fn block_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { _block_dim_x() as u32 }
}

/// Index of this block in the grid (`%ctaid.x`).
#[inline(always)]
pub fn block_idx_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { _block_idx_x() as u32 }
}

/// Blocks in the grid (`%nctaid.x`).
#[inline(always)]
pub fn grid_dim_x() -> u32 {
    // SAFETY: reads a special register.
    unsafe { _grid_dim_x() as u32 }
}

/// Waits for all threads of the block, and orders their shared and global memory accesses.
///
/// # PTX
/// `bar.sync 0` (Parallel Synchronization and Communication Instructions: `barrier`).
///
/// # Safety
/// Every thread of the block must reach the same call.
#[inline(always)]
pub unsafe fn sync_threads() {
    // SAFETY: the caller vouches that the whole block arrives.
    unsafe { barrier_cta_sync_all(0) }
}

/// [`sync_threads`] that also tells every thread whether `condition` held in some thread.
///
/// # PTX
/// `barrier.cta.red.or.pred` on barrier 0.
///
/// # Safety
/// Every thread of the block must reach the same call.
#[inline(always)]
pub unsafe fn sync_threads_or(condition: bool) -> bool {
    // SAFETY: the caller vouches that the whole block arrives.
    unsafe { barrier_cta_red_or_all(0, condition) }
}
