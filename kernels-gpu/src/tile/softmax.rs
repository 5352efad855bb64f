//! The running softmax of FlashAttention-2 (Dao 2023, algorithm 1): one row's reference and sum over the
//! keys seen so far.
//!
//! With `m` the row's reference score and `l = Σⱼ 2^((sⱼ − m)·scale_log2 − shift)`, a block of new scores
//! moves `m` to `m'`; what was accumulated under `m` is multiplied by `2^((m − m')·scale_log2)`.
//!
//! The shift leaves room for sums of products `p · v` with values near f32's limit; it costs the exponent's last bits.
//!
//! Any `m` is right as long as nothing overflows. [`RowState::update`] takes the largest score so far, as the
//! paper does; [`RowState::accumulate`] keeps `m` and so needs neither a maximum nor a rescaling. It may follow
//! once [`RowState::is_settled`] says so.

use core::f32::consts::LN_2;

use cuda_std::math::{exp2, fma, log2, max};
use cuda_std::warp::{reduce_max, reduce_sum};

use super::score::ScoreTransform;

/// State of one row, shared by `LANES` consecutive lanes that each hold some of its columns.
#[derive(Clone, Copy)]
pub struct RowState<const LANES: u32> {
    /// Reference score, the same in every lane; −∞ before the first visible key.
    row_max: f32,
    /// This lane's part of the sum.
    row_sum: f32,
}

impl<const LANES: u32> RowState<LANES> {
    /// No key seen.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            row_max: f32::NEG_INFINITY,
            row_sum: 0.0,
        }
    }

    /// Takes in a block of scores, turns them into probabilities under the new maximum, and returns the
    /// factor by which to rescale what was accumulated under the old one.
    ///
    /// Hidden scores are −∞; a row that has seen no visible key keeps `row_max` = −∞ and gets zeros.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn update<const COLS: usize>(
        &mut self,
        scores: &mut [f32; COLS],
        transform: &ScoreTransform,
    ) -> f32 {
        let mut block_max = scores[0];
        for score in &scores[1..] {
            block_max = max(block_max, *score);
        }
        // SAFETY: forwarded to the caller.
        let row_max = max(self.row_max, unsafe { reduce_max::<LANES>(block_max) });
        // Nothing visible yet: any finite reference makes every exponential 2^−∞ = 0.
        let reference = if row_max == f32::NEG_INFINITY {
            0.0
        } else {
            row_max
        };
        let rescale = exp2((self.row_max - reference) * transform.scale_log2);
        self.row_max = reference;
        self.row_sum *= rescale;
        self.accumulate(scores, transform);
        self.row_max = row_max;
        rescale
    }

    /// Takes in a block of scores and turns them into probabilities under the reference as it is.
    #[inline(always)]
    pub fn accumulate<const COLS: usize>(
        &mut self,
        scores: &mut [f32; COLS],
        transform: &ScoreTransform,
    ) {
        let offset = self.offset(transform);
        for score in scores {
            self.accumulate_one(score, offset, transform);
        }
    }

    /// What to add to an exponent under the reference as it is.
    #[inline(always)]
    pub fn offset(&self, transform: &ScoreTransform) -> f32 {
        fma(-self.row_max, transform.scale_log2, -transform.shift)
    }

    /// Whether [`RowState::accumulate`] would give this lane a probability above `2^limit`.
    #[inline(always)]
    pub fn exceeds<const COLS: usize>(
        &self,
        scores: &[f32; COLS],
        transform: &ScoreTransform,
        limit: f32,
    ) -> bool {
        let mut block_max = scores[0];
        for score in &scores[1..] {
            block_max = max(block_max, *score);
        }
        fma(block_max, transform.scale_log2, self.offset(transform)) > limit
    }

    /// [`RowState::accumulate`] for one score, given the row's [`RowState::offset`].
    #[inline(always)]
    pub fn accumulate_one(&mut self, score: &mut f32, offset: f32, transform: &ScoreTransform) {
        *score = exp2(fma(*score, transform.scale_log2, offset));
        self.row_sum += *score;
    }

    /// Whether the row has a reference, and its sum is below `limit` so far.
    #[inline(always)]
    pub fn is_settled(&self, limit: f32) -> bool {
        self.row_max > f32::NEG_INFINITY && self.row_sum < limit
    }

    /// Closes the row: the factor that normalises its output, and its log-sum-exp in nats.
    ///
    /// A row with no visible key gives `(0, −∞)`.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn finalize(&self, transform: &ScoreTransform) -> (f32, f32) {
        // SAFETY: forwarded to the caller.
        let sum = unsafe { reduce_sum::<LANES>(self.row_sum) };
        if sum == 0.0 {
            (0.0, f32::NEG_INFINITY)
        } else {
            let log2_sum = log2(sum) + transform.shift;
            (
                1.0 / sum,
                fma(self.row_max, transform.scale, log2_sum * LN_2),
            )
        }
    }
}
