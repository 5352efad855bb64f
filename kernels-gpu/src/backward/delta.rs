//! lse in bits and delta of every row of o: a warp takes a row at a time. Where dq is to be added up, its sums are set to 0.

use core::f32::consts::LOG2_E;

use cuda_std::global;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{lane_id, reduce_max, reduce_sum};

use crate::abi::{DeltaParams, DeviceAddress, TensorArg};
use crate::math::{fma, max};
use crate::tile::element::Element;
use crate::tile::row_coord::RowCoord;
use crate::tile::warp_per_row::{WARP, each_row_by_warp};
use crate::units::F32_BYTES;

/// Computes the terms of all rows of o, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn delta<E: Element>(params: &DeltaParams) {
    let rows = params.batch as u64 * params.heads as u64 * params.seq as u64;
    // SAFETY: the row is the same for the warp, and one of o's.
    each_row_by_warp(rows, |row| unsafe { of_row::<E>(params, row) });
    if let Some(sums) = params.dq_sums {
        // SAFETY: forwarded to the caller.
        unsafe { clear(sums.get(), params.dq_sums_bytes) };
    }
}

/// Sets `bytes` bytes from `address` on to 0, as a whole launch.
///
/// # Safety
/// They are the launch's alone, and both are multiples of 16.
#[inline(always)]
unsafe fn clear(address: u64, bytes: u64) {
    const STORE_BYTES: u64 = 4 * F32_BYTES as u64;
    let threads = block_dim_x() as u64;
    let mut offset = (block_idx_x() as u64 * threads + thread_idx_x() as u64) * STORE_BYTES;
    while offset < bytes {
        // SAFETY: forwarded to the caller.
        unsafe { global::store4(address + offset, [0.0; 4]) };
        offset += grid_dim_x() as u64 * threads * STORE_BYTES;
    }
}

/// # Safety
/// As [`delta`]; the whole warp calls it with the same row, which is one of o's in the order of lse.
#[inline(always)]
unsafe fn of_row<E: Element>(params: &DeltaParams, row: u64) {
    let coord = RowCoord::new(row, params.heads, params.seq);
    let o = coord.address(&params.o, E::BYTES);
    let d_o = coord.address(&params.d_o, E::BYTES);
    let lane = lane_id();
    let (mut sum, mut largest) = (0.0, 0.0f32);
    let mut dim = lane;
    while dim < params.dim {
        let offset = |tensor: &TensorArg| dim as i64 * tensor.dim_stride * E::BYTES as i64;
        // SAFETY: the row has this component.
        let (o, d_o) = unsafe {
            let o = E::load(o.wrapping_add_signed(offset(&params.o)));
            (o, E::load(d_o.wrapping_add_signed(offset(&params.d_o))))
        };
        sum = fma(o, d_o, sum);
        let size = d_o.abs();
        largest = if size < f32::INFINITY {
            max(largest, size)
        } else {
            largest
        };
        dim += WARP;
    }
    // SAFETY: the whole warp is here.
    let sum = unsafe { reduce_sum::<WARP>(sum) };
    // Asked for of f16 alone; the same for the launch.
    if let Some(array) = params.terms.largest_d_o {
        // SAFETY: the whole warp is here; the array has an element for every row.
        unsafe {
            let largest = reduce_max::<WARP>(largest);
            if lane == 0 {
                global::store(array.get() + row * F32_BYTES as u64, largest);
            }
        }
    }
    if lane == 0 {
        let at = |array: u64| array + row * F32_BYTES as u64;
        // SAFETY: lse, d_lse and the terms have an element for every row.
        unsafe {
            let lse = f32::from_bits(global::load_u32(at(params.lse)));
            let d_lse = |array: DeviceAddress| f32::from_bits(global::load_u32(at(array.get())));
            let sees_none = lse == f32::NEG_INFINITY;
            let lse_log2 = if sees_none {
                f32::INFINITY
            } else {
                lse * LOG2_E
            };
            global::store(at(params.terms.lse_log2), lse_log2);
            let delta = sum - params.d_lse.map_or(0.0, d_lse);
            // The o and d_o of such a row must not matter.
            global::store(at(params.terms.delta), if sees_none { 0.0 } else { delta });
        }
    }
}
