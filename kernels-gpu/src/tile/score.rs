//! From `q · k` to the score that enters the softmax.

use core::f32::consts::LOG2_E;

use cuda_std::math::tanh;

use crate::abi::ForwardParams;

/// Scores in the units the softmax works in.
///
/// The exponent is `score · scale_log2`, folded into one FMA with the row maximum; a positive
/// `scale_log2` keeps the order of the scores, so a negative softmax_scale flips their sign first, and a softmax_scale of 0 is
/// taken as the smallest normal number, under which a hidden score of −∞ stays −∞.
#[derive(Clone, Copy)]
pub struct ScoreTransform {
    /// Applied to `q · k` before anything else.
    factor: f32,
    softcap: f32,
    /// Multiplies a transformed score: nats.
    pub scale: f32,
    /// Multiplies a transformed score: bits.
    pub scale_log2: f32,
}

impl ScoreTransform {
    #[inline(always)]
    pub fn new(params: &ForwardParams) -> Self {
        let softcap = params.softcap;
        let (factor, scale) = if softcap > 0.0 {
            (params.softmax_scale / softcap, 1.0)
        } else {
            (
                1.0f32.copysign(params.softmax_scale),
                params.softmax_scale.abs().max(f32::MIN_POSITIVE),
            )
        };
        Self {
            factor,
            softcap,
            scale,
            scale_log2: scale * LOG2_E,
        }
    }

    /// Turns `q · k` into scores, in place.
    #[inline(always)]
    pub fn apply<const COLS: usize, const ROWS: usize>(&self, scores: &mut [[f32; COLS]; ROWS]) {
        if self.softcap > 0.0 {
            for score in scores.as_flattened_mut() {
                *score = self.softcap * tanh(*score * self.factor);
            }
        } else if self.factor < 0.0 {
            for score in scores.as_flattened_mut() {
                *score = -*score;
            }
        }
    }
}
