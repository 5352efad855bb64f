//! The power of two that dS is rounded in, where its dtype has less range than it needs.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max_bits};

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
    let mut of_lane = lane_id();
    while of_lane < chunks {
        // The last chunk in place of those that do not exist, so that all are loaded at once.
        let load = |i: u32| {
            let chunk = (of_lane + i * WARP_SIZE).min(chunks - 1);
            // SAFETY: the array has an element for every chunk.
            unsafe { global::load(of_chunks + (chunk * F32_BYTES) as u64) }
        };
        let (a, b, c, d) = (load(0), load(1), load(2), load(3));
        let (e, f, g, h) = (load(4), load(5), load(6), load(7));
        let halves = [max(max(a, b), max(c, d)), max(max(e, f), max(g, h))];
        largest = max(largest, max(halves[0], halves[1]));
        of_lane += LOADS * WARP_SIZE;
    }
    // Absolute values are in the order of their bits.
    // SAFETY: forwarded to the caller.
    let exponent = unsafe { reduce_max_bits(largest.to_bits()) } >> EXPONENT_SHIFT;
    // Of zeros any will do.
    let biased = if exponent == 0 {
        EXPONENT_BIAS
    } else {
        exponent
    };
    biased as i32 - EXPONENT_BIAS as i32
}

/// Tells the kernel that rounds dq what dq of a query head of batch entry `batch` is added up times: 2^−`exponent`, in each block that
/// adds to it.
///
/// # Safety
/// `params` describes live allocations, with exponents of dq, and the head is one of them.
#[inline(always)]
pub unsafe fn tell(params: &BackwardParams, batch: u32, head: u32, exponent: i32) {
    let biased = (exponent + EXPONENT_BIAS as i32) as u32;
    // SAFETY: the array has an element for every head; others set the same bits.
    unsafe { global::set_bits(of_dq(params, batch, head), biased) };
}

/// What turns sums of dq of a query head of batch entry `batch` into dq, where they are times a power of two; 0 of sums to which
/// nothing was added.
///
/// # Safety
/// As [`tell`]; the kernel that adds up dq has ended.
#[inline(always)]
pub unsafe fn told(params: &BackwardParams, batch: u32, head: u32) -> f32 {
    // SAFETY: forwarded to the caller.
    let biased = unsafe { global::load_bits(of_dq(params, batch, head)) };
    f32::from_bits(biased << EXPONENT_SHIFT)
}

/// Address of the exponent of a head's dq.
#[inline(always)]
fn of_dq(params: &BackwardParams, batch: u32, head: u32) -> u64 {
    let exponents = params.dq_exponents.map_or(0, |array| array.get());
    // In 32 bits, as there are no more rows than they count.
    let index = batch * params.attention.heads_q + head;
    exponents + index as u64 * size_of::<u32>() as u64
}
