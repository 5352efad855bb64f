//! FlashAttention-2's backward pass (Dao 2023, algorithm 2): a block of keys keeps dK and dV on the chip while Q and dO pass
//! by, and forms P again from lse. dQ is added up in memory.

use std::ops::Range;

use super::{BackwardHead, Run};
use crate::ladder::global::{Matrix, Tile};
use crate::ladder::head::{Head, accumulate, blocks, dot, score_tile};

pub fn run(pass: &BackwardHead) -> Run {
    let head = &pass.head;
    let delta = delta(pass);
    let mut sums = Matrix::uninitialised(head.seq, head.head_dim);
    sums.fill(0.0);
    let [mut dk, mut dv] = [0, 1].map(|_| Matrix::uninitialised(head.seq, head.head_dim));
    for keys in blocks(head.seq, head.tiles.block_n) {
        let (k, v) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        let [mut acc_dk, mut acc_dv] = [0, 1].map(|_| Tile::filled(0.0, keys.len(), head.head_dim));
        for rows in blocks(head.seq, head.tiles.block_m) {
            let (q, d_o) = (head.q.load(rows.clone()), pass.d_o.load(rows.clone()));
            let terms = [&pass.lse, &delta].map(|terms| terms.load(rows.clone()));
            let mut acc_dq = sums.load(rows.clone());
            let mut p = score_tile(head, &rows, &keys, &q, &k);
            for i in 0..rows.len() {
                let lse = terms[0].row(i)[0];
                p.row_mut(i).iter_mut().for_each(|s| *s = (*s - lse).exp());
            }
            let ds = gradients_of_scores(head, (&rows, &keys), &p, (&d_o, &v), &terms[1]);
            for i in 0..rows.len() {
                for j in 0..keys.len() {
                    let kept = head.dropout_factor(rows.start + i, keys.start + j);
                    let ds = head.scale() * ds.row(i)[j];
                    accumulate(acc_dv.row_mut(j), 1.0, kept * p.row(i)[j], d_o.row(i));
                    accumulate(acc_dk.row_mut(j), 1.0, ds, q.row(i));
                    accumulate(acc_dq.row_mut(i), 1.0, ds, k.row(j));
                }
            }
            sums.store(rows.start, &acc_dq);
        }
        dk.store(keys.start, &acc_dk);
        dv.store(keys.start, &acc_dv);
    }
    let mut dq = Matrix::uninitialised(head.seq, head.head_dim);
    dq.store(0, &sums.load(0..head.seq));
    Run {
        dq,
        dk,
        dv,
        scores: vec![],
        others: vec![delta, sums],
    }
}

/// `delta = rowsum(do ∘ o)`: o and do are read once.
fn delta(pass: &BackwardHead) -> Matrix {
    let seq = pass.head.seq;
    let (o, d_o) = (pass.o.load(0..seq), pass.d_o.load(0..seq));
    let mut delta = Tile::filled(0.0, seq, 1);
    for i in 0..seq {
        delta.row_mut(i)[0] = dot(o.row(i), d_o.row(i));
    }
    let mut stored = Matrix::uninitialised(seq, 1);
    stored.store(0, &delta);
    stored
}

/// `dS = P ∘ (D ∘ (do vᵀ) − delta)` of a block of queries and a block of keys.
fn gradients_of_scores(
    head: &Head,
    (rows, keys): (&Range<usize>, &Range<usize>),
    p: &Tile,
    (d_o, v): (&Tile, &Tile),
    delta: &Tile,
) -> Tile {
    let mut ds = Tile::filled(0.0, rows.len(), keys.len());
    for i in 0..rows.len() {
        for j in 0..keys.len() {
            let kept = head.dropout_factor(rows.start + i, keys.start + j);
            let dp = kept * dot(d_o.row(i), v.row(j));
            ds.row_mut(i)[j] = p.row(i)[j] * (dp - delta.row(i)[0]);
        }
    }
    ds
}
