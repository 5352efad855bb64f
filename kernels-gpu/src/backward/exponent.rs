//! The power of two that dS is rounded in, where its dtype has less range than it needs.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, uniform};

use crate::abi::BackwardParams;
use crate::math::max;
use crate::tile::sequence::Sequence;
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT, F32_BYTES};

/// Rows that a lane loads at once: a block waits for them before it can begin.
const LOADS: u32 = 8;

/// The exponent of the largest |d_o| of query head `head` of a sequence of `rows` queries.
///
/// # Safety
/// `params` describes live allocations, and the head is one of them; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn of_head(params: &BackwardParams, sequence: &Sequence, rows: u32, head: u32) -> i32 {
    let array = params.terms.largest_d_o.map_or(0, |array| array.get());
    let address = sequence.row_address(&params.attention, array, head);
    let mut largest = 0.0;
    let mut row = lane_id();
    while row < rows {
        // The last row in place of those that do not exist, so that all are loaded at once.
        let load = |i: u32| {
            let row = (row + i * WARP_SIZE).min(rows - 1);
            // SAFETY: the array has an element for every row.
            unsafe { global::load(address + (row * F32_BYTES) as u64) }
        };
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (e, f, g, h) = (load(4), load(5), load(6), load(7));
        let halves = [max(max(a, b), max(c, d)), max(max(e, f), max(g, h))];
        largest = max(largest, max(halves[0], halves[1]));
        row += LOADS * WARP_SIZE;
    }
    // SAFETY: forwarded to the caller.
    unsafe {
        let exponent = reduce_max::<WARP_SIZE>(largest).to_bits() >> EXPONENT_SHIFT;
        // Of zeros any will do.
        let biased = if exponent == 0 {
            EXPONENT_BIAS
        } else {
            exponent
        };
        uniform(biased) as i32 - EXPONENT_BIAS as i32
    }
}
