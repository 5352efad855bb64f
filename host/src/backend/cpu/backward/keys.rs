//! dk and dv of a block of keys.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::super::gemm::{Gemm, MICRO_ROWS};
use super::super::score::ScoreTransform;
use super::super::tile::COLUMN_STEP;
use super::pairs::{BLOCK_M, BLOCK_N, Pairs};
use super::{Block, Head};
use crate::Problem;

/// The tiles of a task.
pub(super) struct KeyBlock {
    pairs: Pairs,
    /// dK without softmax_scale, of q's rows.
    dk: Sum,
    /// dV, of d_o's rows.
    dv: Sum,
}

/// A sum over queries of weights times rows.
struct Sum {
    dims: usize,
    /// `dims` in whole vectors.
    padded: usize,
    /// `[BLOCK_M][padded]`, 0 beyond `dims`.
    rows: Vec<f32>,
    /// `[BLOCK_N][padded]`.
    acc: Vec<f32>,
}

impl Sum {
    fn new(dims: usize) -> Self {
        let padded = dims.next_multiple_of(COLUMN_STEP);
        Self {
            dims,
            padded,
            rows: vec![0.0; BLOCK_M * padded],
            acc: vec![0.0; BLOCK_N * padded],
        }
    }

    fn set_row(&mut self, query: usize, row: &[f32]) {
        self.rows[query * self.padded..][..self.dims].copy_from_slice(row);
    }
}

impl Block for KeyBlock {
    const ROWS: usize = BLOCK_N;

    fn rows_of(head: &Head<'_>) -> usize {
        head.pass.problem.kv_rows_with_unused(head.index)
    }

    fn new(problem: &Problem) -> Self {
        Self {
            pairs: Pairs::new(problem),
            dk: Sum::new(problem.k().shape.dim),
            dv: Sum::new(problem.v().shape.dim),
        }
    }

    unsafe fn run(&mut self, head: Head<'_>, first: usize, rows: usize) {
        self.dk.acc.fill(0.0);
        self.dv.acc.fill(0.0);
        // Keys that the sequence leaves unused have gradients of 0.
        let used = rows.min(head.sequence.seq_kv().saturating_sub(first));
        if used > 0 {
            let keys = first..first + used;
            // SAFETY: rows below seq_kv are keys of this head; the caller vouches for the operands.
            unsafe { self.pairs.load_keys(&head, keys.clone()) };
            Arch::new().dispatch(AllQueries {
                block: self,
                head: &head,
                keys,
            });
            self.dk.acc[used * self.dk.padded..].fill(0.0);
            self.dv.acc[used * self.dv.padded..].fill(0.0);
        }
        // SAFETY: the caller vouches that these rows are this task's own.
        unsafe { self.store(&head, first..first + rows) };
    }
}

/// The loop over blocks of queries.
struct AllQueries<'a> {
    block: &'a mut KeyBlock,
    head: &'a Head<'a>,
    keys: Range<usize>,
}

impl WithSimd for AllQueries<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { block, head, keys } = self;
        let transform = ScoreTransform::new(head.pass.problem.score());
        let queries = head.queries();
        for first in (0..queries).step_by(BLOCK_M) {
            let KeyBlock { pairs, dk, dv } = &mut *block;
            // SAFETY: the queries are some of the head's, and the operands as `Block::run` was promised.
            unsafe { pairs.set_queries(head, first, BLOCK_M.min(queries - first)) };
            let [seen, by_all] = pairs.seen();
            if keys.start >= seen.end || keys.end <= seen.start {
                continue;
            }
            let is_masked = keys.start < by_all.start || keys.end > by_all.end;
            let note = |is_q: bool, query: usize, row: &[f32]| match is_q {
                true => dk.set_row(query, row),
                false => dv.set_row(query, row),
            };
            // SAFETY: as before.
            unsafe { pairs.load_queries(head, first, note) };
            pairs.compute(simd, &transform, keys.clone(), is_masked);
            dv.add(simd, pairs, &pairs.p, keys.clone(), is_masked);
            dk.add(simd, pairs, &pairs.dx, keys.clone(), is_masked);
        }
    }
}

impl Sum {
    /// Adds `weights · rows`, with weights `[keys][columns]`.
    #[inline(always)]
    fn add<S: Simd>(
        &mut self,
        simd: S,
        pairs: &Pairs,
        weights: &[f32],
        keys: Range<usize>,
        is_masked: bool,
    ) {
        let rows = &self.rows[..pairs.queries * self.padded];
        if is_masked && rows.iter().any(|value| !value.is_finite()) {
            self.add_seen(pairs, weights, keys);
            return;
        }
        let key_rows = keys.len().next_multiple_of(MICRO_ROWS);
        let product = Gemm {
            a: weights,
            a_row_stride: pairs.columns,
            a_depth_stride: 1,
            b: rows,
            c: &mut self.acc[..key_rows * self.padded],
            rows: key_rows,
            depth: pairs.queries,
            columns: self.padded,
        };
        product.run::<S, true>(simd);
    }

    /// The same over visible pairs only: a query that does not see a key may hold ∞ or NaN, of which 0 times is NaN.
    #[inline(never)]
    fn add_seen(&mut self, pairs: &Pairs, weights: &[f32], keys: Range<usize>) {
        for (key, j) in keys.enumerate() {
            for query in (0..pairs.queries).filter(|&query| pairs.sees(query, j)) {
                let weight = weights[key * pairs.columns + query];
                for dim in 0..self.dims {
                    let value = self.rows[query * self.padded + dim];
                    self.acc[key * self.padded + dim] += weight * value;
                }
            }
        }
    }
}

impl KeyBlock {
    /// # Safety
    /// As for [`Block::run`].
    unsafe fn store(&mut self, head: &Head<'_>, keys: Range<usize>) {
        let pass = head.pass;
        let scale = pass.problem.softmax_scale();
        let dk = head.key_rows(&pass.specs.dk, pass.gradients.dk);
        let dv = head.key_rows(&pass.specs.dv, pass.gradients.dv);
        let dk_rows = self.dk.acc.chunks_exact_mut(self.dk.padded);
        let dv_rows = self.dv.acc.chunks_exact(self.dv.padded);
        for ((j, dk_row), dv_row) in keys.zip(dk_rows).zip(dv_rows) {
            dk_row.iter_mut().for_each(|value| *value *= scale);
            // SAFETY: key j of the sequence lies inside dk and dv, and is this task's own.
            unsafe {
                dk.write_row(j, &dk_row[..self.dk.dims]);
                dv.write_row(j, &dv_row[..self.dv.dims]);
            }
        }
    }
}
