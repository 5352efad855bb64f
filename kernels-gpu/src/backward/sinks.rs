//! The gradients by sinks: a warp takes a head at a time, and adds in one order.
//!
//! A sink is a key whose value is 0, so that its dP is 0 and its dS is `−P · delta`, where delta already has the gradient by lse
//! taken off.

use cuda_std::global;
use cuda_std::warp::{WARP_SIZE, lane_id, reduce_sum};

use crate::abi::SinkGradientParams;
use crate::math::exp2;
use crate::tile::black_box;
use crate::tile::warp_per_row::each_row_by_warp;
use crate::units::F32_BYTES;
use core::f32::consts::LOG2_E;

/// Computes the gradients of all sinks, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn sinks(params: &SinkGradientParams) {
    // SAFETY: the head is the same for the warp, and one of the launch's.
    each_row_by_warp(params.heads as u64, |head| unsafe { of_head(params, head) });
}

/// # Safety
/// As [`sinks`]; the whole warp calls it with the same head.
#[inline(always)]
unsafe fn of_head(params: &SinkGradientParams, head: u64) {
    let element = |array: u64, index: u64| {
        // SAFETY: the caller vouches for the arrays, and indices are inside them.
        unsafe { f32::from_bits(global::load_u32(array + index * F32_BYTES as u64)) }
    };
    let sink = element(params.sinks, head) * LOG2_E;
    let mut sum = 0.0;
    let mut batch = 0;
    while batch < black_box(params.batch) as u64 {
        let first = (batch * params.heads as u64 + head) * params.rows as u64;
        let mut row = lane_id() as u64;
        while row < params.rows as u64 {
            let lse = element(params.lse_log2, first + row);
            sum += exp2(sink - lse) * element(params.delta, first + row);
            row += WARP_SIZE as u64;
        }
        batch += 1;
    }
    // SAFETY: the whole warp is here, and the head is its own.
    unsafe {
        let sum = reduce_sum::<WARP_SIZE>(sum);
        // All lanes store the same number, without a branch; not −0 where nothing is added.
        global::store(params.d_sinks + head * F32_BYTES as u64, 0.0 - sum);
    }
}
