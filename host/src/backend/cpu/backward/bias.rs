//! The gradient by a bias: dz of each pair, added up over the axes along which the bias is 1.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::super::score::ScoreTransform;
use super::pairs::{BLOCK_M, BLOCK_N, Pairs};
use super::{Head, Pass};
use crate::{Sequence, Shape};

/// Writes the gradient, whose shape is `shape`, to the f32 array at `address`: rows of it are a task's, which adds in one order.
///
/// # Safety
/// As for [`Backend::launch`](crate::Backend::launch); the array has an element for each of the shape, and nobody else accesses it.
pub(super) unsafe fn write(pass: &Pass<'_>, sequences: &[Sequence], shape: Shape, address: u64) {
    let Shape {
        batch, heads, seq, ..
    } = shape;
    let blocks = seq.div_ceil(BLOCK_M);
    (0..batch * heads * blocks).into_par_iter().for_each_init(
        || Pairs::with_score_gradient(pass.problem),
        |pairs, task| {
            let (plane, block) = (task / blocks, task % blocks);
            let rows = block * BLOCK_M..seq.min((block + 1) * BLOCK_M);
            let mut rows = Rows::new(shape, plane, rows);
            for index in of_axis(batch, sequences.len(), plane / heads) {
                for head in of_axis(heads, pass.problem.q().shape.heads, plane % heads) {
                    // SAFETY: the caller vouches for the operands.
                    unsafe { rows.add(pairs, pass, (index, &sequences[index]), head) };
                }
            }
            // SAFETY: the rows are this task's own.
            unsafe { rows.store(address) };
        },
    );
}

/// What is summed to index `at` of an axis of size `size`, 1 or `extent`.
fn of_axis(size: usize, extent: usize, at: usize) -> Range<usize> {
    if size == 1 { 0..extent } else { at..at + 1 }
}

/// Rows of the gradient.
struct Rows {
    shape: Shape,
    plane: usize,
    rows: Range<usize>,
    /// A sum for each of their elements.
    sums: Vec<f64>,
}

impl Rows {
    fn new(shape: Shape, plane: usize, rows: Range<usize>) -> Self {
        Self {
            shape,
            plane,
            sums: vec![0.0; rows.len() * shape.dim],
            rows,
        }
    }

    /// Adds the pairs of query head `head` of a sequence and its number.
    ///
    /// # Safety
    /// As for [`write`].
    unsafe fn add(
        &mut self,
        pairs: &mut Pairs,
        pass: &Pass<'_>,
        (index, sequence): (usize, &Sequence),
        head: usize,
    ) {
        let group = pass.problem.group();
        let of = Head {
            pass,
            index,
            sequence,
            head_kv: head / group,
        };
        let seq_q = sequence.seq_q();
        let queries = match self.shape.seq {
            1 => 0..seq_q,
            _ => self.rows.start..self.rows.end.min(seq_q),
        };
        for start in queries.clone().step_by(BLOCK_M) {
            let count = BLOCK_M.min(queries.end - start);
            let first = head % group * seq_q + start;
            // SAFETY: the queries are some of the head's.
            unsafe {
                pairs.set_queries(&of, first, count);
                pairs.load_queries(&of, first, |_, _, _| {});
            }
            Arch::new().dispatch(AllKeys {
                rows: self,
                pairs,
                head: &of,
                start,
            });
        }
    }

    /// Adds the pairs of a tile of keys `keys` and queries from `start` on.
    fn add_tile(&mut self, pairs: &Pairs, keys: Range<usize>, start: usize) {
        let dim = self.shape.dim;
        for column in 0..pairs.queries {
            let row = match self.shape.seq {
                1 => 0,
                _ => start + column - self.rows.start,
            };
            for (number, key) in keys.clone().enumerate() {
                if pairs.sees(column, key)
                    && let Some(dz) = pairs.score_gradient(column, number)
                {
                    self.sums[row * dim + key] += f64::from(dz);
                }
            }
        }
    }

    /// # Safety
    /// As for [`write`].
    unsafe fn store(&self, address: u64) {
        let start: *mut f32 = std::ptr::with_exposed_provenance_mut(address as usize);
        let first = (self.plane * self.shape.seq + self.rows.start) * self.shape.dim;
        for (index, sum) in self.sums.iter().enumerate() {
            // SAFETY: the element is one of the shape.
            unsafe { *start.add(first + index) = *sum as f32 };
        }
    }
}

/// The loop over tiles of keys.
struct AllKeys<'a> {
    rows: &'a mut Rows,
    pairs: &'a mut Pairs,
    head: &'a Head<'a>,
    start: usize,
}

impl WithSimd for AllKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            rows,
            pairs,
            head,
            start,
        } = self;
        let transform = ScoreTransform::new(head.pass.problem.score());
        let [seen, by_all] = pairs.seen();
        for first in seen.clone().step_by(BLOCK_N) {
            let keys = first..seen.end.min(first + BLOCK_N);
            let is_masked = keys.start < by_all.start || keys.end > by_all.end;
            // SAFETY: the keys are some of the head's, and the operands as `write` was promised.
            unsafe { pairs.load_keys(head, keys.clone()) };
            pairs.compute(simd, &transform, keys.clone(), is_masked);
            rows.add_tile(pairs, keys, start);
        }
    }
}
