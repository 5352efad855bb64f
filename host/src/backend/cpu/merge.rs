//! Merging results for parts of the keys, a row at a time.

use rayon::prelude::*;

use super::pack::Matrix;
use crate::merge::{Merge, MergeTensor};

/// Merges all rows; weights and sums are f64, and o is rounded to f32, then to its dtype.
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
                // SAFETY: the row lies inside the operands, as the caller vouches; no other task writes this head.
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
    /// Merges row `seq`, of `dim` components; `row` is a buffer for them.
    ///
    /// # Safety
    /// Every part has row `seq` with `dim` components, readable, and so has the result, accessed by nobody else.
    unsafe fn merge(&self, seq: usize, dim: usize, row: &mut Vec<f32>) {
        let lse_of = |lse: &Matrix| {
            let mut value = [0.0];
            // SAFETY: every part has this row, of one lse.
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
            // SAFETY: every part has this row, of `dim` components.
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
        // SAFETY: the result has this row, of `dim` components and one lse, which nobody else accesses.
        unsafe {
            o_matrix.write_row(seq, row);
            lse_matrix.write_row(seq, &[lse as f32]);
        }
    }
}
