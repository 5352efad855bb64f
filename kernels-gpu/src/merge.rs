//! One result from results for parts of the keys: o and lse of split-KV and ring attention. A warp takes a row at a time.
//!
//! ```text
//! lse = ln Σᵢ exp lseᵢ         o = Σᵢ exp(lseᵢ − lse) · oᵢ
//! ```
//!
//! (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", eq. 4, for whole parts.)

use core::f32::consts::{LN_2, LOG2_E};

use cuda_std::global;
use cuda_std::warp::lane_id;

use crate::abi::{MergeParams, MergePart, TensorArg};
use crate::math::{exp2, fma, log2, max};
use crate::tile::element::{Element, F32};
use crate::tile::row_coord::RowCoord;
use crate::tile::warp_per_row::{WARP, each_row_by_warp};
use crate::units::F32_BYTES;

/// Merges all rows, with any number of blocks of whole warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn merge<E: Element>(params: &MergeParams) {
    let rows = params.batch as u64 * params.heads as u64 * params.seq as u64;
    // SAFETY: the row is the same for the warp, and one of o's.
    each_row_by_warp(rows, |row| unsafe { of_row::<E>(params, row) });
}

/// # Safety
/// As [`merge`]; the whole warp calls it with the same row, which is one of o's in the order of lse.
#[inline(always)]
unsafe fn of_row<E: Element>(params: &MergeParams, row: u64) {
    let coord = RowCoord::new(row, params.heads, params.seq);
    let lane = lane_id();
    // SAFETY: every part has an lse of this row, and an o.
    unsafe {
        let lse_max = fold(params, f32::NEG_INFINITY, |largest, part| {
            max(largest, part.lse(coord))
        });
        // Differences are taken before they are turned into bits: they are small where both are large.
        let weight = |part: &Part| {
            let lse = part.lse(coord);
            // A part in which the row sees no key has no weight, also where no part has one.
            if lse == f32::NEG_INFINITY {
                0.0
            } else {
                exp2((lse - lse_max) * LOG2_E)
            }
        };
        let sum = fold(params, 0.0, |sum, part| sum + weight(part));
        // The largest part weighs 1, so that a sum below is 0, of no part, and o is 0 too.
        let norm = 1.0 / max(sum, 1.0);
        let mut dim = lane;
        while dim < params.dim {
            let o = fold(params, 0.0, |o, part| match weight(part) {
                // The o of such a part must not matter.
                0.0 => o,
                weight => fma(weight, part.o::<E>(coord, dim), o),
            });
            E::store(component::<E>(&params.o, coord, dim), o * norm);
            dim += WARP;
        }
        let lse = if sum == 0.0 {
            f32::NEG_INFINITY
        } else {
            fma(log2(sum), LN_2, lse_max)
        };
        // All lanes store the same number: a store of one lane takes as long, and a branch more.
        global::store(params.lse + row * F32_BYTES as u64, lse);
    }
}

/// `op` of every part in order, beginning with `first`.
///
/// # Safety
/// As [`merge`].
#[inline(always)]
unsafe fn fold(params: &MergeParams, first: f32, op: impl Fn(f32, &Part) -> f32) -> f32 {
    let mut value = first;
    let mut index = 0;
    while index < params.count {
        let part = Part {
            address: params.parts + index as u64 * size_of::<MergePart>() as u64,
        };
        value = op(value, &part);
        index += 1;
    }
    value
}

/// A [`MergePart`] in global memory.
struct Part {
    address: u64,
}

impl Part {
    /// lse of a row.
    ///
    /// # Safety
    /// As [`merge`].
    #[inline(always)]
    unsafe fn lse(&self, coord: RowCoord) -> f32 {
        // SAFETY: the part is live, and so is its lse.
        unsafe {
            let lse = load_tensor(self.address + core::mem::offset_of!(MergePart, lse) as u64);
            F32::load(coord.address(&lse, F32_BYTES))
        }
    }

    /// Component `dim` of o's row.
    ///
    /// # Safety
    /// As [`merge`].
    #[inline(always)]
    unsafe fn o<E: Element>(&self, coord: RowCoord, dim: u32) -> f32 {
        // SAFETY: the part is live, and so is its o.
        unsafe {
            let o = load_tensor(self.address + core::mem::offset_of!(MergePart, o) as u64);
            E::load(component::<E>(&o, coord, dim))
        }
    }
}

/// Address of component `dim` of a row.
#[inline(always)]
fn component<E: Element>(tensor: &TensorArg, coord: RowCoord, dim: u32) -> u64 {
    let offset = dim as i64 * tensor.dim_stride * E::BYTES as i64;
    coord.address(tensor, E::BYTES).wrapping_add_signed(offset)
}

/// The [`TensorArg`] at an address in global memory.
///
/// # Safety
/// One lies there, which nobody writes during the launch.
#[inline(always)]
unsafe fn load_tensor(address: u64) -> TensorArg {
    let field = |offset: usize| {
        // SAFETY: each of the five fields has 8 bytes.
        unsafe { global::load_u64(address + offset as u64) }
    };
    TensorArg {
        address: field(core::mem::offset_of!(TensorArg, address)),
        batch_stride: field(core::mem::offset_of!(TensorArg, batch_stride)) as i64,
        head_stride: field(core::mem::offset_of!(TensorArg, head_stride)) as i64,
        seq_stride: field(core::mem::offset_of!(TensorArg, seq_stride)) as i64,
        dim_stride: field(core::mem::offset_of!(TensorArg, dim_stride)) as i64,
    }
}
