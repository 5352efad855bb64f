//! From `q · k` to the score that enters the softmax.

use core::f32::consts::LOG2_E;

use cuda_std::global;
use cuda_std::math::{fma, tanh};

use crate::abi::{AttentionParams, Positive};

/// Scores in the units the softmax works in.
///
/// The exponent is `score · scale_log2`, folded into one FMA with the row maximum; a positive
/// `scale_log2` keeps the order of the scores, so a negative softmax_scale flips their sign first.
#[derive(Clone, Copy)]
pub struct ScoreTransform {
    /// Applied to `q · k` before anything else.
    factor: f32,
    softcap: f32,
    /// ALiBi's slope, in nats a key; 0 without it.
    slope: f32,
    /// Multiplies a transformed score: nats.
    pub scale: f32,
    /// Multiplies a transformed score: bits.
    pub scale_log2: f32,
    /// Subtracted from every exponent.
    pub shift: f32,
}

impl ScoreTransform {
    /// The transform for one query head of one batch entry.
    ///
    /// # Safety
    /// `params` describes live allocations; `batch` and `head` are in range.
    #[inline(always)]
    pub unsafe fn new(params: &AttentionParams, batch: u32, head: u32, shift: f32) -> Self {
        let score = &params.score;
        let slope = match score.alibi_slopes {
            None => 0.0,
            Some(slopes) => {
                let index = batch as u64 * score.alibi_batch_stride + head as u64;
                let address = slopes.get() + index * size_of::<f32>() as u64;
                // SAFETY: there is a slope for every head.
                f32::from_bits(unsafe { global::load_u32(address) })
            }
        };
        let softcap = score.softcap.map_or(0.0, Positive::get);
        let softmax_scale = score.softmax_scale;
        let (factor, scale) = if softcap > 0.0 {
            (softmax_scale / softcap, 1.0)
        } else if slope != 0.0 || softmax_scale == 0.0 {
            // A scale of 0 must not meet the −∞ of hidden keys.
            (softmax_scale, 1.0)
        } else {
            (1.0f32.copysign(softmax_scale), softmax_scale.abs())
        };
        Self {
            factor,
            softcap,
            slope,
            scale,
            scale_log2: scale * LOG2_E,
            shift,
        }
    }

    /// Whether `q · k` is the score as it is.
    #[inline(always)]
    pub fn is_identity(&self) -> bool {
        self.softcap == 0.0 && self.slope == 0.0 && self.factor == 1.0
    }

    /// Turns `q · k` into scores, in place.
    ///
    /// Element `j` of row `i` is `distance(i) - column(j)` keys away from the query, counted on the diagonal that
    /// ends in the bottom-right corner.
    #[inline(always)]
    pub fn apply<const COLS: usize, const ROWS: usize>(
        &self,
        scores: &mut [[f32; COLS]; ROWS],
        distance: impl Fn(usize) -> i32,
        column: impl Fn(usize) -> i32,
    ) {
        if self.softcap > 0.0 {
            for score in scores.as_flattened_mut() {
                *score = self.softcap * tanh(*score * self.factor);
            }
        } else if self.factor != 1.0 {
            for score in scores.as_flattened_mut() {
                *score *= self.factor;
            }
        }
        if self.slope != 0.0 {
            for i in 0..ROWS {
                let distance = distance(i);
                for j in 0..COLS {
                    let keys = (distance - column(j)).unsigned_abs() as f32;
                    scores[i][j] = fma(-self.slope, keys, scores[i][j]);
                }
            }
        }
    }
}
