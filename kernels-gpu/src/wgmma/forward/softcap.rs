//! A softcap's tanh over a block of scores.
//!
//! An operation of the unit for exponentials takes as long as eight of others, and tanh has two of them where softmax has one. Scores
//! that are small beside the softcap, as most are, need none: tanh is a product with a polynomial there, which the exponent's FMA
//! multiplies by. A warp takes it if all its scores of a block are.

use core::f32::consts::LOG2_E;

use cuda_std::math::{polynomial, tanh};
use cuda_std::warp;

use crate::abi::ScoreParams;
use crate::tile::black_box;

/// Scores `softcap · tanh(q · k · softmax_scale / softcap)`, in nats.
#[derive(Clone, Copy)]
pub struct Softcap(f32);

/// tanh x / x for |x| below [`NEAR_ZERO`], as a [`polynomial`] of x²: its product with x is within 2⁻²² of tanh x, as near as
/// [`tanh`]'s. What follows the 1 makes the largest error least (Remez).
const TANH_OVER_X: [f32; 4] = [1.0, -0.333_264_6, 0.131_858_62, -0.044_229_297];
const NEAR_ZERO: f32 = 0.5;

/// What shrunk scores are multiplied by, beside the softcap's own factor, so that those near zero are the ones below 2, of
/// which one bit of their exponents tells.
const SCALE: f32 = TWO / NEAR_ZERO;
const TWO: f32 = 2.0;

impl Softcap {
    /// That of `params`, if nothing else changes scores.
    #[inline(always)]
    pub fn alone(params: &ScoreParams) -> Option<Self> {
        let softcap = params.softcap.filter(|_| params.alibi_slopes.is_none())?;
        Some(Self(softcap.get()))
    }

    /// What [`Self::shrink`] multiplies `q · k` by.
    #[inline(always)]
    pub fn factor(&self, softmax_scale: f32) -> f32 {
        softmax_scale / self.0 * SCALE
    }

    /// The largest score, in bits. Hidden from the optimiser, so that what is computed from it is not kept.
    #[inline(always)]
    fn largest(&self) -> f32 {
        f32::from_bits(black_box(self.0.to_bits())) * LOG2_E
    }

    /// What scores near zero are less than, in bits.
    #[inline(always)]
    pub fn largest_near_zero(&self) -> f32 {
        self.largest() * NEAR_ZERO
    }

    /// Shrinks `q · k` by [`Self::factor`]. Returns whether the scores of all the warp's lanes are near zero then.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn shrink<const S_REGS: usize>(scores: &mut [f32; S_REGS], factor: f32) -> bool {
        let mut bits = 0;
        for score in scores.iter_mut() {
            *score *= factor;
            bits |= score.to_bits();
        }
        // SAFETY: forwarded to the caller.
        unsafe { !warp::any(bits & TWO.to_bits() != 0) }
    }

    /// What turns shrunk scores near zero into scores in bits.
    #[inline(always)]
    pub fn near_zero(&self) -> NearZero {
        let mut coefficients = TANH_OVER_X;
        let mut unit = self.largest() / SCALE;
        let mut i = 0;
        while i < coefficients.len() {
            coefficients[i] *= unit;
            unit *= 1.0 / (SCALE * SCALE);
            i += 1;
        }
        NearZero(coefficients)
    }

    /// Turns shrunk scores, which are near zero or not, into scores in bits.
    #[inline(always)]
    pub fn bend<const S_REGS: usize>(&self, scores: &mut [f32; S_REGS], are_near_zero: bool) {
        if are_near_zero {
            let near_zero = self.near_zero();
            for score in scores {
                *score *= near_zero.factor(*score);
            }
        } else {
            let largest = self.largest();
            for score in scores {
                *score = tanh(*score * (1.0 / SCALE)) * largest;
            }
        }
    }
}

/// A softcap's score over a shrunk score near zero, in bits, as a polynomial of its square.
#[derive(Clone, Copy)]
pub struct NearZero([f32; TANH_OVER_X.len()]);

impl NearZero {
    /// What to multiply `score`, shrunk, by.
    #[inline(always)]
    pub fn factor(&self, score: f32) -> f32 {
        polynomial(&self.0, score * score)
    }
}
