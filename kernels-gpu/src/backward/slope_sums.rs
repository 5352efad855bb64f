//! The gradients by ALiBi's slopes, from what each tile of queries left: a warp takes a slope at a time, and adds in one order.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_sum};

use crate::abi::SlopeSumsParams;
use crate::tile::grid::divide_long;
use crate::tile::warp_per_row::each_row_by_warp;
use crate::units::F32_BYTES;

/// Computes the gradients of all slopes, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn slope_sums(params: &SlopeSumsParams) {
    let rows = if params.is_batched != 0 {
        params.batch
    } else {
        1
    };
    // SAFETY: the slope is the same for the warp, and one of the launch's.
    each_row_by_warp(rows as u64 * params.heads as u64, |slope| unsafe {
        of_slope(params, slope)
    });
}

/// # Safety
/// As [`slope_sums`]; the whole warp calls it with the same slope.
#[inline(always)]
unsafe fn of_slope(params: &SlopeSumsParams, slope: u64) {
    let (heads, tiles) = (params.heads as u64, params.tiles as u64);
    let batch = if params.is_batched != 0 {
        1
    } else {
        params.batch as u64
    };
    let mut sum = 0.0;
    let mut index = lane_id() as u64;
    while index < batch * tiles {
        let (entry, tile) = divide_long(index, tiles);
        let place = (entry * heads + slope) * tiles + tile;
        // SAFETY: every tile of every head has left a sum.
        sum += unsafe { f32::from_bits(global::load_u32(params.sums + place * F32_BYTES as u64)) };
        index += WARP_SIZE as u64;
    }
    // SAFETY: the whole warp is here, and the slope is its own.
    unsafe {
        let sum = reduce_sum::<WARP_SIZE>(sum);
        // All lanes store the same number, without a branch; not −0 where nothing is added.
        global::store(params.d_alibi_slopes + slope * F32_BYTES as u64, 0.0 - sum);
    }
}
