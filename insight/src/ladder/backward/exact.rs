//! The gradients by the formula in f64, dropout included.

use super::BackwardHead;
use crate::ladder::exact::{largest_of, operand};

/// dq, dk and dv, each `[seq][head_dim]`: computed once, and compared with each rung's.
pub struct ExactGradients([Vec<f64>; 3]);

impl ExactGradients {
    /// Those of `pass`, whose o and lse are not read: P and delta follow from q, k, v and do.
    pub fn of(pass: &BackwardHead) -> Self {
        let head = &pass.head;
        let [q, k, v, d_o] = [&head.q, &head.k, &head.v, &pass.d_o].map(operand);
        let dim = head.head_dim;
        let row = |i: usize| i * dim..(i + 1) * dim;
        let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let scale = f64::from(head.scale());
        let mut gradients = [0, 1, 2].map(|_| vec![0.0; head.seq * dim]);
        let [dq, dk, dv] = &mut gradients;
        let add = |to: &mut [f64], factor: f64, values: &[f64]| {
            to.iter_mut()
                .zip(values)
                .for_each(|(to, value)| *to += factor * value);
        };
        for i in 0..head.seq {
            let keys: Vec<usize> = (0..head.seq).filter(|&j| head.visible(i, j)).collect();
            let scores: Vec<f64> = keys
                .iter()
                .map(|&j| scale * dot(&q[row(i)], &k[row(j)]))
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let kept = |j: usize| head.dropout.map_or(1.0, |dropout| dropout.factor(i, j));
            let dp: Vec<f64> = keys
                .iter()
                .map(|&j| kept(j) * dot(&d_o[row(i)], &v[row(j)]))
                .collect();
            let delta = dot(&weights, &dp) / sum;
            for ((&j, weight), dp) in keys.iter().zip(&weights).zip(&dp) {
                let p = weight / sum;
                let ds = scale * p * (dp - delta);
                add(&mut dv[row(j)], kept(j) * p, &d_o[row(i)]);
                add(&mut dk[row(j)], ds, &q[row(i)]);
                add(&mut dq[row(i)], ds, &k[row(j)]);
            }
        }
        Self(gradients)
    }

    /// Largest difference from dq, dk and dv over all elements; NaN if any is.
    pub(crate) fn largest_error(&self, gradients: &[Vec<f32>; 3]) -> f64 {
        let pairs = gradients.iter().zip(&self.0);
        largest_of(pairs.flat_map(|(found, exact)| found.iter().zip(exact)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::dropout::Dropout;
    use crate::ladder::exact::Exact;
    use crate::ladder::global::Matrix;
    use crate::ladder::head::Head;
    use ferroflash::Mask;

    /// The slope of the loss `Σ do ∘ o` along one element of q, k or v, from the exact outputs on both sides.
    #[test]
    fn gradients_are_slopes_of_the_loss() {
        const STEP: f32 = 1.0 / 128.0;
        let head = Head {
            mask: Mask::Causal,
            dropout: Some(Dropout::new(0.25, 3).unwrap()),
            ..Head::random(12, 6, 5).unwrap()
        };
        let pass = BackwardHead::random(&head, 5).unwrap();
        let exact = ExactGradients::of(&pass);
        let d_o = operand(&pass.d_o);
        for (operand, gradient) in exact.0.iter().enumerate() {
            for element in [0, 17, 50, 71] {
                let loss = |step: f32| -> f64 {
                    let mut head = head.clone();
                    let matrix = [&mut head.q, &mut head.k, &mut head.v]
                        .into_iter()
                        .nth(operand);
                    let matrix = matrix.expect("one of three");
                    let mut values = matrix.clone().into_values();
                    values[element] += step;
                    *matrix = Matrix::new(values, head.head_dim);
                    let o = Exact::of(&head);
                    o.values().iter().zip(&d_o).map(|(o, d_o)| o * d_o).sum()
                };
                let slope = (loss(STEP) - loss(-STEP)) / f64::from(2.0 * STEP);
                let off = (slope - gradient[element]).abs();
                assert!(
                    off < 1e-3,
                    "{operand} {element}: {slope} for {}",
                    gradient[element]
                );
            }
        }
    }
}
