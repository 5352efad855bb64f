//! FlashAttention-1 (Dao et al. 2022, algorithm 1): one block a head; K and V tiles outside, Q tiles inside.
//!
//! A lane is a key of the tile, a warp takes one query row after the other. O is normalised in memory at all times: each
//! step loads it with m and l, rescales it and stores it.
//!
//! ```text
//! shared memory   q_smem [FA1_BLOCK_M][head_dim + pad]   k_smem, v_smem [FA1_BLOCK_N][head_dim + pad]
//!                 p_smem [WARPS][FA1_BLOCK_N]            a row a warp
//! ```

use core::f32::consts::LOG2_E;

use cuda_std::global::{load, store};
use cuda_std::math::{exp2, fma, max};
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads};
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, reduce_sum, sync_warp, warp_id};

use super::params::LadderParams;
use crate::config::ladder::{FA1_BLOCK_M, FA1_BLOCK_N, WARPS, row_elems};
use kernels_gpu::units::F32_BYTES;

/// Address of an element of a tile in shared memory.
#[inline(always)]
fn in_tile(tile: u32, row: u32, head_dim: u32, column: u32) -> u32 {
    tile + (row * row_elems(head_dim) + column) * F32_BYTES
}

/// # Safety
/// `params` describes live allocations; o, m and l need no contents.
#[inline(always)]
pub unsafe fn forward(params: &LadderParams) {
    let mut head = block_idx_x();
    while head < params.heads {
        let head_row = head as u64 * params.seq as u64;
        let mut key_begin = 0;
        while key_begin < params.seq {
            // SAFETY: the caller vouches for `params`; all threads of the block run the same loop.
            unsafe { key_tile(params, head_row, key_begin) };
            key_begin += FA1_BLOCK_N;
        }
        head += grid_dim_x();
    }
}

/// One step of the outer loop: all queries against one tile of keys.
///
/// # Safety
/// As [`forward`]; all threads of the block must reach the same call.
#[inline(always)]
unsafe fn key_tile(params: &LadderParams, head_row: u64, key_begin: u32) {
    let head_dim = params.head_dim;
    let q_smem = shared::dynamic_base();
    let k_smem = in_tile(q_smem, FA1_BLOCK_M, head_dim, 0);
    let v_smem = in_tile(k_smem, FA1_BLOCK_N, head_dim, 0);
    // SAFETY: barriers separate the copies from earlier reads and from the reads that follow.
    unsafe {
        sync_threads();
        copy(params, params.k, k_smem, head_row, key_begin, FA1_BLOCK_N);
        copy(params, params.v, v_smem, head_row, key_begin, FA1_BLOCK_N);
        let mut m_begin = 0;
        while m_begin < params.seq {
            sync_threads();
            copy(params, params.q, q_smem, head_row, m_begin, FA1_BLOCK_M);
            sync_threads();
            let mut row = warp_id();
            while row < FA1_BLOCK_M && m_begin + row < params.seq {
                let smem = Smem {
                    q_row: in_tile(q_smem, row, head_dim, 0),
                    k: k_smem,
                    v: v_smem,
                    p_row: in_tile(v_smem, FA1_BLOCK_N, head_dim, 0)
                        + warp_id() * FA1_BLOCK_N * F32_BYTES,
                };
                query_row(params, head_row + (m_begin + row) as u64, key_begin, smem);
                row += WARPS;
            }
            m_begin += FA1_BLOCK_M;
        }
    }
}

/// Shared-memory addresses of the operands of one warp's row.
struct Smem {
    q_row: u32,
    k: u32,
    v: u32,
    p_row: u32,
}

/// One query row against one tile of keys, by one warp.
///
/// # Safety
/// As [`forward`]; all lanes of the warp must reach the same call.
#[inline(always)]
unsafe fn query_row(params: &LadderParams, row: u64, key_begin: u32, smem: Smem) {
    let head_dim = params.head_dim;
    let lane = lane_id();
    // S = q kᵀ for this lane's key; −∞ behind the last key.
    let mut score = 0.0;
    for dim in 0..head_dim {
        // SAFETY: both tiles hold the element.
        unsafe {
            let q = shared::load(smem.q_row + dim * F32_BYTES);
            score = fma(q, shared::load(in_tile(smem.k, lane, head_dim, dim)), score);
        }
    }
    score *= params.softmax_scale * LOG2_E;
    if key_begin + lane >= params.seq {
        score = f32::NEG_INFINITY;
    }

    let first = key_begin == 0;
    let max_address = params.at(params.row_max, row, 1, 0);
    let sum_address = params.at(params.row_sum, row, 1, 0);
    // SAFETY: the row exists; only this warp touches it and its row of P, with a warp-wide barrier between what one lane
    // writes and another reads.
    unsafe {
        let (old_max, old_sum) = if first {
            (f32::NEG_INFINITY, 0.0)
        } else {
            (load(max_address), load(sum_address))
        };
        let new_max = max(old_max, reduce_max::<WARP_SIZE>(score));
        let p = exp2(score - new_max);
        let kept = old_sum * exp2(old_max - new_max);
        let new_sum = kept + reduce_sum::<WARP_SIZE>(p);
        shared::store(smem.p_row + lane * F32_BYTES, p / new_sum);
        sync_warp();

        // O ← (l · exp(m − m') · O + P̃ V) / l'
        let mut column = lane;
        while column < head_dim {
            let address = params.at(params.o, row, head_dim, column);
            let mut o = if first {
                0.0
            } else {
                load(address) * (kept / new_sum)
            };
            for key in 0..FA1_BLOCK_N {
                let p = shared::load(smem.p_row + key * F32_BYTES);
                o = fma(p, shared::load(in_tile(smem.v, key, head_dim, column)), o);
            }
            store(address, o);
            column += WARP_SIZE;
        }
        if lane == 0 {
            store(max_address, new_max);
            store(sum_address, new_sum);
        }
        sync_warp();
    }
}

/// Copies `rows` rows from `row_begin` on to shared memory, zeros behind the last.
///
/// # Safety
/// As [`forward`]; nobody else accesses the tile.
#[inline(always)]
unsafe fn copy(
    params: &LadderParams,
    from: u64,
    to: u32,
    head_row: u64,
    row_begin: u32,
    rows: u32,
) {
    let mut row = warp_id();
    while row < rows {
        let mut column = lane_id();
        while column < params.head_dim {
            // SAFETY: the row exists if it is below seq; the tile has the place.
            unsafe {
                let value = if row_begin + row < params.seq {
                    let row = head_row + (row_begin + row) as u64;
                    load(params.at(from, row, params.head_dim, column))
                } else {
                    0.0
                };
                shared::store(in_tile(to, row, params.head_dim, column), value);
            }
            column += WARP_SIZE;
        }
        row += WARPS;
    }
}
