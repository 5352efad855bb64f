//! One number from one of each thread.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, reduce_sum};
use cuda_std::{global, shared};

use crate::tile::black_box;
use crate::units::F32_BYTES;

/// Writes the sum of every thread's `value`, added in one order, to `address` in global memory.
///
/// # Safety
/// The whole block, of whole warps, reaches the same call. A word a warp from the beginning of dynamic shared memory on, and
/// the f32 at `address`, are the block's alone; the words are until a barrier is passed.
#[inline(always)]
pub unsafe fn store_block_sum(value: f32, address: u64) {
    let of_warp = reduce_sum::<WARP_SIZE>(value);
    let thread = black_box(thread_idx_x());
    let words = shared::dynamic_base();
    // Others may still read what lies there.
    sync_threads();
    if thread.is_multiple_of(WARP_SIZE) {
        shared::store(words + thread / WARP_SIZE * F32_BYTES, of_warp);
    }
    sync_threads();
    if thread == 0 {
        let mut sum = 0.0;
        let mut warp = 0;
        // A block has a warp: nothing is asked before the first.
        loop {
            sum += shared::load(words + warp * F32_BYTES);
            warp += 1;
            if warp >= black_box(block_dim_x()) / WARP_SIZE {
                break;
            }
        }
        global::store(address, sum);
    }
}
