//! FlashAttention (Dao et al. 2022, algorithms 1 and 2): a block of K and V stays on the chip while all of Q passes by.
//!
//! O is kept normalised in memory; each step loads it with its maxima and sums, rescales it and stores it.

use super::global::Matrix;
use super::head::{Head, Run, accumulate, blocks, finite, score_tile};

pub fn run(head: &Head) -> Run {
    let mut o = Matrix::uninitialised(head.seq, head.head_dim);
    let mut row_max = Matrix::uninitialised(head.seq, 1);
    let mut row_sum = Matrix::uninitialised(head.seq, 1);
    o.fill(0.0);
    row_max.fill(f32::NEG_INFINITY);
    row_sum.fill(0.0);

    for keys in blocks(head.seq, head.tiles.fa1_block_n) {
        let (k, v) = (head.k.load(keys.clone()), head.v.load(keys.clone()));
        for rows in blocks(head.seq, head.tiles.block_m) {
            let q = head.q.load(rows.clone());
            let mut acc_o = o.load(rows.clone());
            let mut max = row_max.load(rows.clone());
            let mut sum = row_sum.load(rows.clone());
            let s = score_tile(head, &rows, &keys, &q, &k);
            for (i, row) in rows.clone().enumerate() {
                let (max, sum) = (&mut max.row_mut(i)[0], &mut sum.row_mut(i)[0]);
                let new_max = s.row(i).iter().copied().fold(*max, f32::max);
                let p: Vec<f32> = s
                    .row(i)
                    .iter()
                    .map(|s| (s - finite(new_max)).exp())
                    .collect();
                // The divisor of the stored O, in units of the new maximum.
                let old_sum = *sum * (*max - finite(new_max)).exp();
                let new_sum = old_sum + p.iter().sum::<f32>();
                // A row that has seen no key yet is not divided.
                let norm = if new_sum == 0.0 { 0.0 } else { 1.0 / new_sum };
                accumulate(acc_o.row_mut(i), old_sum * norm, 0.0, k.row(0));
                for (j, key) in keys.clone().enumerate() {
                    let p = p[j] * head.dropout_factor(row, key) * norm;
                    accumulate(acc_o.row_mut(i), 1.0, p, v.row(j));
                }
                (*max, *sum) = (new_max, new_sum);
            }
            o.store(rows.start, &acc_o);
            row_max.store(rows.start, &max);
            row_sum.store(rows.start, &sum);
        }
    }
    Run {
        o,
        lse: log_sum_exp(&row_max, &row_sum, head.seq),
        scores: vec![],
        stats: vec![row_max, row_sum],
    }
}

/// FlashAttention stores m and l, and no lse: lse is computed here for the comparison, outside the count.
fn log_sum_exp(row_max: &Matrix, row_sum: &Matrix, seq: usize) -> Matrix {
    let (max, sum) = (row_max.clone().into_values(), row_sum.clone().into_values());
    let lse = max.iter().zip(&sum).map(|(m, l)| m + l.ln());
    Matrix::new(lse.collect(), 1.min(seq))
}
