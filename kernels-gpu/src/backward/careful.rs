//! Gradients that are not finite, computed again row by row, by kernels whose tiles need not do so.
//!
//! A pair that is masked out has a P and a dS of 0, but 0 times a row of `a` or `b` that is not finite is NaN, and the
//! products take whole blocks. So what is not finite is computed again from global memory, pair by pair, and only of pairs
//! that are seen, under the launch's modifiers if it has any: a result that is still not finite then is the answer. Slow: for inputs that hold ∞ or NaN alone.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use core::f32::consts::LOG2_E;

use cuda_std::half::Half;
use cuda_std::warp::{WARP_SIZE, any, reduce_sum};

use super::side::{Extent, Side};
use crate::abi::{AttentionParams, BackwardParams, TensorArg};
use crate::math::{exp2, fma};
use crate::modifiers::{Modifiers, Pair, Place};
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::block_range::visible_keys;
use crate::tile::element::{Element, F32};
use crate::tile::sequence::Sequence;
use crate::units::F32_BYTES;

/// Components of a row of 256 that a lane has.
const MOST_LANE_DIMS: usize = 8;

/// What the code that computes a row is for: constants.
#[derive(Clone, Copy)]
pub struct Code {
    /// Components of a row that a lane has, at most.
    lane_dims: usize,
    /// Whether scores may be capped or have slopes.
    may_bend: bool,
    /// Whether products are written out for all components, in place of a loop.
    is_written_out: bool,
}

impl Code {
    /// For any row and score.
    pub const ANY_ROW: Self = Self {
        lane_dims: MOST_LANE_DIMS,
        may_bend: true,
        is_written_out: false,
    };

    /// For rows of up to `lane_dims` components a lane, and scores that do not bend.
    pub const fn of_lane_dims(lane_dims: usize) -> Self {
        Self {
            lane_dims,
            may_bend: false,
            is_written_out: false,
        }
    }

    /// For the rows of a warpgroup whose threads have `sum_regs` registers of a gradient, half as many as a row has components.
    pub const fn of_sum(sum_regs: usize) -> Self {
        // Each of 32 lanes takes a part of a row.
        Self::of_lane_dims(sum_regs / 16)
    }

    /// For anything, as long as it can be.
    pub const LONG: Self = Self {
        lane_dims: MOST_LANE_DIMS,
        may_bend: true,
        is_written_out: true,
    };

    /// The number after `index` in a loop over rows, hidden if the loop must not be written out for several rows.
    #[inline(always)]
    pub fn next(self, index: u32) -> u32 {
        if self.is_written_out {
            index + 1
        } else {
            black_box(index) + 1
        }
    }
}

/// A gradient of the side that is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// dQ or dK.
    First,
    /// dV.
    Second,
}

impl Which {
    /// The gradient's tensor, and its dimensions.
    #[inline(always)]
    pub fn tensor<S: Side>(self, params: &BackwardParams) -> (&TensorArg, u32) {
        let attention = &params.attention;
        match self {
            Self::Second => (&params.dv, attention.head_dim_v),
            Self::First if S::HAS_SECOND => (&params.dk, attention.head_dim),
            Self::First => (&params.dq, attention.head_dim),
        }
    }
}

/// A head of a sequence of the side that is kept.
pub struct Head<'a, M> {
    pub params: &'a BackwardParams,
    pub modifiers: &'a M,
    pub sequence: &'a Sequence,
    pub extent: Extent,
    /// The batch entry, of those that have lengths and slopes of their own.
    pub batch: u32,
    pub head: u32,
    pub code: Code,
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

    /// The lane's component number `i`.
    ///
    /// # Safety
    /// The row is live.
    #[inline(always)]
    unsafe fn load<E: Element>(&self, lane: u32, i: usize) -> f32 {
        // Hidden, or offsets of all components would be kept in registers.
        let dim = black_box(lane) + i as u32 * WARP_SIZE;
        if dim < self.dims {
            E::load(self.at::<E>(dim))
        } else {
            0.0
        }
    }

    /// The product with `other`, which has as many components, of all lanes.
    ///
    /// # Safety
    /// Both are live; all lanes of the warp reach the same call.
    #[inline(always)]
    unsafe fn dot<E: Element>(&self, other: &Self, lane: u32, code: Code) -> f32 {
        let mut sum = 0.0;
        if code.is_written_out {
            for i in 0..code.lane_dims {
                sum = fma(self.load::<E>(lane, i), other.load::<E>(lane, i), sum);
            }
            return reduce_sum::<WARP_SIZE>(sum);
        }
        // Hidden, or offsets of components would be kept in registers; in the loop, or it would be written out for several.
        let mut dim = black_box(lane);
        while dim < self.dims {
            sum = fma(E::load(self.at::<E>(dim)), E::load(other.at::<E>(dim)), sum);
            dim = black_box(dim) + WARP_SIZE;
        }
        reduce_sum::<WARP_SIZE>(sum)
    }

    /// # Safety
    /// The row is live, and nobody else accesses it.
    #[inline(always)]
    unsafe fn store<E: Element>(&self, lane: u32, values: &[f32], scale: f32) {
        for i in 0..values.len() {
            let dim = lane + i as u32 * WARP_SIZE;
            if dim < self.dims {
                E::store(self.at::<E>(dim), values[i] * scale);
            }
        }
    }
}

impl<M: Modifiers> Head<'_, M> {
    /// Computes gradient `which` of kept row `row`, which exists.
    ///
    /// # Safety
    /// All addresses are live, and nobody else accesses the row of the gradient; the 32 lanes of a warp call it, `lane` of them this
    /// one.
    #[inline(always)]
    pub unsafe fn compute<E: Half + Element, S: Side>(&self, row: u32, lane: u32, which: Which) {
        let Self {
            params,
            modifiers,
            sequence,
            extent,
            batch,
            head,
            code,
        } = *self;
        // Hidden, so that what is derived from them is not kept in registers for this rare case.
        let attention = &AttentionParams {
            heads_q: black_box(params.attention.heads_q),
            heads_kv: black_box(params.attention.heads_kv),
            ..params.attention
        };
        let (dims, dims_v) = (attention.head_dim, attention.head_dim_v);
        let kept = |operand: &TensorArg, dims| {
            let address = S::kept_address(sequence, operand, head, E::BYTES);
            Row::new::<E>(address, operand, row, dims)
        };
        let first = kept(S::first_kept(params), dims);
        let second = kept(S::second_kept(params), dims_v);
        let mut sum = [0.0; MOST_LANE_DIMS];
        let (begin, last) = if M::IS_NONE {
            visible_keys(row as i32, extent.band, extent.passing)
        } else {
            // A prefix shows keys outside the band: each pair is asked for.
            (0, extent.passing as i32 - 1)
        };
        let (mut passing_head, head_end) = S::passing_heads(attention, head);
        while passing_head < head_end {
            let query_head = if S::HAS_SECOND { passing_head } else { head };
            let mut passing = begin;
            while passing <= last {
                let place = extent.place::<S>(sequence, batch, query_head, attention.heads_q);
                let other_row = passing as u32;
                let (query, key) = S::query_and_key(row, other_row);
                let pair = Pair { query, key };
                // Hidden, or the loop would be written out for several pairs.
                passing = black_box(other_row) as i32 + 1;
                // Voted, so that all lanes are seen to go on together.
                if !M::IS_NONE && any(!modifiers.sees(&place, pair)) {
                    continue;
                }
                let passing_head = black_box(passing_head);
                let row_of = |operand: &TensorArg, dims| {
                    let address = S::passing_address(sequence, operand, passing_head, E::BYTES);
                    Row::new::<E>(address, operand, other_row, dims)
                };
                let a = row_of(S::first_passing(params), dims);
                let b = row_of(S::second_passing(params), dims_v);
                let term = |array| {
                    let address = sequence.row_address(attention, array, query_head);
                    F32::load(address + query as u64 * F32_BYTES as u64)
                };
                let product = first.dot::<E>(&a, lane, code);
                let distance = row as i32 + extent.diagonal - other_row as i32;
                let (score, slope) = self.score(attention, &place, pair, product, distance);
                let p = exp2(score - term(params.terms.lse_log2));
                let dp = second.dot::<E>(&b, lane, code);
                let dropout = modifiers.dropout(&place);
                let is_kept = dropout.is_none_or(|dropout| dropout.keeps(pair));
                let (p_kept, dp_kept) = if is_kept {
                    (p, dp * modifiers.dropout_scale())
                } else {
                    (0.0, 0.0)
                };
                let ds = p * slope * (dp_kept - term(params.terms.delta));
                let (weight, of) = match which {
                    Which::First => (ds, a),
                    Which::Second => (p_kept, b),
                };
                for i in 0..code.lane_dims {
                    sum[i] = fma(weight, of.load::<E>(lane, i), sum[i]);
                }
            }
            passing_head = black_box(passing_head) + 1;
        }
        let scale = match which {
            Which::First => attention.score.softmax_scale,
            Which::Second => modifiers.dropout_scale(),
        };
        let (tensor, dims) = which.tensor::<S>(params);
        kept(tensor, dims).store::<E>(lane, &sum[..code.lane_dims], scale);
    }

    /// The score in bits of `pair`, `distance` keys from the diagonal, and its derivative by the scaled product.
    ///
    /// # Safety
    /// As [`Modifiers`].
    #[inline(always)]
    unsafe fn score(
        &self,
        attention: &AttentionParams,
        place: &Place,
        pair: Pair,
        product: f32,
        distance: i32,
    ) -> (f32, f32) {
        let modifiers = self.modifiers;
        let mut slope = 1.0;
        let (mut score, scale_log2) = if self.code.may_bend {
            let transform = if modifiers.changes_scores() {
                ScoreTransform::in_nats(&attention.score, place.batch, place.head, 0.0)
            } else {
                ScoreTransform::new(&attention.score, place.batch, place.head, 0.0)
            };
            let mut score = [[product]];
            if !transform.is_plain {
                transform.apply_with_slope(&mut score, |_| distance, |_| 0, |_, _, of| slope = of);
            }
            (score, transform.scale_log2)
        } else {
            ([[product * attention.score.softmax_scale]], LOG2_E)
        };
        if modifiers.changes_scores() {
            let of_pair = |_, _, of| slope *= of;
            modifiers.change_with_slope(|| *place, &mut score, |_, _| pair, of_pair);
        }
        (score[0][0] * scale_log2, slope)
    }
}
