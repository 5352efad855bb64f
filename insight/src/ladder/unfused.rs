//! Standard attention: S = Q Kᵀ, P = softmax(S), O = P V, with S and P in memory.

use super::global::{Matrix, Tile};
use super::head::{Head, Run, accumulate};
use super::softmax::{Rounding, Row, Softmax};
use ferroflash::DType;

pub fn run(head: &Head, softmax: Softmax) -> Run {
    let s = scores(head);
    let (p, lse) = probabilities(head, softmax, &s);
    let o = output(head, &p);
    Run {
        o,
        lse,
        scores: vec![s, p],
        stats: vec![],
    }
}

/// S = mask(Q Kᵀ · scale); each operand is read once.
fn scores(head: &Head) -> Matrix {
    let mut s = Matrix::uninitialised(head.seq, head.seq);
    let k = head.k.load(0..head.seq);
    for i in 0..head.seq {
        let q = head.q.load(i..i + 1);
        let mut row = Tile::filled(0.0, 1, head.seq);
        for (j, score) in row.row_mut(0).iter_mut().enumerate() {
            *score = head.score(i, j, q.row(0), k.row(j));
        }
        s.store(i, &row);
    }
    s
}

/// P = dropout(softmax(S)), reading a row of S from memory at each of the softmax's passes.
fn probabilities(head: &Head, softmax: Softmax, s: &Matrix) -> (Matrix, Matrix) {
    let mut p = Matrix::uninitialised(head.seq, head.seq);
    let mut lse = Matrix::uninitialised(head.seq, 1);
    for i in 0..head.seq {
        let first_read = s.load(i..i + 1);
        let row = Row::new(first_read.row(0));
        let mut result = Tile::filled(0.0, 1, head.seq);
        let y = softmax.run(&row, Rounding(DType::F32));
        for _ in 1..row.passes() {
            s.load(i..i + 1);
        }
        result.row_mut(0).copy_from_slice(&y);
        lse.store(i, &Tile::filled(log_sum_exp(first_read.row(0), &y), 1, 1));
        for (j, p) in result.row_mut(0).iter_mut().enumerate() {
            *p *= head.dropout_factor(i, j);
        }
        p.store(i, &result);
    }
    (p, lse)
}

/// From any one probability: `ln l = s − ln y`; the largest has the least error.
fn log_sum_exp(s: &[f32], y: &[f32]) -> f32 {
    let (s, y) = s
        .iter()
        .zip(y)
        .max_by(|a, b| a.1.total_cmp(b.1))
        .expect("a row has a key");
    s - y.ln()
}

/// O = P V; each operand is read once.
fn output(head: &Head, p: &Matrix) -> Matrix {
    let mut o = Matrix::uninitialised(head.seq, head.head_dim);
    let v = head.v.load(0..head.seq);
    for i in 0..head.seq {
        let p = p.load(i..i + 1);
        let mut row = Tile::filled(0.0, 1, head.head_dim);
        for (j, p) in p.row(0).iter().enumerate() {
            accumulate(row.row_mut(0), 1.0, *p, v.row(j));
        }
        o.store(i, &row);
    }
    o
}
