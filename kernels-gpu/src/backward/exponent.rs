//! The power of two that dS is rounded in, where its dtype has less range than it needs.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, uniform};

use crate::abi::BackwardParams;
use crate::config::warp_per_row::DELTA_WARP_ROWS;
use crate::math::max;
use crate::tile::sequence::Sequence;
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT, F32_BYTES};

/// Chunks of rows that a lane loads at once: a block waits for them before it can begin.
const LOADS: u32 = 8;

/// The exponent of the largest |d_o| of query head `head` of a sequence of `rows` queries, of which there is one.
///
/// # Safety
/// `params` describes live allocations, and the head is one of them; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn of_head(params: &BackwardParams, sequence: &Sequence, rows: u32, head: u32) -> i32 {
    let terms = &params.terms;
    let element = F32_BYTES as u64;
    // By number, among all rows in the order of lse; from here on in 32 bits: kernels have few registers to spare.
    let first = sequence.row_address(&params.attention, 0, head) / element;
    let lane = lane_id();
    // Rows before the first whole chunk, and after the last: fewer than there are lanes. The other lanes load one of them too.
    let before = (first.wrapping_neg() % DELTA_WARP_ROWS) as u32;
    let before = before.min(rows);
    let chunks = (rows - before) / DELTA_WARP_ROWS as u32;
    let after = before + chunks * DELTA_WARP_ROWS as u32;
    let row = if lane < before {
        lane
    } else {
        (after + lane - before).min(rows - 1)
    };
    let of_rows = terms.largest_d_o.map_or(0, |array| array.get()) + first * element;
    // SAFETY: the array has an element for every row.
    let mut largest = unsafe { global::load(of_rows + (row * F32_BYTES) as u64) };
    let of_chunks = terms.largest_of_chunk + (first + before as u64) / DELTA_WARP_ROWS * element;
    let mut chunk = lane_id();
    while chunk < chunks {
        // The last chunk in place of those that do not exist, so that all are loaded at once.
        let load = |i: u32| {
            let chunk = (chunk + i * WARP_SIZE).min(chunks - 1);
            // SAFETY: the array has an element for every chunk.
            unsafe { global::load(of_chunks + (chunk * F32_BYTES) as u64) }
        };
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (e, f, g, h) = (load(4), load(5), load(6), load(7));
        let halves = [max(max(a, b), max(c, d)), max(max(e, f), max(g, h))];
        largest = max(largest, max(halves[0], halves[1]));
        chunk += LOADS * WARP_SIZE;
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
