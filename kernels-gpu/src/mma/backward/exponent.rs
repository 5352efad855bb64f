//! The power of two that dS is rounded in, where its dtype has less range than it needs.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_max, uniform};

use super::MmaBackwardKernel;
use super::tile::{Step, Tile};
use crate::math::max;
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT, F32_BYTES};

/// The exponent of the largest |d_o| of the query head of a step.
///
/// # Safety
/// As [`Tile::new`]; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn of_head<K: MmaBackwardKernel>(tile: &Tile<K>, step: Step) -> i32 {
    let params = tile.params;
    let sequence = tile.sequence();
    let array = params.terms.largest_d_o.map_or(0, |array| array.get());
    let head = tile.query_head(step.head);
    let address = sequence.row_address(&params.attention, array, head);
    let mut largest = 0.0;
    let mut row = lane_id();
    while row < sequence.seq_q {
        largest = max(largest, global::load(address + (row * F32_BYTES) as u64));
        row += WARP_SIZE;
    }
    let exponent = reduce_max::<WARP_SIZE>(largest).to_bits() >> EXPONENT_SHIFT;
    // Of zeros any will do.
    let biased = if exponent == 0 {
        EXPONENT_BIAS
    } else {
        exponent
    };
    uniform(biased) as i32 - EXPONENT_BIAS as i32
}
