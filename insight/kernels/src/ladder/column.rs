//! One pass, one block a query row, one thread a column: the online softmax with K and V straight from global
//! memory.
//!
//! Nothing is stored but O. Every query reads all of K and V, and every key costs the block two barriers.

use core::f32::consts::LOG2_E;

use cuda_std::global::{load, store};
use cuda_std::math::{exp2, fma, max};
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_sum, warp_id};

use super::params::LadderParams;
use crate::config::ladder::WARPS;
use kernels_gpu::units::F32_BYTES;

/// # Safety
/// `params` describes live allocations; head_dim is at most the threads of a block.
#[inline(always)]
pub unsafe fn forward(params: &LadderParams) {
    let column = thread_idx_x();
    let mine = column < params.head_dim;
    let mut row = block_idx_x() as u64;
    while row < params.rows() {
        let element = |base: u64, row: u64| {
            if mine {
                // SAFETY: row and column exist.
                unsafe { load(params.at(base, row, params.head_dim, column)) }
            } else {
                0.0
            }
        };
        let q = element(params.q, row) * params.softmax_scale * LOG2_E;
        let (mut row_max, mut row_sum, mut o) = (f32::NEG_INFINITY, 0.0, 0.0);
        let head_row = params.head_row(row);
        for key in 0..params.seq as u64 {
            // SAFETY: all threads of the block have the same row and key.
            let score = unsafe { block_sum(q * element(params.k, head_row + key)) };
            let new_max = max(row_max, score);
            let rescale = exp2(row_max - new_max);
            let p = exp2(score - new_max);
            row_sum = fma(row_sum, rescale, p);
            o = fma(o, rescale, p * element(params.v, head_row + key));
            row_max = new_max;
        }
        if mine {
            // SAFETY: the element exists and is this thread's.
            unsafe {
                store(
                    params.at(params.o, row, params.head_dim, column),
                    o / row_sum,
                )
            };
        }
        row += grid_dim_x() as u64;
    }
}

/// The sum of `value` over the block, in every thread.
///
/// # Safety
/// All threads of the block must reach the same call.
#[inline(always)]
unsafe fn block_sum(value: f32) -> f32 {
    let sums = shared::dynamic_base();
    // SAFETY: the caller vouches that the whole block is here. Each warp has a word of its own, and barriers separate
    // its write from the reads, and those from the next call's write.
    unsafe {
        let warp_sum = reduce_sum::<WARP_SIZE>(value);
        if lane_id() == 0 {
            shared::store(sums + warp_id() * F32_BYTES, warp_sum);
        }
        sync_threads();
        let mut sum = 0.0;
        for warp in 0..WARPS {
            sum += shared::load(sums + warp * F32_BYTES);
        }
        sync_threads();
        sum
    }
}
