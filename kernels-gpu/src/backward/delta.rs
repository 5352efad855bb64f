//! lse in bits and delta of every row of o. Where dq is to be added up, its sums are set to 0.
//!
//! Eight lanes of a warp share a row, and read 16 bytes each where the rows allow it: the kernel reads o and d_o once, and that
//! is all its time.

use core::f32::consts::LOG2_E;

use cuda_std::global;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, reduce_max_strided, reduce_sum};

use crate::abi::{DeltaParams, DeviceAddress, TensorArg};
use crate::config::warp_per_row::{DELTA_LANES, DELTA_WARP_ROWS};
use crate::layout::swizzle::VEC16_BYTES;
use crate::math::{fma, max};
use crate::tile::element::Element;
use crate::tile::row_coord::RowCoord;
use crate::tile::warp_per_row::each_row_by_warp;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Computes the terms of all rows of o, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn delta<E: Element>(params: &DeltaParams) {
    let rows = params.batch as u64 * params.heads as u64 * params.seq as u64;
    // SAFETY: the warp's rows are its own.
    each_row_by_warp(rows.div_ceil(DELTA_WARP_ROWS), |chunk| unsafe {
        of_chunk::<E>(params, chunk, rows)
    });
    // No kernel adds up dq of f32.
    if E::BYTES == HALF_BYTES
        && let Some(address) = params.zeroed
    {
        // SAFETY: forwarded to the caller.
        unsafe { clear(address.get(), params.zeroed_bytes) };
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

/// What a lane has seen of a row.
struct Seen {
    /// Of d_o · o.
    sum: f32,
    /// Largest |d_o| that is finite.
    largest: f32,
}

impl Seen {
    #[inline(always)]
    fn take(&mut self, o: f32, d_o: f32) {
        self.sum = fma(o, d_o, self.sum);
        let size = d_o.abs();
        if size < f32::INFINITY {
            self.largest = max(self.largest, size);
        }
    }
}

/// # Safety
/// As [`delta`]; the whole warp calls it with the number of its chunk, of `rows` rows in the order of lse.
#[inline(always)]
unsafe fn of_chunk<E: Element>(params: &DeltaParams, chunk: u64, rows: u64) {
    let row = chunk * DELTA_WARP_ROWS + (lane_id() / DELTA_LANES) as u64;
    let lane = lane_id() % DELTA_LANES;
    // The last warp's lanes without a row repeat its last, and write nothing.
    let coord = RowCoord::new(row.min(rows - 1), params.heads, params.seq);
    // SAFETY: the row exists.
    let seen = unsafe { see::<E>(params, coord, lane) };
    // SAFETY: the whole warp is here; the arrays have an element for every row.
    unsafe {
        let sum = reduce_sum::<DELTA_LANES>(seen.sum);
        let largest = reduce_max::<DELTA_LANES>(seen.largest);
        if lane == 0 && row < rows {
            write::<E>(params, row, sum, largest);
        }
        if E::SCALES_DS && params.terms.largest_d_o.is_some() {
            let largest = reduce_max_strided::<{ WARP_SIZE / DELTA_LANES }, DELTA_LANES>(largest);
            if lane_id() == 0 {
                let array = params.terms.largest_of_chunk;
                global::store(array + chunk * F32_BYTES as u64, largest);
            }
        }
    }
}

/// 16 bytes of o and of d_o.
///
/// # Safety
/// Both have them at `offset`.
#[inline(always)]
unsafe fn vec16s(o: u64, d_o: u64, offset: u32) -> ([u32; 4], [u32; 4]) {
    // SAFETY: forwarded to the caller.
    let at = |address| unsafe { global::load4_bits(address + offset as u64) };
    (at(o), at(d_o))
}

/// As [`vec16s`], or zeros where the rows end before.
///
/// # Safety
/// The rows have `row_bytes` bytes, a multiple of 16.
#[inline(always)]
unsafe fn vec16s_below(o: u64, d_o: u64, offset: u32, row_bytes: u32) -> ([u32; 4], [u32; 4]) {
    if offset < row_bytes {
        // SAFETY: the rows have whole vectors.
        unsafe { vec16s(o, d_o, offset) }
    } else {
        ([0; 4], [0; 4])
    }
}

/// Reads the lane's part of a row.
///
/// # Safety
/// As [`delta`]; the row exists.
#[inline(always)]
unsafe fn see<E: Element>(params: &DeltaParams, coord: RowCoord, lane: u32) -> Seen {
    let o = coord.address(&params.o, E::BYTES);
    let d_o = coord.address(&params.d_o, E::BYTES);
    let mut seen = Seen {
        sum: 0.0,
        largest: 0.0,
    };
    let row_bytes = params.dim * E::BYTES;
    let is_contiguous = params.o.dim_stride == 1 && params.d_o.dim_stride == 1;
    if is_contiguous && (o | d_o | row_bytes as u64).is_multiple_of(VEC16_BYTES as u64) {
        let mut offset = lane * VEC16_BYTES;
        while offset < row_bytes {
            // Two of each at once, for more loads in flight.
            let next = offset + DELTA_LANES * VEC16_BYTES;
            // SAFETY: the rows have these bytes.
            let vec16s = unsafe {
                [
                    vec16s(o, d_o, offset),
                    vec16s_below(o, d_o, next, row_bytes),
                ]
            };
            for (o, d_o) in vec16s {
                for i in 0..4 {
                    let ([o0, o1], [d0, d1]) = (E::unpack(o[i]), E::unpack(d_o[i]));
                    seen.take(o0, d0);
                    seen.take(o1, d1);
                }
            }
            offset = next + DELTA_LANES * VEC16_BYTES;
        }
        return seen;
    }
    let mut dim = lane;
    while dim < params.dim {
        let offset = |tensor: &TensorArg| dim as i64 * tensor.dim_stride * E::BYTES as i64;
        // SAFETY: the row has this component.
        unsafe {
            let o = E::load(o.wrapping_add_signed(offset(&params.o)));
            let d_o = E::load(d_o.wrapping_add_signed(offset(&params.d_o)));
            seen.take(o, d_o);
        }
        dim += DELTA_LANES;
    }
    seen
}

/// Writes the terms of row `row`, of which `sum` is d_o · o.
///
/// # Safety
/// As [`delta`]; the row exists, and one thread writes it.
#[inline(always)]
unsafe fn write<E: Element>(params: &DeltaParams, row: u64, sum: f32, largest: f32) {
    let at = |array: u64| array + row * F32_BYTES as u64;
    // SAFETY: lse, d_lse and the terms have an element for every row.
    unsafe {
        if E::SCALES_DS
            && let Some(array) = params.terms.largest_d_o
        {
            global::store(at(array.get()), largest);
        }
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
