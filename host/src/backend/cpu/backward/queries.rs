//! dq of a block of queries.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::super::gemm::Gemm;
use super::super::score::ScoreTransform;
use super::pairs::{BLOCK_M, BLOCK_N, Pairs};
use super::{Block, Head};
use crate::Problem;

/// The tiles of a task.
pub(super) struct QueryBlock {
    pairs: Pairs,
    /// `[head_dim, padded][columns]`.
    acc_dq: Vec<f32>,
    row: Vec<f32>,
}

impl Block for QueryBlock {
    const ROWS: usize = BLOCK_M;

    fn rows_of(head: &Head<'_>) -> usize {
        head.queries()
    }

    fn new(problem: &Problem) -> Self {
        let pairs = Pairs::with_distances(problem);
        Self {
            acc_dq: vec![0.0; pairs.padded_dim * BLOCK_M],
            row: vec![0.0; problem.q().shape.dim],
            pairs,
        }
    }

    unsafe fn run(&mut self, head: Head<'_>, first: usize, rows: usize) {
        // SAFETY: the caller vouches for the operands, and that these rows are some of the head's.
        unsafe {
            self.pairs.set_queries(&head, first, rows);
            self.pairs.load_queries(&head, first, |_, _, _| {});
        }
        self.acc_dq.fill(0.0);
        Arch::new().dispatch(AllKeys {
            block: self,
            head: &head,
        });
        // SAFETY: the caller vouches that these rows are this task's own.
        unsafe { self.store(&head, first) };
    }
}

/// The loop over tiles of keys.
struct AllKeys<'a> {
    block: &'a mut QueryBlock,
    head: &'a Head<'a>,
}

impl WithSimd for AllKeys<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { block, head } = self;
        let transform = ScoreTransform::new(head.pass.problem.score());
        let [seen, by_all] = block.pairs.seen();
        for start in seen.clone().step_by(BLOCK_N) {
            let keys = start..seen.end.min(start + BLOCK_N);
            let is_masked = keys.start < by_all.start || keys.end > by_all.end;
            // SAFETY: the keys are some of the head's, and the operands as `Block::run` was promised.
            unsafe { block.pairs.load_keys(head, keys.clone()) };
            block
                .pairs
                .compute(simd, &transform, keys.clone(), is_masked);
            block.add(simd, keys, is_masked);
        }
    }
}

impl QueryBlock {
    /// `dQᵀ += Kᵀ · dSᵀ`, without softmax_scale.
    #[inline(always)]
    fn add<S: Simd>(&mut self, simd: S, keys: Range<usize>, is_masked: bool) {
        let Pairs {
            columns,
            padded_dim,
            ..
        } = self.pairs;
        let k = &self.pairs.k[..keys.len() * padded_dim];
        if is_masked && k.iter().any(|value| !value.is_finite()) {
            self.add_seen(keys);
            return;
        }
        let product = Gemm {
            a: k,
            a_row_stride: 1,
            a_depth_stride: padded_dim,
            b: &self.pairs.dx[..keys.len() * columns],
            c: &mut self.acc_dq[..padded_dim * columns],
            rows: padded_dim,
            depth: keys.len(),
            columns,
        };
        product.run::<S, true>(simd);
    }

    /// The same over visible pairs only: a hidden key may hold ∞ or NaN, of which 0 times is NaN.
    #[inline(never)]
    fn add_seen(&mut self, keys: Range<usize>) {
        let Pairs {
            columns,
            padded_dim,
            ..
        } = self.pairs;
        for (key, j) in keys.enumerate() {
            for column in (0..columns).filter(|&column| self.pairs.sees(column, j)) {
                let dx = self.pairs.dx[key * columns + column];
                for dim in 0..padded_dim {
                    let k = self.pairs.k[key * padded_dim + dim];
                    self.acc_dq[dim * columns + column] += dx * k;
                }
            }
        }
    }

    /// # Safety
    /// As for [`Block::run`].
    unsafe fn store(&mut self, head: &Head<'_>, first: usize) {
        let pass = head.pass;
        let scale = pass.problem.softmax_scale();
        let Pairs {
            columns, queries, ..
        } = self.pairs;
        for column in 0..queries {
            for (dim, value) in self.row.iter_mut().enumerate() {
                *value = scale * self.acc_dq[dim * columns + column];
            }
            let (query_head, i) = head.query(first + column);
            let dq = head.query_rows(&pass.specs.dq, pass.gradients.dq, query_head);
            // SAFETY: row i of this sequence and head lies inside dq, and is this task's own.
            unsafe { dq.write_row(i, &self.row) };
            if let (Some(rows), Some(sum)) = (&pass.slope_rows, self.pairs.distance_sum(column)) {
                let row = head.sequence.q_rows.start + i;
                rows.set(head.sequence.batch, query_head, row, sum);
            }
        }
    }
}
