//! The backward pass by five kernels, which leave dP and dS in memory for one another, as the forward pass left P.

use super::{BackwardHead, Run};
use crate::ladder::global::{Matrix, Tile};
use crate::ladder::head::{Head, accumulate, dot};

pub fn run(pass: &BackwardHead) -> Run {
    let BackwardHead { head, d_o, .. } = pass;
    let p = probabilities(pass);
    let dv = sum_over_queries(head, d_o, 1.0, |i| {
        let mut row = p.load(i..i + 1);
        for (j, p) in row.row_mut(0).iter_mut().enumerate() {
            *p *= head.dropout_factor(i, j);
        }
        row
    });
    let dp = gradients_of_p(head, d_o);
    let ds = gradients_of_scores(&p, &dp, head);
    let dq = sum_over_keys(head, &ds);
    let dk = sum_over_queries(head, &head.q, head.scale(), |i| ds.load(i..i + 1));
    let others = vec![];
    let scores = vec![p, dp, ds];
    Run {
        dq,
        dk,
        dv,
        scores,
        others,
    }
}

/// P before dropout, as the forward pass stored it: not counted.
fn probabilities(pass: &BackwardHead) -> Matrix {
    let head = pass.head.clone();
    let (q, k) = (head.q.load(0..head.seq), head.k.load(0..head.seq));
    let lse = pass.lse.clone().into_values();
    let p = |(i, j): (usize, usize)| (head.score(i, j, q.row(i), k.row(j)) - lse[i]).exp();
    let pairs = (0..head.seq).flat_map(|i| (0..head.seq).map(move |j| (i, j)));
    Matrix::new(pairs.map(p).collect(), head.seq)
}

/// `scale · Xᵀ x` for a matrix of scores, of which `of_query` loads a row: dv and dk.
fn sum_over_queries(
    head: &Head,
    x: &Matrix,
    scale: f32,
    of_query: impl Fn(usize) -> Tile,
) -> Matrix {
    let mut sum = Tile::filled(0.0, head.seq, head.head_dim);
    for i in 0..head.seq {
        let (weights, x) = (of_query(i), x.load(i..i + 1));
        for (j, weight) in weights.row(0).iter().enumerate() {
            accumulate(sum.row_mut(j), 1.0, scale * weight, x.row(0));
        }
    }
    stored(head, &sum)
}

/// `dP = D ∘ (do vᵀ)`; each operand is read once.
fn gradients_of_p(head: &Head, d_o: &Matrix) -> Matrix {
    let mut dp = Matrix::uninitialised(head.seq, head.seq);
    let v = head.v.load(0..head.seq);
    for i in 0..head.seq {
        let d_o = d_o.load(i..i + 1);
        let mut row = Tile::filled(0.0, 1, head.seq);
        for (j, dp) in row.row_mut(0).iter_mut().enumerate() {
            *dp = head.dropout_factor(i, j) * dot(d_o.row(0), v.row(j));
        }
        dp.store(i, &row);
    }
    dp
}

/// `dS = P ∘ (dP − rowsum(P ∘ dP))`.
fn gradients_of_scores(p: &Matrix, dp: &Matrix, head: &Head) -> Matrix {
    let mut ds = Matrix::uninitialised(head.seq, head.seq);
    for i in 0..head.seq {
        let (p, dp) = (p.load(i..i + 1), dp.load(i..i + 1));
        let delta = dot(p.row(0), dp.row(0));
        let mut row = Tile::filled(0.0, 1, head.seq);
        for (j, ds) in row.row_mut(0).iter_mut().enumerate() {
            *ds = p.row(0)[j] * (dp.row(0)[j] - delta);
        }
        ds.store(i, &row);
    }
    ds
}

/// `dq = scale · dS k`; each operand is read once.
fn sum_over_keys(head: &Head, ds: &Matrix) -> Matrix {
    let k = head.k.load(0..head.seq);
    let mut sum = Tile::filled(0.0, head.seq, head.head_dim);
    for i in 0..head.seq {
        let ds = ds.load(i..i + 1);
        for (j, ds) in ds.row(0).iter().enumerate() {
            accumulate(sum.row_mut(i), 1.0, head.scale() * ds, k.row(j));
        }
    }
    stored(head, &sum)
}

/// A gradient in memory.
fn stored(head: &Head, tile: &Tile) -> Matrix {
    let mut matrix = Matrix::uninitialised(head.seq, head.head_dim);
    matrix.store(0, tile);
    matrix
}
