//! A softcap's tanh over a block of scores.
//!
//! An operation of the unit for exponentials takes as long as eight of others, and tanh has two of them where softmax has one. Scores
//! that are small beside the softcap, as most are, need none: a polynomial is tanh there. A warp takes it if all its scores of a block are.

use core::f32::consts::LOG2_E;

use cuda_std::math::{NEAR_ZERO, scaled_tanh_near_zero, tanh};
use cuda_std::warp;

use crate::abi::ScoreParams;

/// Scores `largest · tanh(q · k · factor)`, in bits.
#[derive(Clone, Copy)]
pub struct Softcap {
    factor: f32,
    largest: f32,
}

impl Softcap {
    /// That of `params`, if nothing else changes scores.
    #[inline(always)]
    pub fn alone(params: &ScoreParams) -> Option<Self> {
        let softcap = params
            .softcap
            .filter(|_| params.alibi_slopes.is_none())?
            .get();
        Some(Self {
            factor: params.softmax_scale / softcap,
            largest: softcap * LOG2_E,
        })
    }
}

/// Scores are multiplied by 2ᴺ, so that those near zero are the ones below 2, of which one bit of their exponents tells.
const N: i32 = 2;
const SCALE: f32 = (1 << N) as f32;
const TWO: f32 = 2.0;
const _: () = assert!(NEAR_ZERO * SCALE == TWO);

/// Turns `q · k` into tanh, times a number; returns the factor from that to a score in bits.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn bend<const S_REGS: usize>(scores: &mut [f32; S_REGS], softcap: Softcap) -> f32 {
    let Softcap { factor, largest } = softcap;
    let mut bits = 0;
    for score in scores.iter_mut() {
        *score *= factor * SCALE;
        bits |= score.to_bits();
    }
    // SAFETY: forwarded to the caller.
    if unsafe { warp::any(bits & TWO.to_bits() != 0) } {
        for score in scores {
            *score = tanh(*score * (1.0 / SCALE)) * SCALE;
        }
    } else {
        for score in scores {
            *score = scaled_tanh_near_zero::<N>(*score);
        }
    }
    largest / SCALE
}
