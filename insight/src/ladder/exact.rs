//! The formula in f64, dropout included. Without dropout it is the oracle's; a test holds it to that.

use super::attention::Head;
use super::global::Matrix;

/// Largest |o − o64| over all elements; NaN if any is.
pub fn largest_error(head: &Head, o: &[f32]) -> f64 {
    let exact = output(head);
    let errors = o
        .iter()
        .zip(&exact)
        .map(|(o, exact)| (f64::from(*o) - exact).abs());
    // `f64::max` would lose a NaN.
    errors.fold(0.0, |largest, error| {
        if error > largest || error.is_nan() {
            error
        } else {
            largest
        }
    })
}

/// `o`, `[seq][head_dim]`.
fn output(head: &Head) -> Vec<f64> {
    let (q, k, v) = (operand(&head.q), operand(&head.k), operand(&head.v));
    let row = |matrix: &'_ [f64], i: usize| matrix[i * head.head_dim..][..head.head_dim].to_vec();
    let rows = (0..head.seq).flat_map(|i| {
        let query = row(&q, i);
        let keys: Vec<usize> = (0..head.seq).filter(|&j| head.visible(i, j)).collect();
        let score = |j: &usize| -> f64 {
            let dot: f64 = query.iter().zip(row(&k, *j)).map(|(q, k)| q * k).sum();
            dot * f64::from(head.scale())
        };
        let scores: Vec<f64> = keys.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut o = vec![0.0; head.head_dim];
        for (j, weight) in keys.into_iter().zip(weights) {
            let kept = head.dropout.map_or(1.0, |dropout| dropout.factor(i, j));
            for (o, v) in o.iter_mut().zip(row(&v, j)) {
                *o += weight / sum * kept * v;
            }
        }
        o
    });
    rows.collect()
}

fn operand(matrix: &Matrix) -> Vec<f64> {
    let values = matrix.clone().into_values();
    values.into_iter().map(f64::from).collect()
}
