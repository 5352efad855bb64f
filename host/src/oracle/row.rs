use crate::{HostTensor, Mask, Problem};

/// What was given to the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[batch, heads_q, seq_q, head_dim]`.
    pub q: &'a HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim]`.
    pub k: &'a HostTensor,
    /// `[batch, heads_kv, seq_kv, head_dim_v]`.
    pub v: &'a HostTensor,
}

/// The exact result of one query row, and what its error bound needs.
#[derive(Clone, Debug, PartialEq)]
pub struct RowReference {
    /// `Σⱼ pⱼ vⱼ`, head_dim_v values.
    pub o: Vec<f64>,
    /// `Σⱼ pⱼ |vⱼ|`.
    pub abs_pv: Vec<f64>,
    /// `Σⱼ |vⱼ| / l` over visible keys, with `l = Σⱼ exp(sⱼ - max s)`.
    pub abs_v_over_sum: Vec<f64>,
    /// Components whose o leaves out a NaN or an infinity that a key of vanishing weight holds: an
    /// f32 weight of 0 may or may not let it through.
    pub may_not_be_finite: Vec<bool>,
    /// `ln Σⱼ exp(sⱼ)`, in nats.
    pub lse: f64,
}

/// Weights below this, relative to the row's largest, vanish in f32 arithmetic: beside its smallest
/// normal number, with room for an error in the exponent.
const VANISHING: f64 = 1e-36;

/// Whether key `j` is visible to query `i`, by the definition of [`Mask`].
pub(super) fn visible(mask: Mask, i: usize, j: usize, seq_q: usize, seq_kv: usize) -> bool {
    let (j, center) = (j as i64, i as i64 + seq_kv as i64 - seq_q as i64);
    match mask {
        Mask::None => true,
        Mask::Causal => j <= center,
        Mask::Window { left, right } => {
            left.is_none_or(|left| j >= center - i64::from(left))
                && right.is_none_or(|right| j <= center + i64::from(right))
        }
    }
}

/// K and V of one head, `[seq_kv][dim]`, widened to f64.
pub(super) struct Head {
    pub k: Vec<f64>,
    pub v: Vec<f64>,
}

/// The exact result of query row `i`, whose q is `q_row`.
///
/// A row whose weights sum to 0, because it sees no key or only scores of −∞, has o = 0 and
/// lse = −∞.
pub(super) fn reference(problem: &Problem, head: &Head, q_row: &[f64], i: usize) -> RowReference {
    let (seq_q, seq_kv) = (problem.q().shape.seq, problem.k().shape.seq);
    let (head_dim, head_dim_v) = (problem.q().shape.dim, problem.v().shape.dim);
    let scale = f64::from(problem.softmax_scale());
    let score = |j: usize| {
        let k_row = &head.k[j * head_dim..][..head_dim];
        let dot: f64 = q_row.iter().zip(k_row).map(|(q, k)| q * k).sum();
        match problem.softcap().map(f64::from) {
            Some(cap) => cap * (scale * dot / cap).tanh(),
            None => scale * dot,
        }
    };
    let keys: Vec<usize> = (0..seq_kv)
        .filter(|&j| visible(problem.mask(), i, j, seq_q, seq_kv))
        .collect();
    let scores: Vec<f64> = keys.iter().map(|&j| score(j)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut row = RowReference {
        o: vec![0.0; head_dim_v],
        abs_pv: vec![0.0; head_dim_v],
        abs_v_over_sum: vec![0.0; head_dim_v],
        may_not_be_finite: vec![false; head_dim_v],
        lse: f64::NEG_INFINITY,
    };
    // `f64::max` ignores NaN: with only −∞ and NaN left, the NaN decides.
    let nothing_weighs = scores.iter().all(|&score| score == f64::NEG_INFINITY);
    let shift = if max.is_finite() { max } else { 0.0 };
    let weights: Vec<f64> = scores.iter().map(|score| (score - shift).exp()).collect();
    let sum: f64 = weights.iter().sum();
    row.lse = shift + sum.ln();
    for (&j, &weight) in keys.iter().zip(&weights) {
        for (dim, &v) in head.v[j * head_dim_v..][..head_dim_v].iter().enumerate() {
            if (nothing_weighs || weight < VANISHING) && !v.is_finite() {
                row.may_not_be_finite[dim] = true;
            } else if !nothing_weighs {
                let p = weight / sum;
                row.o[dim] += p * v;
                row.abs_pv[dim] += p * v.abs();
                row.abs_v_over_sum[dim] += v.abs() / sum;
            }
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ForwardOptions, Layout, Shape, TensorSpec};

    fn problem(seq_q: usize, seq_kv: usize, options: &ForwardOptions) -> Problem {
        let spec = |seq| {
            let shape = Shape {
                batch: 1,
                heads: 1,
                seq,
                dim: 1,
            };
            TensorSpec::contiguous(DType::F32, shape, Layout::Bshd).unwrap()
        };
        let (q, kv) = (spec(seq_q), spec(seq_kv));
        Problem::new(q, kv, kv, q, options).unwrap()
    }

    #[test]
    fn a_row_by_hand() {
        let head = Head {
            k: vec![0.0, 3f64.ln(), 100.0],
            v: vec![1.0, -2.0, 50.0],
        };
        // The first of two causal rows over three keys sees two: weights 1/4 and 3/4.
        let causal = problem(2, 3, &ForwardOptions::new().mask(Mask::Causal));
        let row = reference(&causal, &head, &[1.0], 0);
        assert!((row.o[0] - (0.25 - 1.5)).abs() < 1e-15);
        assert!((row.abs_pv[0] - 1.75).abs() < 1e-15);
        assert!((row.lse - 4f64.ln()).abs() < 1e-15);
        assert!((row.abs_v_over_sum[0] - 3.0 / (4.0 / 3.0)).abs() < 1e-15);
        let capped = problem(3, 3, &ForwardOptions::new().softcap(2.0));
        let row = reference(&capped, &head, &[1.0], 0);
        let scores = head.k.iter().map(|k| 2.0 * (k / 2.0).tanh());
        assert!((row.lse - scores.map(f64::exp).sum::<f64>().ln()).abs() < 1e-14);
    }

    #[test]
    fn a_vanishing_weight_may_or_may_not_carry_nan() {
        let head = Head {
            k: vec![0.0, -90.0, -10.0],
            v: vec![1.0, f64::NAN, 2.0],
        };
        let plain = problem(3, 3, &ForwardOptions::new());
        let row = reference(&plain, &head, &[1.0], 0);
        assert!((row.o[0] - 1.0).abs() < 1e-4);
        assert_eq!(row.may_not_be_finite, [true]);
        let row = reference(&plain, &head, &[0.5], 0);
        assert!(row.o[0].is_nan() && !row.may_not_be_finite[0]);
    }

    #[test]
    fn scores_of_minus_infinity_weigh_nothing() {
        let head = Head {
            k: vec![f64::NEG_INFINITY; 2],
            v: vec![1.0, 2.0],
        };
        let row = reference(&problem(2, 2, &ForwardOptions::new()), &head, &[1.0], 0);
        assert_eq!((row.o[0], row.lse), (0.0, f64::NEG_INFINITY));
        assert_eq!(row.may_not_be_finite, [false]);
    }

    #[test]
    fn rows_without_keys_and_with_nan() {
        let head = Head {
            k: vec![1.0, f64::NAN],
            v: vec![1.0, 2.0],
        };
        let causal = problem(3, 2, &ForwardOptions::new().mask(Mask::Causal));
        let row = reference(&causal, &head, &[1.0], 0);
        assert_eq!((row.o[0], row.lse), (0.0, f64::NEG_INFINITY));
        assert_eq!(reference(&causal, &head, &[1.0], 1).o[0], 1.0);
        let row = reference(&causal, &head, &[1.0], 2);
        assert!(row.o[0].is_nan() && row.lse.is_nan());
    }
}
