//! From `q · k` to scores, on a tile whose rows are keys and whose columns are queries.

use pulp::Simd;

use super::math::tanh;
use crate::AlibiSlopes;
use crate::problem::Score;

/// Transform of `q · k` into a score: scale, softcap, ALiBi.
#[derive(Clone, Copy)]
pub(super) struct ScoreTransform<'a> {
    /// Multiplies q, and so every score, when q is loaded.
    pub softmax_scale: f32,
    softcap: Option<f32>,
    alibi: Option<&'a AlibiSlopes>,
}

/// The bias of each query of a tile, where there is one.
pub(super) struct Bias {
    /// ALiBi slope.
    slope: Vec<f32>,
    /// Key position on the diagonal, from which distances are counted.
    diagonal: Vec<i64>,
    /// The diagonal's position relative to the tile's first key.
    from_tile: Vec<f32>,
}

impl Bias {
    /// Room for `columns` queries.
    pub fn new(columns: usize) -> Self {
        Self {
            slope: vec![0.0; columns],
            diagonal: vec![0; columns],
            from_tile: vec![0.0; columns],
        }
    }

    /// Of each query of the tile that scores were last computed of, how many keys its diagonal is from the first key.
    pub fn diagonals(&self) -> &[f32] {
        &self.from_tile
    }
}

impl<'a> ScoreTransform<'a> {
    /// The transform that `score` describes.
    pub fn new(score: &'a Score) -> Self {
        let Score {
            softmax_scale,
            softcap,
            alibi,
        } = score;
        Self {
            softmax_scale: *softmax_scale,
            softcap: *softcap,
            alibi: alibi.as_ref(),
        }
    }

    /// Sets column `column` to a query of head `head` of batch entry `batch` whose diagonal is at key `diagonal`.
    pub fn set_query(
        &self,
        bias: &mut Bias,
        column: usize,
        (batch, head): (usize, usize),
        diagonal: i64,
    ) {
        if let Some(slopes) = self.alibi {
            bias.slope[column] = slopes.get(batch, head);
            bias.diagonal[column] = diagonal;
        }
    }

    /// Turns products of scaled q with k into scores; the first row is key `first_key`.
    #[inline(always)]
    pub fn apply<S: Simd>(
        &self,
        simd: S,
        scores: &mut [f32],
        bias: &mut Bias,
        first_key: usize,
        columns: usize,
    ) {
        if let Some(softcap) = self.softcap {
            cap(simd, scores, softcap);
        }
        self.add_bias(simd, scores, bias, first_key, columns);
    }

    /// Turns products into scores, and stores the derivative of each score by its scaled product in `slope`, which is
    /// `Some` exactly if there is a softcap: without one the derivative is 1.
    #[inline(always)]
    pub fn apply_with_slope<S: Simd>(
        &self,
        simd: S,
        scores: &mut [f32],
        slope: Option<&mut [f32]>,
        bias: &mut Bias,
        first_key: usize,
        columns: usize,
    ) {
        let scale = simd.splat_f32s(self.softmax_scale);
        let (scaled, _) = S::as_mut_simd_f32s(scores);
        for score in scaled {
            *score = simd.mul_f32s(*score, scale);
        }
        if let (Some(softcap), Some(slope)) = (self.softcap, slope) {
            cap(simd, scores, softcap);
            slope_of_capped(simd, scores, slope, softcap);
        }
        self.add_bias(simd, scores, bias, first_key, columns);
    }

    /// Adds ALiBi's bias, where there is one.
    #[inline(always)]
    fn add_bias<S: Simd>(
        &self,
        simd: S,
        scores: &mut [f32],
        bias: &mut Bias,
        first_key: usize,
        columns: usize,
    ) {
        if self.alibi.is_some() {
            let diagonals = bias.diagonal.iter().zip(&mut bias.from_tile);
            for (&diagonal, from_tile) in diagonals {
                *from_tile = (diagonal - first_key as i64) as f32;
            }
            let (slope, from_tile) = (&bias.slope[..columns], &bias.from_tile[..columns]);
            add_bias(simd, scores, slope, from_tile);
        }
    }
}

/// `softcap · tanh(score / softcap)` for every score.
#[inline(always)]
fn cap<S: Simd>(simd: S, scores: &mut [f32], softcap: f32) {
    let (scores, _) = S::as_mut_simd_f32s(scores);
    // The reciprocal of the smallest softcaps is beyond f32: a score of 0 must not meet ∞, and any other is capped anyway.
    let reciprocal = (1.0 / softcap).min(f32::MAX);
    let (multiply, divide) = (simd.splat_f32s(softcap), simd.splat_f32s(reciprocal));
    for score in scores {
        *score = simd.mul_f32s(multiply, tanh(simd, simd.mul_f32s(*score, divide)));
    }
}

/// `1 − (score / softcap)²` of every capped score.
#[inline(always)]
fn slope_of_capped<S: Simd>(simd: S, scores: &[f32], slope: &mut [f32], softcap: f32) {
    let (scores, _) = S::as_simd_f32s(scores);
    let (slope, _) = S::as_mut_simd_f32s(slope);
    let (divide, one) = (simd.splat_f32s(1.0 / softcap), simd.splat_f32s(1.0));
    for (slope, &score) in slope.iter_mut().zip(scores) {
        let tanh = simd.mul_f32s(score, divide);
        *slope = simd.mul_add_e_f32s(simd.neg_f32s(tanh), tanh, one);
    }
}

/// Adds `-slope · |diagonal - key|` to every score; both are counted from the tile's first key.
#[inline(always)]
fn add_bias<S: Simd>(simd: S, scores: &mut [f32], slope: &[f32], diagonal: &[f32]) {
    let columns = slope.len();
    let (slope, _) = S::as_simd_f32s(slope);
    let (diagonal, _) = S::as_simd_f32s(diagonal);
    for (key, row) in scores.chunks_exact_mut(columns).enumerate() {
        let key = simd.splat_f32s(key as f32);
        let (row, _) = S::as_mut_simd_f32s(row);
        for ((score, &slope), &diagonal) in row.iter_mut().zip(slope).zip(diagonal) {
            let keys = simd.abs_f32s(simd.sub_f32s(diagonal, key));
            *score = simd.mul_add_e_f32s(simd.neg_f32s(slope), keys, *score);
        }
    }
}
