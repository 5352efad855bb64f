//! Definition of a score: `softmax_scale · q·k`, then softcap, then the bias; the mask comes after.
//!
//! | file | holds |
//! |---|---|
//! | `transform` | how `q · k` becomes a score, for every kernel |
//! | `alibi` | the bias that grows with distance |
//!
//! Where a score is a positive multiple of `q · k`, kernels of 16-bit elements have faster loops without a transform.
//! [`is_plain`] decides for all of them; fp32 kernels have one loop and always transform. A new score option begins in
//! [`ScoreParams`], which the functions here destructure by name: they do not compile until each handles it.

pub mod alibi;
mod transform;

use core::f32::consts::LOG2_E;

use crate::abi::ScoreParams;
pub use transform::ScoreTransform;

/// Whether scores are `q · k` times a positive number: then no [`ScoreTransform`] is needed, and the softmax needs only
/// [`plain_scale_log2`].
#[inline(always)]
pub fn is_plain(params: &ScoreParams) -> bool {
    let ScoreParams {
        softmax_scale,
        softcap,
        alibi_slopes,
        alibi_batch_stride: _,
    } = params;
    // A scale of 0 must not meet the −∞ of masked-out keys, and a negative one turns a row's maximum into its minimum.
    softcap.is_none() && *softmax_scale > 0.0 && alibi_slopes.is_none()
}

/// Factor from `q · k` to a score in bits, where scores are plain.
#[inline(always)]
pub fn plain_scale_log2(params: &ScoreParams) -> f32 {
    params.softmax_scale * LOG2_E
}
