//! The running softmax over a score fragment, in two forms.
//!
//! A row's probabilities are `2^(s·scale_log2 − reference)`. The **online** form (Dao 2023, algorithm 1) moves
//! the reference to the row's maximum and rescales what was accumulated. The **max-free** form keeps the
//! reference where it is: no maximum, no shuffles, no rescaling. f32 and bf16 have exponents to spare, so it
//! is as exact while no probability leaves their range; [`Rows::lower`] moves the reference when one grows
//! large, and an overflow within one block is seen in the sums.

use core::f32::consts::LN_2;

use cuda_std::math::{exp2, fma, log2, max, recip};
use cuda_std::warp::{reduce_max, reduce_sum};

use crate::layout::fragment::ROW_STEP;

/// Rows a thread holds a part of; register `4j + 2h + c` of a fragment belongs to row `h`.
pub const ROWS: usize = 2;
const _: () = assert!(ROW_STEP == 8);

/// Lanes that share a row.
const QUAD: u32 = 4;

/// A factor or sum for each of a thread's rows.
pub type PerRow = [f32; ROWS];

/// State of a thread's two rows.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Exponent that counts as 2⁰; the same in the whole quad.
    reference: PerRow,
    /// This thread's part of the sum of probabilities.
    sum: PerRow,
}

/// What a closed row needs to be written.
#[derive(Clone, Copy)]
pub struct Closed {
    /// Normalises the output.
    pub norm: PerRow,
    /// All ones for a row that saw a key, else zero: the bits to keep of its output.
    pub keep: [u32; ROWS],
    /// Log-sum-exp in nats.
    pub lse: PerRow,
}

impl Rows {
    /// No key seen. The reference is finite, so that hidden scores (−∞) give 2^−∞ = 0 without a test.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            reference: [f32::MIN; ROWS],
            sum: [0.0; ROWS],
        }
    }

    /// Takes in a block of scores and turns them into probabilities under the new references; returns the
    /// factors for what was accumulated under the old ones.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn update<const S: usize>(
        &mut self,
        scores: &mut [f32; S],
        scale_log2: f32,
    ) -> PerRow {
        let mut maxima = [[scores[0], scores[1]], [scores[2], scores[3]]];
        let mut i = 4;
        while i < S {
            maxima[0][0] = max(maxima[0][0], scores[i]);
            maxima[0][1] = max(maxima[0][1], scores[i + 1]);
            maxima[1][0] = max(maxima[1][0], scores[i + 2]);
            maxima[1][1] = max(maxima[1][1], scores[i + 3]);
            i += 4;
        }
        let mut rescale = [0.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: forwarded to the caller.
            let block = unsafe { reduce_max::<QUAD>(max(maxima[row][0], maxima[row][1])) };
            let reference = max(self.reference[row], block * scale_log2);
            rescale[row] = exp2(self.reference[row] - reference);
            self.reference[row] = reference;
        }
        let sums = self.exponentiate(scores, scale_log2);
        for row in 0..ROWS {
            self.sum[row] = fma(self.sum[row], rescale[row], sums[row]);
        }
        rescale
    }

    /// Turns scores into probabilities under the present references; returns this thread's part of their
    /// sums, which [`Self::add`] takes in.
    #[inline(always)]
    pub fn exponentiate<const S: usize>(&self, scores: &mut [f32; S], scale_log2: f32) -> PerRow {
        let [first, second] = self.reference;
        let mut sums = [[0.0; 2]; ROWS];
        let mut i = 0;
        while i < S {
            scores[i] = exp2(fma(scores[i], scale_log2, -first));
            scores[i + 1] = exp2(fma(scores[i + 1], scale_log2, -first));
            scores[i + 2] = exp2(fma(scores[i + 2], scale_log2, -second));
            scores[i + 3] = exp2(fma(scores[i + 3], scale_log2, -second));
            sums[0][0] += scores[i];
            sums[0][1] += scores[i + 1];
            sums[1][0] += scores[i + 2];
            sums[1][1] += scores[i + 3];
            i += 4;
        }
        [sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]]
    }

    /// Takes in the sums of a block.
    #[inline(always)]
    pub fn add(&mut self, sums: PerRow) {
        for row in 0..ROWS {
            self.sum[row] += sums[row];
        }
    }

    /// Raises the references of rows whose probabilities have grown large, by a whole power of two that
    /// brings `sums`, of the latest block, near 1. Returns the factors for what was accumulated, the latest
    /// probabilities included.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call; `sums` are below 2¹²⁶.
    #[inline(always)]
    pub unsafe fn lower(&mut self, sums: PerRow) -> PerRow {
        let mut factor = [1.0; ROWS];
        for row in 0..ROWS {
            // SAFETY: forwarded to the caller.
            let largest = unsafe { reduce_max::<QUAD>(sums[row]) };
            let exponent = (max(largest, 1.0).to_bits() >> EXPONENT_SHIFT) - EXPONENT_BIAS;
            factor[row] = f32::from_bits((EXPONENT_BIAS - exponent) << EXPONENT_SHIFT);
            self.reference[row] += exponent as f32;
            self.sum[row] *= factor[row];
        }
        factor
    }

    /// Whether a reference is so far from 0 that [`Self::lower`] would round it by more than 2⁻¹² bits.
    #[inline(always)]
    pub fn are_far(&self) -> bool {
        self.reference[0].abs() >= FAR || self.reference[1].abs() >= FAR
    }

    /// Closes the rows. A row that saw no key gets output 0 and lse −∞.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn close(&self) -> Closed {
        let mut closed = Closed {
            norm: [0.0; ROWS],
            keep: [0; ROWS],
            lse: [0.0; ROWS],
        };
        for row in 0..ROWS {
            // SAFETY: forwarded to the caller.
            let sum = unsafe { reduce_sum::<QUAD>(self.sum[row]) };
            closed.norm[row] = recip(sum);
            // NaN counts as seen.
            closed.keep[row] = if sum == 0.0 { 0 } else { !0 };
            closed.lse[row] = (self.reference[row] + log2(sum)) * LN_2;
        }
        closed
    }
}

/// Up to here, and the bits that are added to it, f32 has steps of at most 2⁻¹¹.
const FAR: f32 = 4096.0;
const EXPONENT_SHIFT: u32 = f32::MANTISSA_DIGITS - 1;
const EXPONENT_BIAS: u32 = f32::MAX_EXP as u32 - 1;

/// Multiplies every element of a fragment by its row's factor.
#[inline(always)]
pub fn scale_rows<const N: usize>(fragment: &mut [f32; N], factor: PerRow) {
    let mut i = 0;
    while i < N {
        fragment[i] *= factor[0];
        fragment[i + 1] *= factor[0];
        fragment[i + 2] *= factor[1];
        fragment[i + 3] *= factor[1];
        i += 4;
    }
}
