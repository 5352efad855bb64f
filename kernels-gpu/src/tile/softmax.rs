//! The running softmax of FlashAttention-2 (Dao 2023, algorithm 1): one row's reference and sum over the
//! keys seen so far.
//!
//! With `r` the row's reference, a score in bits, and `l = Σⱼ 2^(sⱼ·scale_log2 − r)`, a block of new scores moves
//! `r` to `r'`; what was accumulated under `r` is multiplied by `2^(r − r')`. As exponents and factors are worked out
//! from the same rounded `r`, its rounding cancels.
//!
//! Any `r` is right as long as nothing overflows. [`RowState::follow`] takes the largest score so far, as the
//! paper does; [`RowState::accumulate`] keeps `r` and so needs neither a maximum nor a rescaling. It may follow
//! once a row has a reference and its sum is far from overflow.
//!
//! References lie `shift` above the score they are for. That leaves room for sums of products `p · v` with values near
//! f32's limit; it costs the exponent's last bits.

use core::f32::consts::LN_2;

use cuda_std::math::{exp2, fma, log2, max};
use cuda_std::warp::{reduce_max, reduce_sum};

use super::score::ScoreTransform;

/// Reference of a row that has seen no key. Finite, so that it gives the −∞ of hidden keys the probability 0; no score in
/// bits is less.
const NOTHING_SEEN: f32 = f32::MIN;
/// Exponent of f32's smallest normal number; `exp2` of less is 0.
const SMALLEST_EXPONENT: f32 = (f32::MIN_EXP - 1) as f32;

/// State of one row, shared by `LANES` consecutive lanes that each hold some of its columns.
#[derive(Clone, Copy)]
pub struct RowState<const LANES: u32> {
    /// In bits, the same in every lane.
    reference: f32,
    /// This lane's part of the sum.
    row_sum: f32,
}

impl<const LANES: u32> RowState<LANES> {
    /// No key seen.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            reference: NOTHING_SEEN,
            row_sum: 0.0,
        }
    }

    /// Takes in a block of scores, turns them into probabilities under the new maximum, and returns the
    /// factor by which to rescale what was accumulated under the old one.
    ///
    /// Hidden scores are −∞; a row that has seen no visible key gets zeros.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call, and every block of the row so far came through this method.
    #[inline(always)]
    pub unsafe fn update<const COLS: usize>(
        &mut self,
        scores: &mut [f32; COLS],
        transform: &ScoreTransform,
    ) -> f32 {
        // SAFETY: forwarded to the caller.
        let rescale = exp2(unsafe { self.follow(scores, transform) });
        self.scale(rescale);
        for score in scores {
            self.accumulate(score, transform);
        }
        rescale
    }

    /// Moves the reference to the largest score so far. Returns the bits, 0 or less, by which what was accumulated under
    /// the old one has to follow: multiplied by 2^bits, the sum by [`RowState::scale`].
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn follow<const COLS: usize>(
        &mut self,
        scores: &[f32; COLS],
        transform: &ScoreTransform,
    ) -> f32 {
        // SAFETY: forwarded to the caller.
        let block_max = unsafe { reduce_max::<LANES>(largest(scores)) };
        let block_max = fma(block_max, transform.scale_log2, transform.shift);
        let reference = max(self.reference, block_max);
        let bits = self.reference - reference;
        self.reference = reference;
        bits
    }

    /// Whether 2^bits is 0 in f32, but this lane's part of the sum times 2^bits need not be. [`RowState::accumulate`]
    /// may leave sums up to f32's largest number.
    #[inline(always)]
    pub fn outlives(&self, bits: f32) -> bool {
        bits < SMALLEST_EXPONENT && self.row_sum >= 1.0
    }

    /// Multiplies the sum by `factor`.
    #[inline(always)]
    pub fn scale(&mut self, factor: f32) {
        self.row_sum *= factor;
    }

    /// Takes in one score and turns it into a probability under the reference as it is.
    #[inline(always)]
    pub fn accumulate(&mut self, score: &mut f32, transform: &ScoreTransform) {
        *score = exp2(fma(*score, transform.scale_log2, -self.reference));
        self.row_sum += *score;
    }

    /// Whether [`RowState::accumulate`] would give one of the scores a probability above `2^limit`.
    #[inline(always)]
    pub fn exceeds<const COLS: usize>(
        &self,
        scores: &[f32; COLS],
        transform: &ScoreTransform,
        limit: f32,
    ) -> bool {
        fma(largest(scores), transform.scale_log2, -self.reference) > limit
    }

    /// Whether the row has seen a key.
    #[inline(always)]
    pub fn has_reference(&self) -> bool {
        self.reference > NOTHING_SEEN
    }

    /// Whether the sum of one of the rows, which all have a reference, is at least `limit`.
    #[inline(always)]
    pub fn exceed(rows: &[Self], limit: f32) -> bool {
        let mut largest = rows[0].row_sum;
        for row in &rows[1..] {
            largest = max(largest, row.row_sum);
        }
        largest >= limit
    }

    /// Whether this lane's part of the row's sum is too large, or is NaN: the sum of all parts or its reciprocal may lie
    /// outside f32's normal numbers.
    #[inline(always)]
    pub fn has_overflowed(&self) -> bool {
        let limit = f32::MAX / (4 * LANES) as f32;
        !(self.row_sum <= limit)
    }

    /// Closes the row: the factor that normalises its output, and its log-sum-exp in nats.
    ///
    /// A row with no visible key gives `(0, −∞)`.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn finalize(&self) -> (f32, f32) {
        // SAFETY: forwarded to the caller.
        let sum = unsafe { reduce_sum::<LANES>(self.row_sum) };
        if sum == 0.0 {
            (0.0, f32::NEG_INFINITY)
        } else {
            (1.0 / sum, (log2(sum) + self.reference) * LN_2)
        }
    }
}

#[inline(always)]
fn largest<const COLS: usize>(scores: &[f32; COLS]) -> f32 {
    let mut largest = scores[0];
    for score in &scores[1..] {
        largest = max(largest, *score);
    }
    largest
}
