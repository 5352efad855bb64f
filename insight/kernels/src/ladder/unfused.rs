//! Standard attention by three kernels: S = Q Kᵀ · scale, P = softmax(S), O = P V.

use core::f32::consts::LOG2_E;

use cuda_std::global::{load, store};
use cuda_std::math::{exp2, fma, max};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, reduce_sum};

use super::params::LadderParams;
use crate::config::ladder::THREADS;
use kernels_gpu::tile::grid::divide_long;

/// Calls `work` for every index below `count`, spread over all threads of the launch.
#[inline(always)]
fn for_each(count: u64, mut work: impl FnMut(u64)) {
    let mut index = block_idx_x() as u64 * THREADS as u64 + thread_idx_x() as u64;
    while index < count {
        work(index);
        index += grid_dim_x() as u64 * block_dim_x() as u64;
    }
}

/// Computes S, one entry a thread.
///
/// # Safety
/// `params` describes live allocations.
#[inline(always)]
pub unsafe fn scores(params: &LadderParams) {
    let seq = params.seq as u64;
    for_each(params.rows() * seq, |entry| {
        let (row, key) = divide_long(entry, seq);
        let key_row = params.head_row(row) + key;
        let mut dot = 0.0;
        for dim in 0..params.head_dim {
            // SAFETY: both rows exist.
            let (q, k) = unsafe {
                (
                    load(params.at(params.q, row, params.head_dim, dim)),
                    load(params.at(params.k, key_row, params.head_dim, dim)),
                )
            };
            dot = fma(q, k, dot);
        }
        // SAFETY: the entry exists and is this thread's.
        unsafe {
            store(
                params.at(params.s, row, params.seq, key as u32),
                dot * params.softmax_scale,
            )
        };
    });
}

/// Computes P, one row a warp, in three passes over the row.
///
/// # Safety
/// `params` describes live allocations.
#[inline(always)]
pub unsafe fn softmax(params: &LadderParams) {
    let warps = grid_dim_x() as u64 * (THREADS / WARP_SIZE) as u64;
    let mut row =
        block_idx_x() as u64 * (THREADS / WARP_SIZE) as u64 + (thread_idx_x() / WARP_SIZE) as u64;
    while row < params.rows() {
        let score = |key: u32| {
            // SAFETY: the row exists, and the key is below seq.
            unsafe { load(params.at(params.s, row, params.seq, key)) * LOG2_E }
        };
        let mut row_max = f32::NEG_INFINITY;
        let mut key = lane_id();
        while key < params.seq {
            row_max = max(row_max, score(key));
            key += WARP_SIZE;
        }
        // SAFETY: a warp takes the same rows.
        let row_max = unsafe { reduce_max::<WARP_SIZE>(row_max) };
        let mut row_sum = 0.0;
        let mut key = lane_id();
        while key < params.seq {
            row_sum += exp2(score(key) - row_max);
            key += WARP_SIZE;
        }
        // SAFETY: as above.
        let norm = 1.0 / unsafe { reduce_sum::<WARP_SIZE>(row_sum) };
        let mut key = lane_id();
        while key < params.seq {
            let p = exp2(score(key) - row_max) * norm;
            // SAFETY: the entry exists and is this lane's.
            unsafe { store(params.at(params.p, row, params.seq, key), p) };
            key += WARP_SIZE;
        }
        row += warps;
    }
}

/// Computes O, one element a thread.
///
/// # Safety
/// `params` describes live allocations.
#[inline(always)]
pub unsafe fn output(params: &LadderParams) {
    let dims = params.head_dim as u64;
    for_each(params.rows() * dims, |element| {
        let (row, dim) = divide_long(element, dims);
        let dim = dim as u32;
        let head_row = params.head_row(row);
        let mut o = 0.0;
        for key in 0..params.seq {
            // SAFETY: the rows of P and V exist.
            let (p, v) = unsafe {
                (
                    load(params.at(params.p, row, params.seq, key)),
                    load(params.at(params.v, head_row + key as u64, params.head_dim, dim)),
                )
            };
            o = fma(p, v, o);
        }
        // SAFETY: the element exists and is this thread's.
        unsafe { store(params.at(params.o, row, params.head_dim, dim), o) };
    });
}
