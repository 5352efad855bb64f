//! The power of two that dS is rounded in, where its dtype has less range than it needs.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, uniform};

use crate::abi::BackwardParams;
use crate::config::warp_per_row::DELTA_CHUNK_ROWS;
use crate::math::max;
use crate::tile::sequence::Sequence;
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT, F32_BYTES};

/// Chunks of rows that a lane loads at once: a block waits for them before it can begin.
const LOADS: u64 = 8;

/// The exponent of the largest |d_o| of query head `head` of a sequence of `rows` queries, of which there is one.
///
/// # Safety
/// `params` describes live allocations, and the head is one of them; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn of_head(params: &BackwardParams, sequence: &Sequence, rows: u32, head: u32) -> i32 {
    let terms = &params.terms;
    let element = F32_BYTES as u64;
    // By number, among all rows in the order of lse.
    let first = sequence.row_address(&params.attention, 0, head) / element;
    let end = first + rows as u64;
    let (mut chunk, chunks_end) = (first.div_ceil(DELTA_CHUNK_ROWS), end / DELTA_CHUNK_ROWS);
    let lane = lane_id() as u64;
    // Rows before the first whole chunk, and after the last: fewer than there are lanes. The other lanes load one of them too.
    let before = (chunk * DELTA_CHUNK_ROWS).min(end) - first;
    let after_begin = (chunks_end * DELTA_CHUNK_ROWS).max(first + before);
    let row = if lane < before {
        first + lane
    } else {
        (after_begin + lane - before).min(end - 1)
    };
    let rows = terms.largest_d_o.map_or(0, |array| array.get());
    // SAFETY: the array has an element for every row.
    let mut largest = unsafe { global::load(rows + row * element) };
    chunk += lane;
    while chunk < chunks_end {
        // The last chunk in place of those that do not exist, so that all are loaded at once.
        let load = |i: u64| {
            let chunk = (chunk + i * WARP_SIZE as u64).min(chunks_end - 1);
            // SAFETY: the array has an element for every chunk.
            unsafe { global::load(terms.largest_of_chunk + chunk * element) }
        };
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (e, f, g, h) = (load(4), load(5), load(6), load(7));
        let halves = [max(max(a, b), max(c, d)), max(max(e, f), max(g, h))];
        largest = max(largest, max(halves[0], halves[1]));
        chunk += LOADS * WARP_SIZE as u64;
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
