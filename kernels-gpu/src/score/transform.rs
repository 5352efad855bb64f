//! From `q · k` to the score that enters the softmax.

use core::f32::consts::LOG2_E;

use super::{alibi, is_plain};
use crate::abi::{Positive, ScoreParams};
use crate::math::{fma, tanh};

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
    /// Factor from a transformed score to bits.
    pub scale_log2: f32,
    /// Subtracted from every exponent.
    pub shift: f32,
    /// Whether it changes nothing: [`is_plain`].
    pub is_plain: bool,
}

impl ScoreTransform {
    /// The transform for one query head of one batch entry.
    ///
    /// # Safety
    /// The slopes that `params` names are live; `batch` and `head` are in range.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub unsafe fn new(params: &ScoreParams, batch: u32, head: u32, shift: f32) -> Self {
        // SAFETY: the caller vouches for the slopes, the batch entry and the head.
        let slope = unsafe { alibi::slope(params, batch, head) };
        Self::of_head(params, slope, shift)
    }

    /// As [`new`](Self::new), to scores in nats, whatever the options.
    ///
    /// # Safety
    /// As [`new`](Self::new).
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub unsafe fn in_nats(params: &ScoreParams, batch: u32, head: u32, shift: f32) -> Self {
        // SAFETY: forwarded to the caller.
        let slope = unsafe { alibi::slope(params, batch, head) };
        let mut transform = Self::of_head(params, slope, shift);
        if transform.softcap == 0.0 {
            transform.factor = params.softmax_scale;
        }
        transform.scale_log2 = LOG2_E;
        transform.is_plain = false;
        transform
    }

    /// The transform for a query head whose slope is `slope`.
    #[inline(always)]
    pub fn of_head(params: &ScoreParams, slope: f32, shift: f32) -> Self {
        let &ScoreParams {
            softmax_scale,
            softcap,
            // Read already, for the head.
            alibi_slopes: _,
            alibi_batch_stride: _,
        } = params;
        let softcap = softcap.map_or(0.0, Positive::get);
        let (factor, scale) = if softcap > 0.0 {
            (softmax_scale / softcap, 1.0)
        } else if slope != 0.0 || softmax_scale == 0.0 {
            // A scale of 0 must not meet the −∞ of masked-out keys.
            (softmax_scale, 1.0)
        } else {
            (1.0f32.copysign(softmax_scale), softmax_scale.abs())
        };
        Self {
            factor,
            softcap,
            slope,
            scale_log2: scale * LOG2_E,
            shift,
            is_plain: is_plain(params),
        }
    }

    /// The transform for rows of different heads, whose slopes are given to [`apply_by_row`](Self::apply_by_row).
    #[inline(always)]
    pub fn of_rows(params: &ScoreParams, shift: f32) -> Self {
        // Any slope but 0 leaves scores in nats, in which a row's own is counted.
        let any = if params.alibi_slopes.is_some() {
            1.0
        } else {
            0.0
        };
        Self {
            slope: 0.0,
            ..Self::of_head(params, any, shift)
        }
    }

    /// As [`apply`](Self::apply), of a transform [`of_rows`](Self::of_rows), where row `i` has the slope `slopes[i]`.
    #[inline(always)]
    pub fn apply_by_row<const COLS: usize, const ROWS: usize>(
        &self,
        scores: &mut [[f32; COLS]; ROWS],
        slopes: &[f32; ROWS],
        distance: impl Fn(usize) -> i32,
        column: impl Fn(usize) -> i32,
    ) {
        self.apply(scores, &distance, &column);
        for i in 0..ROWS {
            let row = core::array::from_mut(&mut scores[i]);
            alibi::add_bias(row, slopes[i], |_| distance(i), &column);
        }
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
        self.apply_with_slope(scores, distance, column, |_, _, _| {});
    }

    /// As [`apply`](Self::apply), and calls `slope(i, j, s)` with the derivative `s` of each score by the scaled
    /// product where it may differ from 1: with a softcap, `1 − tanh²`.
    #[inline(always)]
    pub fn apply_with_slope<const COLS: usize, const ROWS: usize>(
        &self,
        scores: &mut [[f32; COLS]; ROWS],
        distance: impl Fn(usize) -> i32,
        column: impl Fn(usize) -> i32,
        slope: impl FnMut(usize, usize, f32),
    ) {
        if self.softcap > 0.0 {
            self.cap(scores, slope);
        } else if self.factor != 1.0 {
            for score in scores.as_flattened_mut() {
                *score *= self.factor;
            }
        }
        if self.slope != 0.0 {
            alibi::add_bias(scores, self.slope, distance, column);
        }
    }

    /// As [`apply_with_slope`](Self::apply_with_slope), of a transform that has a softcap.
    #[inline(always)]
    pub fn apply_capped_with_slope<const COLS: usize, const ROWS: usize>(
        &self,
        scores: &mut [[f32; COLS]; ROWS],
        distance: impl Fn(usize) -> i32,
        column: impl Fn(usize) -> i32,
        slope: impl FnMut(usize, usize, f32),
    ) {
        self.cap(scores, slope);
        if self.slope != 0.0 {
            alibi::add_bias(scores, self.slope, distance, column);
        }
    }

    /// Turns `q · k` into what the softcap makes of them, and calls `slope(i, j, s)` with the derivative `s` of each.
    #[inline(always)]
    fn cap<const COLS: usize, const ROWS: usize>(
        &self,
        scores: &mut [[f32; COLS]; ROWS],
        mut slope: impl FnMut(usize, usize, f32),
    ) {
        for (i, row) in scores.iter_mut().enumerate() {
            for (j, score) in row.iter_mut().enumerate() {
                let tanh = tanh(*score * self.factor);
                slope(i, j, fma(-tanh, tanh, 1.0));
                *score = self.softcap * tanh;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::DeviceAddress;
    use crate::score::plain_scale_log2;

    const ROWS: usize = 2;
    const COLS: usize = 4;
    const PRODUCTS: [[f32; COLS]; ROWS] = [[-3.0, 0.0, 0.5, 40.0], [7.0, -0.25, -60.0, 1.0]];
    /// Keys from a row's query to its first column.
    const DISTANCE: [i32; ROWS] = [2, -1];

    /// Every combination of scales, softcaps and slopes, a slope of 0 for a head among them.
    fn every_option() -> impl Iterator<Item = (ScoreParams, f32)> {
        let scales = [1.0, 0.125, 0.0, -0.0, -0.5];
        let softcaps = [None, Some(2.0), Some(30.0)];
        let slopes = [None, Some(0.0), Some(0.25), Some(-1.0)];
        scales.into_iter().flat_map(move |softmax_scale| {
            softcaps.into_iter().flat_map(move |softcap| {
                slopes.into_iter().map(move |slope| {
                    let params = ScoreParams {
                        softmax_scale,
                        softcap: softcap.and_then(Positive::new),
                        alibi_slopes: slope.and(DeviceAddress::new(16)),
                        alibi_batch_stride: 0,
                    };
                    (params, slope.unwrap_or(0.0))
                })
            })
        })
    }

    fn transformed(params: &ScoreParams, slope: f32) -> ([[f32; COLS]; ROWS], ScoreTransform) {
        let transform = ScoreTransform::of_head(params, slope, 0.0);
        let mut scores = PRODUCTS;
        transform.apply(&mut scores, |i| DISTANCE[i], |j| j as i32);
        (scores, transform)
    }

    #[test]
    fn scores_follow_the_formula() {
        for (params, slope) in every_option() {
            let (scores, transform) = transformed(&params, slope);
            for i in 0..ROWS {
                for j in 0..COLS {
                    let scaled = f64::from(params.softmax_scale) * f64::from(PRODUCTS[i][j]);
                    let capped = match params.softcap.map(|cap| f64::from(cap.get())) {
                        Some(cap) => cap * (scaled / cap).tanh(),
                        None => scaled,
                    };
                    let keys = (DISTANCE[i] - j as i32).abs();
                    let expected = capped - f64::from(slope) * f64::from(keys);
                    let nats = f64::from(scores[i][j] * transform.scale_log2 / LOG2_E);
                    let off = (nats - expected).abs() / (1.0 + expected.abs());
                    assert!(off < 1e-6, "{params:?}, {slope}: {nats} for {expected}");
                }
            }
            assert!(transform.scale_log2 > 0.0, "{params:?} keeps the order");
        }
    }

    /// Where kernels are told that scores are plain, a transform would have changed nothing.
    #[test]
    fn plain_scores_are_products() {
        let mut plain = 0;
        for (params, slope) in every_option() {
            if !is_plain(&params) {
                continue;
            }
            plain += 1;
            let (scores, transform) = transformed(&params, slope);
            assert_eq!(scores, PRODUCTS, "{params:?}");
            assert_eq!(
                transform.scale_log2,
                plain_scale_log2(&params),
                "{params:?}"
            );
        }
        assert_eq!(plain, 2, "two positive scales without anything else");
    }
}
