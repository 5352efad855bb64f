//! One task: up to [`BLOCK_M`] query rows against every key they see.
//!
//! All tiles are transposed, keys or dims down and queries across: `Sᵀ = K·Qᵀ`, `Oᵀ += Vᵀ·Pᵀ`. A
//! query then owns one vector lane from its scores to its output, and K and V are read as they lie.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::gemm::{Gemm, MICRO_ROWS};
use super::modifiers::CpuModifiers;
use super::pack::Matrix;
use super::score::{Bias, ScoreTransform};
use super::softmax::RowStates;
use crate::{Operands, Problem, Sequence};

/// Query rows of a task.
pub(super) const BLOCK_M: usize = 64;
/// Keys of a tile; scores of one tile then take 24 KiB and stay in the L1 cache.
const BLOCK_N: usize = 16 * MICRO_ROWS;
/// Columns come in multiples of this, the longest vector of any processor in f32 lanes.
pub(super) const COLUMN_STEP: usize = 16;

/// Factor of V where Σ p v left f32 before it was normalised: room for any number of keys.
const SCALED_DOWN: f32 = 1.0 / (1u64 << 63) as f32;

/// The tiles of a task; none grows with the sequence length.
pub(super) struct Scratch {
    /// `softmax_scale · Qᵀ`, `[head_dim][columns]`.
    q: Vec<f32>,
    /// `[BLOCK_N][head_dim]`.
    k: Vec<f32>,
    /// `[BLOCK_N][head_dim_v, padded]`.
    v: Vec<f32>,
    /// Scores, then probabilities, `[BLOCK_N][columns]`.
    s: Vec<f32>,
    /// `[head_dim_v, padded][columns]`.
    acc_o: Vec<f32>,
    /// Multiplies V: [`SCALED_DOWN`], or 1.
    v_factor: f32,
    /// Whether scores that are not finite are recomputed: [`AllTiles::mend_scores`].
    mends_scores: bool,
    /// Keys that each column sees are `first_key[column]..end_key[column]`.
    first_key: Vec<u32>,
    end_key: Vec<u32>,
    bias: Bias,
    rows: RowStates,
    /// One row of q or o.
    row: Vec<f32>,
}

impl Scratch {
    pub fn new(problem: &Problem) -> Self {
        let (head_dim, head_dim_v) = (problem.q().shape.dim, problem.v().shape.dim);
        let padded_v = head_dim_v.next_multiple_of(MICRO_ROWS);
        Self {
            q: vec![0.0; head_dim * BLOCK_M],
            k: vec![0.0; BLOCK_N * head_dim],
            v: vec![0.0; BLOCK_N * padded_v],
            s: vec![0.0; BLOCK_N * BLOCK_M],
            acc_o: vec![0.0; padded_v * BLOCK_M],
            v_factor: 1.0,
            mends_scores: false,
            first_key: vec![0; BLOCK_M],
            end_key: vec![0; BLOCK_M],
            bias: Bias::new(BLOCK_M),
            rows: RowStates::new(BLOCK_M),
            row: vec![0.0; head_dim.max(head_dim_v)],
        }
    }
}

/// Rows `first_row..first_row + rows` among those that share one head of K and V.
pub(super) struct Task<'a> {
    pub problem: &'a Problem,
    pub operands: &'a Operands,
    /// Of the problem, if it has any.
    pub modifiers: Option<&'a CpuModifiers>,
    /// Number of the batch entry.
    pub index: usize,
    pub sequence: &'a Sequence,
    pub head_kv: usize,
    pub first_row: usize,
    pub rows: usize,
    pub k: Matrix,
    pub v: Matrix,
}

impl Task<'_> {
    /// # Safety
    /// As for [`Backend::launch`](crate::Backend::launch), and nobody else may run a task
    /// on these rows at the same time.
    pub unsafe fn run(&self, scratch: &mut Scratch) {
        // SAFETY: the rows are the task's own, inside q.
        scratch.mends_scores = unsafe { self.load_q(scratch) } == Scaled::Overflows;
        self.find_keys(scratch);
        let has_lost_a_row = self.compute(scratch, 1.0);
        if !scratch.mends_scores && has_lost_a_row {
            scratch.mends_scores = true;
            self.compute(scratch, 1.0);
        }
        if scratch.acc_o.iter().any(|o| !o.is_finite()) {
            self.repeat_scaled_down(scratch);
        }
        // SAFETY: the rows are the task's own, inside o and lse.
        unsafe { self.store(scratch) };
    }

    /// Leaves the normalised output of `v_factor · V`, divided by it, in `acc_o`. Returns [`has_lost_a_row`](Self::has_lost_a_row).
    fn compute(&self, scratch: &mut Scratch, v_factor: f32) -> bool {
        scratch.v_factor = v_factor;
        Arch::new().dispatch(AllTiles {
            task: self,
            scratch: &mut *scratch,
        });
        let has_lost_a_row = self.has_lost_a_row(scratch);
        if let Some(modifiers) = self.modifiers {
            self.add_sinks(scratch, modifiers);
        }
        scratch.rows.finalize(&mut scratch.acc_o, self.columns());
        let of_dropout = self.modifiers.map_or(1.0, CpuModifiers::dropout_scale);
        let factor = of_dropout / v_factor;
        if factor != 1.0 {
            scratch.acc_o.iter_mut().for_each(|o| *o *= factor);
        }
        has_lost_a_row
    }

    /// Adds the sinks of the rows' heads to their softmax.
    fn add_sinks(&self, scratch: &mut Scratch, modifiers: &CpuModifiers) {
        let columns = self.columns();
        for column in 0..self.rows {
            let (head, _) = self.query(column);
            let Some(sink) = modifiers.sink(head) else {
                return;
            };
            let factor = scratch.rows.add_sink(column, sink);
            for row in scratch.acc_o.chunks_exact_mut(columns) {
                row[column] *= factor;
            }
        }
    }

    /// Turns a tile's scores into those that enter the softmax, and hides what modifiers hide.
    fn modify(&self, modifiers: &CpuModifiers, scores: &mut [f32], tile: Range<usize>) {
        let columns = self.columns();
        for column in 0..columns {
            let (head, i) = self.query(column.min(self.rows - 1));
            let at = modifiers.place(self.sequence, self.index, head);
            let of_column = || {
                tile.clone()
                    .map(|key| (key - tile.start) * columns + column)
            };
            let scores_of = scores.iter_mut().skip(column).step_by(columns);
            modifiers.change(&at, i, tile.clone(), scores_of, |_, _| {});
            if modifiers.hide() {
                for (key, place) in tile.clone().zip(of_column()) {
                    if !modifiers.sees(&at, i, key) {
                        scores[place] = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// Drops probabilities of a tile.
    fn drop_pairs(&self, modifiers: &CpuModifiers, p: &mut [f32], tile: Range<usize>) {
        let columns = self.columns();
        for column in 0..self.rows {
            let (head, i) = self.query(column);
            let at = modifiers.place(self.sequence, self.index, head);
            let of_column = p.iter_mut().skip(column).step_by(columns);
            modifiers.drop_pairs(&at, i, tile.clone(), of_column);
        }
    }

    /// Whether modifiers hide key `key` from the query of a column.
    fn hides_pair(&self, column: usize, key: usize) -> bool {
        let (head, i) = self.query(column.min(self.rows - 1));
        self.hides().is_some_and(|modifiers| {
            let at = modifiers.place(self.sequence, self.index, head);
            !modifiers.sees(&at, i, key)
        })
    }

    /// Whether modifiers decide which keys a query sees.
    fn hides(&self) -> Option<&CpuModifiers> {
        self.modifiers.filter(|modifiers| modifiers.hide())
    }

    /// Recomputes rows that are not finite with V scaled down. Rows that are rightly not finite stay so.
    #[cold]
    fn repeat_scaled_down(&self, scratch: &mut Scratch) {
        let first = scratch.acc_o.clone();
        self.compute(scratch, SCALED_DOWN);
        for (o, first) in scratch.acc_o.iter_mut().zip(first) {
            if first.is_finite() {
                *o = first;
            }
        }
    }

    /// The transform of `q · k` into a score.
    fn transform(&self) -> ScoreTransform<'_> {
        ScoreTransform::new(self.problem.score())
    }

    /// Tile width: whole vectors.
    fn columns(&self) -> usize {
        self.rows.next_multiple_of(COLUMN_STEP)
    }

    /// (query head, position in the sequence) of a column.
    fn query(&self, column: usize) -> (usize, usize) {
        let row = self.first_row + column;
        let seq_q = self.sequence.seq_q();
        let head = self.head_kv * self.problem.group() + row / seq_q;
        (head, row % seq_q)
    }

    /// Whether the sum of some row shows that its scores may have left f32 on the way: it is NaN, or 0 although keys
    /// are visible.
    fn has_lost_a_row(&self, scratch: &Scratch) -> bool {
        let is_lost = |column: usize| {
            let sees_keys = scratch.first_key[column] < scratch.end_key[column];
            let sum = scratch.rows.sum(column);
            sum.is_nan() || sum == 0.0 && sees_keys
        };
        (0..self.rows).any(is_lost)
    }

    /// Reads q and multiplies it by the scale, which may turn finite elements into infinite ones.
    ///
    /// # Safety
    /// The operands are as [`Task::run`] requires.
    unsafe fn load_q(&self, scratch: &mut Scratch) -> Scaled {
        let head_dim = self.problem.q().shape.dim;
        let columns = self.columns();
        let scale = self.transform().softmax_scale;
        let row = &mut scratch.row[..head_dim];
        scratch.q[..head_dim * columns].fill(0.0);
        let mut largest: f32 = 0.0;
        for column in 0..self.rows {
            // SAFETY: the column is one of the task's rows.
            unsafe { self.read_q(column, row) };
            for (dim, &value) in row.iter().enumerate() {
                scratch.q[dim * columns + column] = value * scale;
                largest = largest.max(value.abs());
            }
        }
        match (largest * scale).is_finite() {
            true => Scaled::Fits,
            false => Scaled::Overflows,
        }
    }

    /// Reads the query of a column, as it lies in q.
    ///
    /// # Safety
    /// The operands are as [`Task::run`] requires, and the column is below `rows`.
    unsafe fn read_q(&self, column: usize, row: &mut [f32]) {
        let (head, i) = self.query(column);
        let (batch, first) = (self.sequence.batch, self.sequence.q_rows.start);
        let q = Matrix::new(self.problem.q(), self.operands.q, batch, head, first);
        // SAFETY: row i of this sequence and head lies inside q.
        unsafe { q.read_row(i, row) };
    }

    /// Finds which keys each column sees, and its bias. Padding columns repeat the last one, so that they neither widen
    /// the range of tiles nor make a tile need a mask.
    fn find_keys(&self, scratch: &mut Scratch) {
        let band = self.sequence.band;
        let seq_kv = self.sequence.seq_kv() as i64;
        let corner = seq_kv - self.sequence.seq_q() as i64;
        let transform = self.transform();
        for column in 0..self.columns() {
            let (head, i) = self.query(column.min(self.rows - 1));
            let diagonal = i as i64 + corner;
            transform.set_query(&mut scratch.bias, column, (self.index, head), diagonal);
            let mut first = (i as i64 + i64::from(band.lower)).clamp(0, seq_kv);
            let mut end = (i as i64 + i64::from(band.upper) + 1).clamp(first, seq_kv);
            if self.hides().is_some() {
                // Any key may be seen: the modifiers tell.
                (first, end) = (0, seq_kv);
            }
            scratch.first_key[column] = first as u32;
            scratch.end_key[column] = end as u32;
        }
    }

    /// # Safety
    /// The operands are as [`Task::run`] requires, and the rows are this task's own.
    unsafe fn store(&self, scratch: &mut Scratch) {
        let shape = self.problem.o().shape;
        let columns = self.columns();
        let lse = self
            .operands
            .lse
            .map(|address| std::ptr::with_exposed_provenance_mut::<f32>(address as usize));
        for column in 0..self.rows {
            let (head, i) = self.query(column);
            let row = &mut scratch.row[..shape.dim];
            for (dim, o) in row.iter_mut().enumerate() {
                *o = scratch.acc_o[dim * columns + column];
            }
            let (batch, first) = (self.sequence.batch, self.sequence.q_rows.start);
            let o = Matrix::new(self.problem.o(), self.operands.o, batch, head, first);
            // SAFETY: row i of this sequence and head lies inside o.
            unsafe { o.write_row(i, row) };
            let index = (batch * shape.heads + head) * shape.seq + first + i;
            if let Some(lse) = lse {
                // SAFETY: lse holds an element for every row of every head of o.
                unsafe { *lse.add(index) = scratch.rows.lse(column) };
            }
        }
    }
}

/// Whether a task's q stays finite when it is scaled.
#[derive(PartialEq)]
enum Scaled {
    /// Every element is finite after scaling, or already was not before.
    Fits,
    /// Some finite elements overflowed f32, or some were infinite before.
    Overflows,
}

/// The loop over K/V tiles.
struct AllTiles<'a> {
    task: &'a Task<'a>,
    scratch: &'a mut Scratch,
}

impl WithSimd for AllTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let columns = self.task.columns();
        let scratch = &mut *self.scratch;
        scratch.rows.reset();
        scratch.acc_o.fill(0.0);
        let span = |keys: &[u32]| {
            let (low, high) = keys[..columns]
                .iter()
                .fold((u32::MAX, 0), |(low, high), &key| {
                    (low.min(key), high.max(key))
                });
            (low as usize, high as usize)
        };
        let (first, all_started) = span(&scratch.first_key);
        let (any_ended, end) = span(&scratch.end_key);
        for n_start in (first..end).step_by(BLOCK_N) {
            let tile = n_start..end.min(n_start + BLOCK_N);
            let masked =
                tile.start < all_started || tile.end > any_ended || self.task.hides().is_some();
            self.step(simd, tile, masked);
        }
    }
}

impl AllTiles<'_> {
    /// One K/V tile: `S = QKᵀ`, mask, softmax, `O = O · rescale + PV`.
    #[inline(always)]
    fn step<S: Simd>(&mut self, simd: S, tile: Range<usize>, masked: bool) {
        let columns = self.task.columns();
        let problem = self.task.problem;
        let (head_dim, head_dim_v) = (problem.q().shape.dim, problem.v().shape.dim);
        let padded_v = head_dim_v.next_multiple_of(MICRO_ROWS);
        let keys = tile.len();
        self.load_kv(tile.clone(), head_dim, head_dim_v, padded_v);

        let scratch = &mut *self.scratch;
        let padded_keys = keys.next_multiple_of(MICRO_ROWS);
        let gemm = Gemm {
            a: &scratch.k,
            a_row_stride: head_dim,
            a_depth_stride: 1,
            b: &scratch.q[..head_dim * columns],
            c: &mut scratch.s[..padded_keys * columns],
            rows: padded_keys,
            depth: head_dim,
            columns,
        };
        gemm.run::<S, false>(simd);
        if scratch.mends_scores {
            // SAFETY: as for `Task::run`, which was promised.
            unsafe { self.mend_scores(keys) };
        }

        let scratch = &mut *self.scratch;
        let s = &mut scratch.s[..keys * columns];
        let transform = self.task.transform();
        transform.apply(simd, s, &mut scratch.bias, tile.start, columns);
        if let Some(modifiers) = self.task.modifiers {
            self.task.modify(modifiers, s, tile.clone());
        }
        // Behind the modifiers, which may make a number of what is hidden.
        if masked {
            hide(
                simd,
                s,
                tile.start,
                &scratch.first_key[..columns],
                &scratch.end_key[..columns],
            );
        }
        if scratch.rows.update(simd, s, keys) {
            scratch.rows.rescale(simd, &mut scratch.acc_o, columns);
        }

        if let Some(modifiers) = self.task.modifiers {
            let s = &mut scratch.s[..keys * columns];
            self.task.drop_pairs(modifiers, s, tile.clone());
        }
        let s = &scratch.s[..keys * columns];
        let v = &scratch.v[..keys * padded_v];
        if masked && v.iter().any(|value| !value.is_finite()) {
            self.add_visible(tile, padded_v);
            return;
        }
        let gemm = Gemm {
            a: v,
            a_row_stride: 1,
            a_depth_stride: padded_v,
            b: s,
            c: &mut scratch.acc_o[..padded_v * columns],
            rows: padded_v,
            depth: keys,
            columns,
        };
        gemm.run::<S, true>(simd);
    }

    /// Recomputes, in f64, the scores of the tile's `keys` that are not finite although q and k are: `q · scale`, a
    /// product or a sum of products overflowed f32 on the way. With finite f32 operands no step overflows f64.
    ///
    /// # Safety
    /// The operands are as [`Task::run`] requires.
    #[cold]
    #[inline(never)]
    unsafe fn mend_scores(&mut self, keys: usize) {
        let (task, columns) = (self.task, self.task.columns());
        let head_dim = task.problem.q().shape.dim;
        let scale = f64::from(task.transform().softmax_scale);
        let Scratch { s, k, row, .. } = &mut *self.scratch;
        let q = &mut row[..head_dim];
        let are_finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        for column in 0..task.rows {
            if (0..keys).all(|key| s[key * columns + column].is_finite()) {
                continue;
            }
            // SAFETY: the column is one of the task's rows.
            unsafe { task.read_q(column, q) };
            if !are_finite(q) {
                continue;
            }
            for (key, k) in k.chunks_exact(head_dim).take(keys).enumerate() {
                let score = &mut s[key * columns + column];
                if !score.is_finite() && are_finite(k) {
                    let products = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k));
                    *score = (products.sum::<f64>() * scale) as f32;
                }
            }
        }
    }

    /// Inlined where vectors are as wide as the processor's: widening 16-bit elements takes as long as copying them then.
    #[inline(always)]
    fn load_kv(&mut self, tile: Range<usize>, head_dim: usize, head_dim_v: usize, padded_v: usize) {
        let k_rows = self.scratch.k.chunks_exact_mut(head_dim);
        let v_rows = self.scratch.v.chunks_exact_mut(padded_v);
        for ((j, k_row), v_row) in tile.zip(k_rows).zip(v_rows) {
            // SAFETY: key j of the sequence is below its seq_kv, and the operands are as `Task::run` was promised.
            unsafe {
                self.task.k.read_row(j, k_row);
                self.task.v.read_row(j, &mut v_row[..head_dim_v]);
            }
            if self.scratch.v_factor != 1.0 {
                for value in &mut v_row[..head_dim_v] {
                    *value *= self.scratch.v_factor;
                }
            }
        }
    }

    /// `O += PV` over visible pairs only: a hidden key's probability is 0, but 0 · ∞ and 0 · NaN are
    /// NaN, and a value may reach only the rows that see it.
    #[inline(never)]
    fn add_visible(&mut self, tile: Range<usize>, padded_v: usize) {
        let columns = self.task.columns();
        let scratch = &mut *self.scratch;
        for (key, j) in tile.enumerate() {
            for column in 0..columns {
                let seen = scratch.first_key[column]..scratch.end_key[column];
                if !seen.contains(&(j as u32)) || self.task.hides_pair(column, j) {
                    continue;
                }
                let p = scratch.s[key * columns + column];
                for dim in 0..padded_v {
                    scratch.acc_o[dim * columns + column] += p * scratch.v[key * padded_v + dim];
                }
            }
        }
    }
}

/// Sets the scores of hidden keys to −∞.
#[inline(always)]
fn hide<S: Simd>(
    simd: S,
    scores: &mut [f32],
    first_row_key: usize,
    first_key: &[u32],
    end_key: &[u32],
) {
    let columns = first_key.len();
    let (first_key, _) = S::as_simd_u32s(first_key);
    let (end_key, _) = S::as_simd_u32s(end_key);
    let hidden = simd.splat_f32s(f32::NEG_INFINITY);
    for (key, row) in scores.chunks_exact_mut(columns).enumerate() {
        let j = simd.splat_u32s((first_row_key + key) as u32);
        let (row, _) = S::as_mut_simd_f32s(row);
        for ((score, &first), &end) in row.iter_mut().zip(first_key).zip(end_key) {
            let started = simd.less_than_or_equal_u32s(first, j);
            let visible = simd.and_m32s(started, simd.less_than_u32s(j, end));
            *score = simd.select_f32s(visible, *score, hidden);
        }
    }
}
