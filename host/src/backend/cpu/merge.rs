//! One result from results for parts of the keys, a row at a time.

use rayon::prelude::*;

use super::pack::Matrix;
use crate::merge::{Merge, MergeTensor};

/// Merges all rows; weights and sums are f64, and o is rounded once.
///
/// # Safety
/// As [`Backend::merge_raw`](crate::Backend::merge_raw).
pub(super) unsafe fn run(merge: &Merge<'_>) {
    let shape = merge.o.spec.shape;
    (0..shape.batch * shape.heads)
        .into_par_iter()
        .for_each_init(Vec::new, |row, sequence| {
            let (batch, head) = (sequence / shape.heads, sequence % shape.heads);
            let matrix =
                |tensor: &MergeTensor| Matrix::new(&tensor.spec, tensor.address, batch, head, 0);
            let head = Head {
                parts: merge
                    .parts
                    .iter()
                    .map(|part| [&part.o, &part.lse].map(matrix))
                    .collect(),
                merged: [&merge.o, &merge.lse].map(matrix),
            };
            for seq in 0..shape.seq {
                // SAFETY: the caller's promise; no other task writes this head.
                unsafe { head.merge(seq, shape.dim, row) };
            }
        });
}

/// o and lse of one head.
struct Head {
    parts: Vec<[Matrix; 2]>,
    merged: [Matrix; 2],
}

impl Head {
    /// Merges row `seq`, of `dim` components; `row` is room for them.
    ///
    /// # Safety
    /// Every part and the result have such a row.
    unsafe fn merge(&self, seq: usize, dim: usize, row: &mut Vec<f32>) {
        let lse_of = |lse: &Matrix| {
            let mut value = [0.0];
            // SAFETY: the caller's promise.
            unsafe { lse.read_row(seq, &mut value) };
            f64::from(value[0])
        };
        // A part in which the row sees no key has no weight, whatever its o holds.
        let seen: Vec<_> = self
            .parts
            .iter()
            .map(|[o, lse]| (o, lse_of(lse)))
            .filter(|(_, lse)| *lse != f64::NEG_INFINITY)
            .collect();
        let max = seen
            .iter()
            .map(|(_, lse)| *lse)
            .fold(f64::NEG_INFINITY, f64::max);
        let weight = |lse: f64| (lse - max).exp();
        let sum: f64 = seen.iter().map(|(_, lse)| weight(*lse)).sum();
        let mut merged = vec![0.0; dim];
        row.resize(dim, 0.0);
        for (o, lse) in &seen {
            // SAFETY: the caller's promise.
            unsafe { o.read_row(seq, row) };
            let weight = weight(*lse) / sum;
            for (merged, o) in merged.iter_mut().zip(&*row) {
                *merged += weight * f64::from(*o);
            }
        }
        let lse = if seen.is_empty() {
            f64::NEG_INFINITY
        } else {
            max + sum.ln()
        };
        for (row, merged) in row.iter_mut().zip(&merged) {
            *row = *merged as f32;
        }
        let [o_matrix, lse_matrix] = &self.merged;
        // SAFETY: the caller's promise.
        unsafe {
            o_matrix.write_row(seq, row);
            lse_matrix.write_row(seq, &[lse as f32]);
        }
    }
}
