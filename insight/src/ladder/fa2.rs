//! FlashAttention-2 (Dao 2023, algorithm 1): a block of queries keeps its output, maxima and sums on the chip while K and
//! V pass by, divides once and stores once.

use super::global::{Matrix, Tile};
use super::head::{Head, Run, accumulate, blocks, finite, score_tile};

pub fn run(head: &Head) -> Run {
    let mut o = Matrix::uninitialised(head.seq, head.head_dim);
    let mut lse = Matrix::uninitialised(head.seq, 1);

    for rows in blocks(head.seq, head.tiles.block_m) {
        let q = head.q.load(rows.clone());
        let mut acc_o = Tile::filled(0.0, rows.len(), head.head_dim);
        let mut row_max = vec![f32::NEG_INFINITY; rows.len()];
        let mut row_sum = vec![0.0; rows.len()];
        for keys in blocks(head.seq, head.tiles.block_n) {
            let (k, v) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
            let s = score_tile(head, &rows, &keys, &q, &k);
            for (i, row) in rows.clone().enumerate() {
                let new_max = s.row(i).iter().copied().fold(row_max[i], f32::max);
                let rescale = (row_max[i] - finite(new_max)).exp();
                row_sum[i] *= rescale;
                acc_o.row_mut(i).iter_mut().for_each(|o| *o *= rescale);
                for (j, key) in keys.clone().enumerate() {
                    let p = (s.row(i)[j] - finite(new_max)).exp();
                    row_sum[i] += p;
                    let p = p * head.dropout_factor(row, key);
                    accumulate(acc_o.row_mut(i), 1.0, p, v.row(j));
                }
                row_max[i] = new_max;
            }
        }
        let mut row_lse = Tile::filled(0.0, rows.len(), 1);
        for (i, sum) in row_sum.iter().enumerate() {
            acc_o.row_mut(i).iter_mut().for_each(|o| *o /= sum);
            row_lse.row_mut(i)[0] = row_max[i] + sum.ln();
        }
        o.store(rows.start, &acc_o);
        lse.store(rows.start, &row_lse);
    }
    Run {
        o,
        lse,
        scores: vec![],
        stats: vec![],
    }
}
