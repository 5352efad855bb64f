//! One pass over K and V for each query: the online softmax with the output carried along, so that no score is
//! ever stored.

use super::global::{Matrix, Tile};
use super::head::{Head, Run, accumulate, finite};

pub fn run(head: &Head) -> Run {
    let mut o = Matrix::uninitialised(head.seq, head.head_dim);
    let mut lse = Matrix::uninitialised(head.seq, 1);
    for i in 0..head.seq {
        let q = head.q.load(i..i + 1);
        let (mut row_max, mut row_sum) = (f32::NEG_INFINITY, 0.0);
        let mut acc_o = Tile::filled(0.0, 1, head.head_dim);
        for j in 0..head.seq {
            let (k, v) = (head.k.load(j..j + 1), head.v.load(j..j + 1));
            let s = head.score(i, j, q.row(0), k.row(0));
            let new_max = row_max.max(s);
            let rescale = (row_max - finite(new_max)).exp();
            let p = (s - finite(new_max)).exp();
            row_sum = row_sum * rescale + p;
            let dropped = p * head.dropout_factor(i, j);
            accumulate(acc_o.row_mut(0), rescale, dropped, v.row(0));
            row_max = new_max;
        }
        acc_o.row_mut(0).iter_mut().for_each(|o| *o /= row_sum);
        o.store(i, &acc_o);
        lse.store(i, &Tile::filled(row_max + row_sum.ln(), 1, 1));
    }
    Run {
        o,
        lse,
        scores: vec![],
        stats: vec![],
    }
}
