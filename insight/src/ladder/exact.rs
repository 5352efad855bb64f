//! The formula in f64, dropout included. Without dropout it is the oracle's; a test holds it to that.

use super::global::Matrix;
use super::head::Head;

/// `o`, `[seq][head_dim]`: computed once, and compared with each rung's.
pub struct Exact(Vec<f64>);

impl Exact {
    /// That of `head`.
    pub fn of(head: &Head) -> Self {
        let (q, k, v) = (operand(&head.q), operand(&head.k), operand(&head.v));
        let row = |i: usize| i * head.head_dim..(i + 1) * head.head_dim;
        let rows = (0..head.seq).flat_map(|i| {
            let query = &q[row(i)];
            let keys: Vec<usize> = (0..head.seq).filter(|&j| head.visible(i, j)).collect();
            let score = |j: &usize| -> f64 {
                let dot: f64 = query.iter().zip(&k[row(*j)]).map(|(q, k)| q * k).sum();
                dot * f64::from(head.scale())
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut o = vec![0.0; head.head_dim];
            for (j, weight) in keys.into_iter().zip(weights) {
                let kept = head.dropout.map_or(1.0, |dropout| dropout.factor(i, j));
                for (o, v) in o.iter_mut().zip(&v[row(j)]) {
                    *o += weight / sum * kept * v;
                }
            }
            o
        });
        Self(rows.collect())
    }

    /// Largest |o − o64| over all elements; NaN if any is.
    pub(super) fn largest_error(&self, o: &[f32]) -> f64 {
        largest_of(o.iter().zip(&self.0))
    }

    /// Its elements.
    #[cfg(test)]
    pub(super) fn values(&self) -> &[f64] {
        &self.0
    }
}

/// Largest difference of a value from the exact one; NaN if any is.
pub(super) fn largest_of<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f64)>) -> f64 {
    let errors = pairs.map(|(found, exact)| (f64::from(*found) - exact).abs());
    // `f64::max` would lose a NaN.
    errors.fold(0.0, |largest, error| {
        if error > largest || error.is_nan() {
            error
        } else {
            largest
        }
    })
}

pub(super) fn operand(matrix: &Matrix) -> Vec<f64> {
    let values = matrix.clone().into_values();
    values.into_iter().map(f64::from).collect()
}
