//! lse in bits and delta of every row of o: a warp takes a row at a time.

use core::f32::consts::LOG2_E;

use cuda_std::global;
use cuda_std::half::{Bf16, F16, Half};
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{lane_id, reduce_sum};

use crate::abi::{DeltaParams, DeviceAddress, TensorArg};
use crate::math::fma;
use crate::tile::grid::divide;
use crate::units::{F32_BYTES, HALF_BYTES};

const WARP: u32 = 32;

/// An element of o and d_o in memory.
pub trait Element {
    const BYTES: u32;

    /// # Safety
    /// An element lies at `address`, which nobody writes during the launch.
    unsafe fn load(address: u64) -> f32;
}

/// f32.
pub struct F32;

impl Element for F32 {
    const BYTES: u32 = F32_BYTES;

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: forwarded to the caller.
        f32::from_bits(unsafe { global::load_u32(address) })
    }
}

/// # Safety
/// As [`Element::load`].
#[inline(always)]
unsafe fn load_half<H: Half>(address: u64) -> f32 {
    // SAFETY: forwarded to the caller.
    let bits = unsafe { global::load_u16(address) };
    let [value, _] = H::widen_pair(bits as u32);
    value
}

impl Element for F16 {
    const BYTES: u32 = HALF_BYTES;

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: forwarded to the caller.
        unsafe { load_half::<Self>(address) }
    }
}

impl Element for Bf16 {
    const BYTES: u32 = HALF_BYTES;

    #[inline(always)]
    unsafe fn load(address: u64) -> f32 {
        // SAFETY: forwarded to the caller.
        unsafe { load_half::<Self>(address) }
    }
}

/// Computes the terms of all rows of o, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn delta<E: Element>(params: &DeltaParams) {
    let rows = params.batch as u64 * params.heads as u64 * params.seq as u64;
    let warps_per_block = block_dim_x() / WARP;
    let mut row = block_idx_x() as u64 * warps_per_block as u64 + (thread_idx_x() / WARP) as u64;
    while row < rows {
        // SAFETY: the row is the same for the warp, and one of o's.
        unsafe { of_row::<E>(params, row) };
        row += grid_dim_x() as u64 * warps_per_block as u64;
    }
}

/// # Safety
/// As [`delta`]; the whole warp calls it with the same row, which is one of o's in the order of lse.
#[inline(always)]
unsafe fn of_row<E: Element>(params: &DeltaParams, row: u64) {
    let (sequence, position) = divide(row, params.seq as u64);
    let (batch, head) = divide(sequence, params.heads as u64);
    let address = |tensor: &TensorArg| {
        let offset = batch as i64 * tensor.batch_stride
            + head as i64 * tensor.head_stride
            + position as i64 * tensor.seq_stride;
        tensor.address.wrapping_add_signed(offset * E::BYTES as i64)
    };
    let (o, d_o) = (address(&params.o), address(&params.d_o));
    let lane = lane_id();
    let mut sum = 0.0;
    let mut dim = lane;
    while dim < params.dim {
        let offset = |tensor: &TensorArg| dim as i64 * tensor.dim_stride * E::BYTES as i64;
        // SAFETY: the row has this component.
        let (o, d_o) = unsafe {
            let o = E::load(o.wrapping_add_signed(offset(&params.o)));
            (o, E::load(d_o.wrapping_add_signed(offset(&params.d_o))))
        };
        sum = fma(o, d_o, sum);
        dim += WARP;
    }
    // SAFETY: the whole warp is here.
    let sum = unsafe { reduce_sum::<WARP>(sum) };
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
            // What such a row's o and d_o hold must not matter.
            global::store(at(params.terms.delta), if sees_none { 0.0 } else { delta });
        }
    }
}
