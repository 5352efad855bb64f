//! Plain attention that stores scores and probabilities in the dtype of its inputs: the yardstick of
//! FlashAttention's quality figure.

use super::row::{Head, Rules};
use crate::round;
use ferroflash::Score;

/// o of query row `i`, every intermediate rounded to the problem's dtype; sums are f32.
pub(super) fn naive(rules: &Rules<'_>, head: &Head, q_row: &[f64], i: usize) -> Vec<f32> {
    let problem = rules.problem;
    let dtype = problem.q().dtype;
    let (head_dim, head_dim_v) = (problem.q().shape.dim, problem.v().shape.dim);
    let Score {
        softmax_scale,
        softcap,
        alibi,
    } = problem.score();
    let score = |j: usize| {
        let k_row = &head.k[j * head_dim..][..head_dim];
        let products = q_row.iter().zip(k_row);
        let dot: f32 = products.map(|(&q, &k)| q as f32 * k as f32).sum();
        let scaled = round(dtype, round(dtype, dot) * softmax_scale);
        let capped = match *softcap {
            Some(cap) => round(dtype, cap * round(dtype, (scaled / cap).tanh())),
            None => scaled,
        };
        match alibi {
            Some(_) => round(dtype, capped + round(dtype, rules.biases(i, j)[0] as f32)),
            None => capped,
        }
    };
    let score = |j: usize| match &problem.modifiers().bias {
        Some(_) => round(dtype, score(j) + round(dtype, rules.biases(i, j)[1] as f32)),
        None => score(j),
    };
    let score = |j: usize| match rules.own(f64::from(score(j)), i, j) {
        Some(changed) => round(dtype, changed as f32),
        None => score(j),
    };
    let keys = rules.keys(i);
    let scores: Vec<f32> = keys.iter().map(|&j| score(j)).collect();
    let sink = rules.sink().map(|sink| sink as f32);
    let all = || scores.iter().copied().chain(sink);
    let max = all().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = all().map(|score| (score - max).exp()).sum();
    let mut o = vec![0.0f32; head_dim_v];
    for (&j, &score) in keys.iter().zip(&scores) {
        let p = (score - max).exp() / sum * rules.dropout(i, j) as f32;
        let p = round(dtype, p);
        let v_row = &head.v[j * head_dim_v..][..head_dim_v];
        for (o, &v) in o.iter_mut().zip(v_row) {
            *o += p * v as f32;
        }
    }
    o.iter().map(|&value| round(dtype, value)).collect()
}
