//! Gradients that are not finite, computed again row by row.
//!
//! A pair that is masked out has a P and a dS of 0, but 0 times a row of `a` or `b` that is not finite is NaN, and the
//! products take whole blocks. So what is not finite is computed again from global memory, pair by pair, and only of pairs
//! that are seen: a result that is still not finite then is the answer. Slow: for inputs that hold ∞ or NaN alone.

use cuda_std::half::Half;
use cuda_std::warp::{WARP_SIZE, reduce_sum};

use super::tile::Tile;
use crate::abi::TensorArg;
use crate::backward::side::Side;
use crate::config::wgmma::WARP_ROWS;
use crate::math::{exp2, fma};
use crate::score::plain_scale_log2;
use crate::tile::block_range::visible_keys;
use crate::tile::element::{Element, F32};
use crate::units::F32_BYTES;
use crate::wgmma::forward::lanes::Lanes;

/// Components of a row that a lane has, at most, in kernels that keep both operands in one warpgroup.
const LANE_DIMS: usize = 4;

/// Which of the gradients are computed again.
#[derive(Clone, Copy)]
pub struct Gradients {
    /// dQ or dK.
    pub first: bool,
    /// dV, where there is one.
    pub second: bool,
}

/// Computes the warp's 16 rows.
///
/// # Safety
/// As [`consume`](super::consumer::consume), of a warp.
#[inline(always)]
pub unsafe fn rows<E: Half + Element, S: Side>(tile: &Tile<S>, kept_begin: u32, lanes: Lanes) {
    let first = tile.begin() + kept_begin + lanes.warp * WARP_ROWS;
    let mut row = first;
    while row < first + WARP_ROWS && row < tile.extent().kept {
        let both = Gradients {
            first: true,
            second: true,
        };
        one_row::<E, S, LANE_DIMS>(tile, row, lanes.lane, both);
        row += 1;
    }
}

/// A row of an operand, component `dim` of it lane by lane; 0 beyond its `dims`.
struct Row {
    address: u64,
    dims: u32,
    dim_stride: i64,
}

impl Row {
    #[inline(always)]
    fn new<E: Element>(address: u64, operand: &TensorArg, row: u32, dims: u32) -> Self {
        let offset = row as i64 * operand.seq_stride * E::BYTES as i64;
        Self {
            address: address.wrapping_add_signed(offset),
            dims,
            dim_stride: operand.dim_stride,
        }
    }

    #[inline(always)]
    fn at<E: Element>(&self, dim: u32) -> u64 {
        let offset = dim as i64 * self.dim_stride * E::BYTES as i64;
        self.address.wrapping_add_signed(offset)
    }

    /// The lane's components.
    ///
    /// # Safety
    /// The row is live.
    #[inline(always)]
    unsafe fn load<E: Element, const LANE_DIMS: usize>(&self, lane: u32) -> [f32; LANE_DIMS] {
        let mut values = [0.0; LANE_DIMS];
        for i in 0..LANE_DIMS {
            let dim = lane + i as u32 * WARP_SIZE;
            if dim < self.dims {
                values[i] = E::load(self.at::<E>(dim));
            }
        }
        values
    }

    /// # Safety
    /// The row is live, and nobody else accesses it.
    #[inline(always)]
    unsafe fn store<E: Element, const LANE_DIMS: usize>(
        &self,
        lane: u32,
        values: &[f32; LANE_DIMS],
        scale: f32,
    ) {
        for i in 0..LANE_DIMS {
            let dim = lane + i as u32 * WARP_SIZE;
            if dim < self.dims {
                E::store(self.at::<E>(dim), values[i] * scale);
            }
        }
    }
}

/// Computes one row of some gradients, of which a lane has `LANE_DIMS` components at most.
///
/// # Safety
/// As [`rows`]; the whole warp has the same row.
#[inline(always)]
pub unsafe fn one_row<E: Half + Element, S: Side, const LANE_DIMS: usize>(
    tile: &Tile<S>,
    row: u32,
    lane: u32,
    gradients: Gradients,
) {
    let params = tile.params;
    let attention = &params.attention;
    let (dims, dims_v) = (attention.head_dim, attention.head_dim_v);
    let (sequence, extent) = (&tile.sequence(), tile.extent());
    let kept = |operand: &TensorArg, dims| {
        let address = S::kept_address(sequence, operand, tile.head(), E::BYTES);
        Row::new::<E>(address, operand, row, dims)
    };
    let first = kept(S::first_kept(params), dims).load::<E, LANE_DIMS>(lane);
    let second = kept(S::second_kept(params), dims_v).load::<E, LANE_DIMS>(lane);
    let mut sum_first = [0.0; LANE_DIMS];
    let mut sum_second = [0.0; LANE_DIMS];
    let (head_begin, head_end) = S::passing_heads(attention, tile.head());
    let (begin, last) = visible_keys(row as i32, extent.band, extent.passing);
    let scale_log2 = plain_scale_log2(&attention.score);
    let mut head = head_begin;
    while head < head_end {
        let query_head = tile.query_head(head);
        let mut passing = begin;
        while passing <= last {
            let load = |operand: &TensorArg, dims| {
                let address = S::passing_address(sequence, operand, head, E::BYTES);
                Row::new::<E>(address, operand, passing as u32, dims).load::<E, LANE_DIMS>(lane)
            };
            let a = load(S::first_passing(params), dims);
            let b = load(S::second_passing(params), dims_v);
            let query = if S::HAS_SECOND { passing as u32 } else { row };
            let term = |array| {
                let address = sequence.row_address(attention, array, query_head);
                F32::load(address + query as u64 * F32_BYTES as u64)
            };
            let score = reduce_sum::<WARP_SIZE>(dot(&first, &a)) * scale_log2;
            let p = exp2(score - term(params.terms.lse_log2));
            let dp = reduce_sum::<WARP_SIZE>(dot(&second, &b));
            let ds = p * (dp - term(params.terms.delta));
            for i in 0..LANE_DIMS {
                sum_first[i] = fma(ds, a[i], sum_first[i]);
                sum_second[i] = fma(p, b[i], sum_second[i]);
            }
            passing += 1;
        }
        head += 1;
    }
    let scale = attention.score.softmax_scale;
    let gradient = if S::HAS_SECOND {
        &params.dk
    } else {
        &params.dq
    };
    if gradients.first {
        kept(gradient, dims).store::<E, LANE_DIMS>(lane, &sum_first, scale);
    }
    if S::HAS_SECOND && gradients.second {
        kept(&params.dv, dims_v).store::<E, LANE_DIMS>(lane, &sum_second, 1.0);
    }
}

#[inline(always)]
fn dot<const LANE_DIMS: usize>(a: &[f32; LANE_DIMS], b: &[f32; LANE_DIMS]) -> f32 {
    let mut sum = 0.0;
    for i in 0..LANE_DIMS {
        sum = fma(a[i], b[i], sum);
    }
    sum
}
