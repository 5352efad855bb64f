//! Online softmax of a transposed score tile: rows are keys, columns are queries, so each query's
//! maximum and sum live in one lane and no step crosses lanes.
//!
//! The algebra is that of [`kernels_gpu::tile::row_state`], in nats, on a vector of rows.

use pulp::Simd;

use super::math::exp;

/// Running state of a tile's queries.
pub(super) struct RowStates {
    /// Largest score so far; −∞ before the first visible key.
    row_max: Vec<f32>,
    /// Sum of `exp(score - row_max)` so far.
    row_sum: Vec<f32>,
    /// Factor by which the last update multiplied earlier sums, `exp(old_max − new_max)`.
    rescale: Vec<f32>,
}

impl RowStates {
    /// Room for `columns` queries.
    pub fn new(columns: usize) -> Self {
        Self {
            row_max: vec![f32::NEG_INFINITY; columns],
            row_sum: vec![0.0; columns],
            rescale: vec![0.0; columns],
        }
    }

    /// No key seen.
    pub fn reset(&mut self) {
        self.row_max.fill(f32::NEG_INFINITY);
        self.row_sum.fill(0.0);
    }

    /// Updates the state with `keys` rows of scores, and replaces them by `exp(score - row_max)`.
    ///
    /// Returns whether the accumulated output has to be rescaled too: [`RowStates::rescale`].
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
            // The tile's own sum first: small terms that are added to a large one, one by one, are rounded the same way each time.
            let mut sum = zero;
            for key in 0..keys {
                let p = exp(simd, simd.sub_f32s(scores[lane(key)], shift));
                sum = simd.add_f32s(sum, p);
                scores[lane(key)] = p;
            }
            row_max[column] = new_max;
            row_sum[column] = simd.mul_add_e_f32s(row_sum[column], factor, sum);
            rescale[column] = factor;
        }
        self.rescale.iter().any(|&factor| factor != 1.0)
    }

    /// Multiplies each column of `acc_o`, of which there are `columns`, by the factor of the last update.
    #[inline(always)]
    pub fn rescale<S: Simd>(&self, simd: S, acc_o: &mut [f32], columns: usize) {
        let (factors, _) = S::as_simd_f32s(&self.rescale[..columns]);
        for row in acc_o.chunks_exact_mut(columns) {
            let (row, _) = S::as_mut_simd_f32s(row);
            for (value, &factor) in row.iter_mut().zip(factors) {
                *value = simd.mul_f32s(*value, factor);
            }
        }
    }

    /// Adds the score of a sink to a query's state. Returns the factor for its column of the output.
    pub fn add_sink(&mut self, column: usize, sink: f32) -> f32 {
        let (old_max, sum) = (self.row_max[column], self.row_sum[column]);
        let new_max = old_max.max(sink);
        let factor = (old_max - new_max).exp();
        self.row_max[column] = new_max;
        self.row_sum[column] = sum * factor + (sink - new_max).exp();
        factor
    }

    /// Normalises `acc_o`, which has `columns` columns. The output of a row that saw no key is 0.
    pub fn finalize(&self, acc_o: &mut [f32], columns: usize) {
        for row in acc_o.chunks_exact_mut(columns) {
            for (o, &sum) in row.iter_mut().zip(&self.row_sum) {
                // A sum of 0 means that no key is visible, or that all scores are −∞.
                *o = if sum == 0.0 { 0.0 } else { *o / sum };
            }
        }
    }

    /// A query's sum: 0 if it saw no key, or none of a score above −∞.
    pub fn sum(&self, column: usize) -> f32 {
        self.row_sum[column]
    }

    /// A query's log-sum-exp in nats: −∞ if it saw no key.
    pub fn lse(&self, column: usize) -> f32 {
        match self.row_sum[column] {
            0.0 => f32::NEG_INFINITY,
            sum => self.row_max[column] + sum.ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::LOG2_E;

    use kernels_gpu::tile::row_state::RowState;
    use pulp::{Arch, WithSimd};

    use super::*;

    /// Queries of a tile: whole vectors of any processor.
    const COLUMNS: usize = 16;
    const KEYS: usize = 4;

    /// Two tiles of scores, with the first tile's columns 0 and 1 hidden and column 1 hidden throughout.
    fn score(tile: usize, key: usize, column: usize) -> f32 {
        if column == 1 || column == 0 && tile == 0 {
            return f32::NEG_INFINITY;
        }
        (column * 7 + key * 5 + tile * 11) as f32 % 13.0 * (column as f32 - 6.0)
    }

    struct TwoTiles<'a> {
        states: &'a mut RowStates,
        acc_o: &'a mut [f32],
    }

    impl WithSimd for TwoTiles<'_> {
        type Output = ();
        fn with_simd<S: Simd>(self, simd: S) {
            for tile in 0..2 {
                let place = |i: usize| score(tile, i / COLUMNS, i % COLUMNS);
                let mut scores: Vec<f32> = (0..KEYS * COLUMNS).map(place).collect();
                if self.states.update(simd, &mut scores, KEYS) {
                    self.states.rescale(simd, self.acc_o, COLUMNS);
                }
                for key in scores.chunks_exact(COLUMNS) {
                    let columns = self.acc_o.iter_mut().zip(key);
                    columns.for_each(|(o, p)| *o += p);
                }
            }
        }
    }

    /// Values of 1 give an output of 1; lse equals that of the kernels' algebra for the same scores.
    #[test]
    fn rows_are_those_of_the_kernels() {
        let mut states = RowStates::new(COLUMNS);
        let mut acc_o = [0.0; COLUMNS];
        Arch::new().dispatch(TwoTiles {
            states: &mut states,
            acc_o: &mut acc_o,
        });
        states.finalize(&mut acc_o, COLUMNS);
        for (column, &o) in acc_o.iter().enumerate() {
            let mut row = RowState::<1>::new();
            for tile in 0..2 {
                let mut scores: [f32; KEYS] = std::array::from_fn(|key| score(tile, key, column));
                let largest = scores.into_iter().fold(f32::NEG_INFINITY, f32::max);
                row.update_under(largest * LOG2_E, &mut scores, LOG2_E);
            }
            let expected = row.finalize_sum(row.row_sum);
            let lse = states.lse(column);
            if expected.norm == 0.0 {
                assert_eq!((lse, o), (expected.lse, 0.0));
            } else {
                let off = (lse - expected.lse).abs() / (1.0 + lse.abs());
                assert!(off < 1e-6, "column {column}: {lse} for {}", expected.lse);
                assert!((o - 1.0).abs() < 1e-6, "column {column}");
            }
        }
        assert_eq!(states.lse(1), f32::NEG_INFINITY);
    }
}
