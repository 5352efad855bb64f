//! Online softmax of a transposed score tile: rows are keys, columns are queries, so each query's
//! maximum and sum live in one lane and no step crosses lanes.

use pulp::Simd;

use super::math::exp;

/// Running state of a tile's queries.
pub(super) struct State {
    /// Largest score so far; −∞ before the first visible key.
    pub row_max: Vec<f32>,
    /// Sum of `exp(score - row_max)` so far.
    pub row_sum: Vec<f32>,
    /// What the last update multiplied earlier sums by.
    pub rescale: Vec<f32>,
}

impl State {
    pub fn new(columns: usize) -> Self {
        Self {
            row_max: vec![0.0; columns],
            row_sum: vec![0.0; columns],
            rescale: vec![0.0; columns],
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.row_max.fill(f32::NEG_INFINITY);
        self.row_sum.fill(0.0);
    }

    /// Takes `keys` rows of scores in, and leaves `exp(score - row_max)` in their place.
    ///
    /// Returns whether an earlier sum must be rescaled.
    #[inline(always)]
    pub fn update<S: Simd>(&mut self, simd: S, scores: &mut [f32], keys: usize) -> bool {
        let (scores, _) = S::as_mut_simd_f32s(scores);
        let (row_max, _) = S::as_mut_simd_f32s(&mut self.row_max);
        let (row_sum, _) = S::as_mut_simd_f32s(&mut self.row_sum);
        let (rescale, _) = S::as_mut_simd_f32s(&mut self.rescale);
        let vectors = scores.len() / keys;
        let infinity = simd.splat_f32s(f32::NEG_INFINITY);
        let zero = simd.splat_f32s(0.0);
        for column in 0..vectors {
            let lane = |key: usize| key * vectors + column;
            let old_max = row_max[column];
            let new_max = (0..keys).fold(old_max, |max, key| simd.max_f32s(scores[lane(key)], max));
            // Before the first visible key the maximum is −∞; subtracting 0 instead makes every
            // exponential 0 rather than NaN.
            let unseen = simd.equal_f32s(new_max, infinity);
            let shift = simd.select_f32s(unseen, zero, new_max);
            let factor = exp(simd, simd.sub_f32s(old_max, shift));
            let mut sum = simd.mul_f32s(row_sum[column], factor);
            for key in 0..keys {
                let p = exp(simd, simd.sub_f32s(scores[lane(key)], shift));
                sum = simd.add_f32s(sum, p);
                scores[lane(key)] = p;
            }
            row_max[column] = new_max;
            row_sum[column] = sum;
            rescale[column] = factor;
        }
        self.rescale.iter().any(|&factor| factor != 1.0)
    }
}
