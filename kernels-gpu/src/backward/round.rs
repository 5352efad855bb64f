//! dq from the sums that blocks added up in f32: scaled and rounded, or computed again where they are not finite. A warp takes
//! 16 rows at a time.

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{any, lane_id, sync_warp};

use super::careful::Head;
use super::side::{KeepQueries, Side};
use crate::abi::BackwardParams;
use crate::layout::fragment::{TILE_M, TILE_N, accumulator};
use crate::tile::dq_sums::{DqSums, REGISTER_BYTES, UNIT_BYTES};
use crate::tile::element::Element;
use crate::tile::grid::TileGrid;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};

const WARP: u32 = 32;

/// Rounds all rows of dq, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn round<E: Half + Element>(params: &BackwardParams) {
    let attention = &params.attention;
    let tiles = TileGrid::new(
        attention.batch,
        attention.heads_q,
        attention.seq_q,
        TILE_M as u32,
    );
    let warps_per_block = block_dim_x() / WARP;
    let mut index = block_idx_x() as u64 * warps_per_block as u64 + (thread_idx_x() / WARP) as u64;
    while index < tiles.count {
        let tile = tiles.get(index);
        // SAFETY: the tile is the launch's.
        unsafe { round_rows::<E>(params, tile.batch, tile.head, tile.m_block) };
        index += grid_dim_x() as u64 * warps_per_block as u64;
    }
}

/// # Safety
/// As [`round`]; the head has the unit of rows, if the sequence is as long as can be.
#[inline(always)]
unsafe fn round_rows<E: Half + Element>(
    params: &BackwardParams,
    batch: u32,
    head: u32,
    row_unit: u32,
) {
    let attention = &params.attention;
    // SAFETY: forwarded to the caller.
    let sequence = unsafe { Sequence::new(attention, batch) };
    let begin = row_unit * TILE_M as u32;
    if begin >= sequence.seq_q {
        return;
    }
    let sums = DqSums::new(attention);
    let start = params.dq_sums.map_or(0, |address| address.get());
    let unit =
        start + sums.offset(batch, head, sequence.q_begin) + row_unit as u64 * sums.row_bytes();
    let head_address = sequence.q_address(&params.dq, head, HALF_BYTES);
    let scale = attention.score.softmax_scale;
    let lane = lane_id();
    let mut is_finite = true;
    let mut col_unit = 0;
    while col_unit < attention.head_dim.div_ceil(TILE_N as u32) {
        let sum = unit + (col_unit * UNIT_BYTES + lane * F32_BYTES) as u64;
        for half in 0..2 {
            let register = 2 * half;
            let load = |register: u32| {
                // SAFETY: the sums have four registers of every unit.
                scale * unsafe { global::load(sum + (register * REGISTER_BYTES) as u64) }
            };
            let (left, right) = (load(register), load(register + 1));
            is_finite &= left.is_finite() & right.is_finite();
            let pair = E::cvt_pair(left, right);
            let (row, col) = accumulator(lane, register);
            let (row, dim) = (begin + row, col_unit * TILE_N as u32 + col);
            let offset = row as i64 * params.dq.seq_stride + dim as i64 * params.dq.dim_stride;
            let address = head_address.wrapping_add_signed(offset * HALF_BYTES as i64);
            if row < sequence.seq_q {
                // SAFETY: dq has the row, and the elements that are below its dimension.
                unsafe { store_pair(params, address, dim, pair) };
            }
        }
        col_unit += 1;
    }
    // SAFETY: the whole warp is here.
    if unsafe { any(!is_finite) } {
        // SAFETY: the rows are this warp's, whose lanes have stored what they computed.
        unsafe {
            sync_warp();
            let head = Head {
                params,
                extent: KeepQueries::extent(&sequence),
                sequence: &sequence,
                batch,
                head,
            };
            repair::<E>(&head, begin, lane);
        }
    }
}

/// Computes 16 rows from `begin` on again: with a K that is not finite, the sums are not finite of queries that do not see it.
///
/// # Safety
/// As [`Head::compute`].
#[inline(always)]
unsafe fn repair<E: Half + Element>(head: &Head, begin: u32, lane: u32) {
    let end = (begin + TILE_M as u32).min(head.extent.kept);
    let mut row = begin;
    while row < end {
        // SAFETY: forwarded to the caller.
        unsafe { head.compute::<E, KeepQueries>(row, lane) };
        row += 1;
    }
}

/// Writes the two elements from `dim` on that exist.
///
/// # Safety
/// `address` is that of element `dim` of a row of dq, if it has one.
#[inline(always)]
unsafe fn store_pair(params: &BackwardParams, address: u64, dim: u32, pair: u32) {
    let dims = params.attention.head_dim;
    let stride = params.dq.dim_stride;
    // SAFETY: forwarded to the caller.
    unsafe {
        if stride == 1 && address.is_multiple_of(size_of::<u32>() as u64) && dim + 1 < dims {
            return global::store_bits(address, pair);
        }
        if dim < dims {
            global::store_u16(address, pair as u16);
        }
        if dim + 1 < dims {
            let next = address.wrapping_add_signed(stride * HALF_BYTES as i64);
            global::store_u16(next, (pair >> u16::BITS) as u16);
        }
    }
}
