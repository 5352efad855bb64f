//! P and dS of a tile of keys and queries.
//!
//! Keys lie down and queries across, as in the forward pass: `Sᵀ = K·Qᵀ` and `dPᵀ = V·d_oᵀ`; a query owns a vector lane.

use std::ops::Range;
use std::sync::Arc;

use kernels_gpu::modifiers::Place;
use pulp::Simd;

use super::super::gemm::{Gemm, MICRO_ROWS};
use super::super::math::exp;
use super::super::modifiers::CpuModifiers;
use super::super::score::{Bias, ScoreTransform};
use super::super::tile::COLUMN_STEP;
use super::Head;
use crate::Problem;

/// Queries of a tile.
pub(super) const BLOCK_M: usize = 64;
/// Keys of a tile.
pub(super) const BLOCK_N: usize = 16 * MICRO_ROWS;

/// The operands of a tile, and P and dS computed from them.
pub(super) struct Pairs {
    head_dim: usize,
    head_dim_v: usize,
    /// Columns of `k`.
    pub padded_dim: usize,
    /// Queries of the block, and lanes they take.
    pub queries: usize,
    pub columns: usize,
    /// `[head_dim][columns]` and `[head_dim_v][columns]`.
    pub q: Vec<f32>,
    pub d_o: Vec<f32>,
    /// `[BLOCK_N][padded_dim]`, 0 beyond head_dim.
    pub k: Vec<f32>,
    /// `[BLOCK_N][head_dim_v]`.
    v: Vec<f32>,
    /// `[BLOCK_N][columns]`: scores, then P; dP, then the gradients of `q · k` over softmax_scale.
    pub p: Vec<f32>,
    pub dx: Vec<f32>,
    /// The softcap's derivative for each score, laid out as `p`.
    slope: Vec<f32>,
    /// That of the caller's own score modification.
    own_slope: Vec<f32>,
    /// Per query: lse, delta, and the range of visible keys, `first_key..end_key`.
    lse: Vec<f32>,
    delta: Vec<f32>,
    first_key: Vec<u32>,
    end_key: Vec<u32>,
    bias: Bias,
    distances: Option<Distances>,
    /// dz of the pairs, laid out as `p`, where it is wanted: the gradients of scores before a softcap's derivative.
    score_gradient: Option<Vec<f32>>,
    /// Modifiers of the problem, and where the query of each column is.
    modifiers: Option<Arc<CpuModifiers>>,
    places: Vec<(Place, usize)>,
    /// One row of an operand.
    row: Vec<f32>,
}

/// `Σ dz · |diagonal − key|` of each query, for the gradient by ALiBi's slopes.
struct Distances {
    /// Of the keys of one tile.
    of_tile: Vec<f32>,
    /// Of all so far.
    sums: Vec<f64>,
}

impl Pairs {
    pub fn new(problem: &Problem) -> Self {
        let (head_dim, head_dim_v) = (problem.q().shape.dim, problem.v().shape.dim);
        let padded_dim = head_dim.next_multiple_of(MICRO_ROWS);
        let slopes = if problem.softcap().is_some() {
            BLOCK_N * BLOCK_M
        } else {
            0
        };
        Self {
            head_dim,
            head_dim_v,
            padded_dim,
            queries: 0,
            columns: 0,
            q: vec![0.0; head_dim * BLOCK_M],
            d_o: vec![0.0; head_dim_v * BLOCK_M],
            k: vec![0.0; BLOCK_N * padded_dim],
            v: vec![0.0; BLOCK_N * head_dim_v],
            p: vec![0.0; BLOCK_N * BLOCK_M],
            dx: vec![0.0; BLOCK_N * BLOCK_M],
            slope: vec![0.0; slopes],
            own_slope: Vec::new(),
            lse: vec![0.0; BLOCK_M],
            delta: vec![0.0; BLOCK_M],
            first_key: vec![0; BLOCK_M],
            end_key: vec![0; BLOCK_M],
            bias: Bias::new(BLOCK_M),
            distances: None,
            score_gradient: None,
            modifiers: None,
            places: Vec::new(),
            row: vec![0.0; head_dim.max(head_dim_v)],
        }
    }

    /// Tiles that also add up what the gradient by ALiBi's slopes needs, if `problem` asks for it.
    pub fn with_distances(problem: &Problem) -> Self {
        let distances = problem.d_alibi_slopes().map(|_| Distances {
            of_tile: vec![0.0; BLOCK_M],
            sums: vec![0.0; BLOCK_M],
        });
        Self {
            distances,
            ..Self::new(problem)
        }
    }

    /// Tiles that also keep what the gradient by a bias is made of.
    pub fn with_score_gradient(problem: &Problem) -> Self {
        Self {
            score_gradient: Some(vec![0.0; BLOCK_N * BLOCK_M]),
            ..Self::new(problem)
        }
    }

    /// dz of query `column` and key number `key` of the tile, which it sees, if it is kept.
    pub fn score_gradient(&self, column: usize, key: usize) -> Option<f32> {
        let kept = self.score_gradient.as_ref()?;
        Some(kept[key * self.columns + column])
    }

    /// `Σ dz · distance` of query `column` over the tiles since [`set_queries`](Self::set_queries), if it is added up.
    pub fn distance_sum(&self, column: usize) -> Option<f64> {
        self.distances.as_ref().map(|found| found.sums[column])
    }

    /// Records which keys each of `queries` queries of `head` from `first` on sees, and loads its lse and delta.
    /// Padding columns repeat the last query's keys, so that they neither widen the range of tiles nor make a tile need
    /// a mask, and their probability is 0.
    ///
    /// # Safety
    /// As for [`Backend::launch`](crate::Backend::launch), and the queries are some of `head`'s.
    pub unsafe fn set_queries(&mut self, head: &Head<'_>, first: usize, queries: usize) {
        self.queries = queries;
        self.columns = queries.next_multiple_of(COLUMN_STEP);
        if let Some(distances) = &mut self.distances {
            distances.sums.fill(0.0);
        }
        let sequence = head.sequence;
        let seq_kv = sequence.seq_kv() as i64;
        let corner = seq_kv - sequence.seq_q() as i64;
        let transform = ScoreTransform::new(head.pass.problem.score());
        self.modifiers.clone_from(&head.pass.modifiers);
        self.places.clear();
        let hides = self.hides().is_some();
        for column in 0..self.columns {
            let (query_head, i) = head.query(first + column.min(queries - 1));
            let diagonal = i as i64 + corner;
            transform.set_query(&mut self.bias, column, (head.index, query_head), diagonal);
            let first_key = (i as i64 + i64::from(sequence.band.lower)).clamp(0, seq_kv);
            let end_key = (i as i64 + i64::from(sequence.band.upper) + 1).clamp(first_key, seq_kv);
            // Any key may be seen where modifiers tell.
            let seen = if hides { 0..seq_kv } else { first_key..end_key };
            self.first_key[column] = seen.start as u32;
            self.end_key[column] = seen.end as u32;
            if let Some(modifiers) = &self.modifiers {
                let place = modifiers.place(sequence, head.index, query_head);
                self.places.push((place, i));
            }
            let row = sequence.q_rows.start + i;
            // SAFETY: row i of this sequence and head lies inside o.
            let terms = unsafe { head.pass.rows.get(sequence.batch, query_head, row) };
            let is_query = column < queries;
            (self.lse[column], self.delta[column]) = if is_query {
                terms
            } else {
                (f32::INFINITY, 0.0)
            };
        }
    }

    /// Loads q and d_o of the block's queries, with `each` looking at every row of q (`true`) and d_o.
    ///
    /// # Safety
    /// As for [`set_queries`](Self::set_queries), which was called with the same queries.
    pub unsafe fn load_queries(
        &mut self,
        head: &Head<'_>,
        first: usize,
        mut each: impl FnMut(bool, usize, &[f32]),
    ) {
        let pass = head.pass;
        let columns = self.columns;
        self.q[..self.head_dim * columns].fill(0.0);
        self.d_o[..self.head_dim_v * columns].fill(0.0);
        for column in 0..self.queries {
            let (query_head, i) = head.query(first + column);
            let q = head.query_rows(pass.problem.q(), pass.operands.q, query_head);
            let d_o = head.query_rows(&pass.specs.d_o, pass.gradients.d_o, query_head);
            for (is_q, matrix, dims, tile) in [
                (true, q, self.head_dim, &mut self.q),
                (false, d_o, self.head_dim_v, &mut self.d_o),
            ] {
                let row = &mut self.row[..dims];
                // SAFETY: row i of this sequence and head lies inside q and d_o.
                unsafe { matrix.read_row(i, row) };
                for (dim, &value) in row.iter().enumerate() {
                    tile[dim * columns + column] = value;
                }
                each(is_q, column, row);
            }
        }
    }

    /// Loads keys `keys` of `head`, as many as fit a tile.
    ///
    /// # Safety
    /// As for [`Backend::launch`](crate::Backend::launch), and the keys are some of `head`'s.
    pub unsafe fn load_keys(&mut self, head: &Head<'_>, keys: Range<usize>) {
        let pass = head.pass;
        let k = head.key_rows(pass.problem.k(), pass.operands.k);
        let v = head.key_rows(pass.problem.v(), pass.operands.v);
        let k_rows = self.k.chunks_exact_mut(self.padded_dim);
        let v_rows = self.v.chunks_exact_mut(self.head_dim_v);
        for ((j, k_row), v_row) in keys.zip(k_rows).zip(v_rows) {
            // SAFETY: key j of the sequence lies inside k and v.
            unsafe {
                k.read_row(j, &mut k_row[..self.head_dim]);
                v.read_row(j, v_row);
            }
        }
    }

    /// The keys that some query of the block sees, and those that every one does.
    pub fn seen(&self) -> [Range<usize>; 2] {
        let span = |keys: &[u32]| {
            let columns = &keys[..self.columns];
            let low = columns.iter().min().copied().unwrap_or(0);
            (
                low as usize,
                columns.iter().max().copied().unwrap_or(0) as usize,
            )
        };
        let (first, all_started) = span(&self.first_key);
        let (any_ended, end) = span(&self.end_key);
        if self.hides().is_some() {
            // No key is known to be seen by all.
            return [first..end, first..first];
        }
        [first..end, all_started..any_ended]
    }

    /// The modifiers, if they decide which keys a query sees.
    fn hides(&self) -> Option<&CpuModifiers> {
        self.modifiers
            .as_deref()
            .filter(|modifiers| modifiers.hide())
    }

    /// Turns scores into those that modifiers make of them.
    fn change_scores(&mut self, keys: &Range<usize>) {
        let Some(modifiers) = &self.modifiers else {
            return;
        };
        if modifiers.has_slope() {
            self.own_slope.resize(BLOCK_N * BLOCK_M, 0.0);
        }
        for (column, (at, query)) in self.places.iter().enumerate() {
            let scores = self.p.iter_mut().skip(column).step_by(self.columns);
            modifiers.change(at, *query, keys.clone(), scores, |key, slope| {
                self.own_slope[key * self.columns + column] = slope;
            });
        }
    }

    /// Multiplies dx by the derivative of the caller's own score modification, where there is one.
    fn multiply_by_own_slope(&mut self, keys: &Range<usize>) {
        let cells = keys.len() * self.columns;
        for (dx, slope) in self.dx[..cells].iter_mut().zip(&self.own_slope) {
            *dx *= slope;
        }
    }

    /// Drops elements of `p` or of `dx`, and multiplies the others by the scale of those that are kept.
    fn drop_pairs(&mut self, keys: &Range<usize>, is_p: bool) {
        let Some(modifiers) = &self.modifiers else {
            return;
        };
        let tile = if is_p { &mut self.p } else { &mut self.dx };
        for (column, (at, query)) in self.places.iter().enumerate() {
            let values = tile.iter_mut().skip(column).step_by(self.columns);
            modifiers.drop_pairs(at, *query, keys.clone(), values);
        }
        let scale = modifiers.dropout_scale();
        if scale != 1.0 {
            let cells = &mut tile[..keys.len() * self.columns];
            cells.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// Sets p and dx to 0 of pairs that modifiers hide.
    fn clear_hidden(&mut self, keys: &Range<usize>) {
        if self.hides().is_none() {
            return;
        }
        for (key, j) in keys.clone().enumerate() {
            for column in 0..self.columns {
                if !self.sees(column, j) {
                    self.p[key * self.columns + column] = 0.0;
                    self.dx[key * self.columns + column] = 0.0;
                }
            }
        }
    }

    /// Whether query `column` of the block sees key `j`.
    pub fn sees(&self, column: usize, j: usize) -> bool {
        let in_range =
            (self.first_key[column] as usize..self.end_key[column] as usize).contains(&j);
        let shown = || match self.hides() {
            None => true,
            Some(modifiers) => {
                let (at, query) = &self.places[column];
                modifiers.sees(at, *query, j)
            }
        };
        in_range && shown()
    }

    /// Computes P and the gradients of the products into `p` and `dx`, for the loaded keys, which are `keys`. Both are
    /// 0 where a query does not see a key; such pairs exist only if `is_masked`.
    #[inline(always)]
    pub fn compute<S: Simd>(
        &mut self,
        simd: S,
        transform: &ScoreTransform<'_>,
        keys: Range<usize>,
        is_masked: bool,
    ) {
        let (columns, rows) = (self.columns, keys.len().next_multiple_of(MICRO_ROWS));
        let product = |a, a_row_stride, b, c, depth| Gemm {
            a,
            a_row_stride,
            a_depth_stride: 1,
            b,
            c,
            rows,
            depth,
            columns,
        };
        // Sᵀ = K · Qᵀ
        let q = &self.q[..self.head_dim * columns];
        let s = &mut self.p[..rows * columns];
        product(&self.k, self.padded_dim, q, s, self.head_dim).run::<S, false>(simd);
        // dPᵀ = V · d_oᵀ
        let d_o = &self.d_o[..self.head_dim_v * columns];
        let dp = &mut self.dx[..rows * columns];
        product(&self.v, self.head_dim_v, d_o, dp, self.head_dim_v).run::<S, false>(simd);

        let cells = ..keys.len() * columns;
        let slope = match self.slope.is_empty() {
            true => None,
            false => Some(&mut self.slope[cells]),
        };
        let s = &mut self.p[cells];
        transform.apply_with_slope(simd, s, slope, &mut self.bias, keys.start, columns);
        self.change_scores(&keys);
        self.drop_pairs(&keys, false);
        self.differentiate(simd, keys.len());
        self.multiply_by_own_slope(&keys);
        self.clear_hidden(&keys);
        self.add_distances(simd, keys.clone());
        if let Some(dz) = &mut self.score_gradient {
            dz[..keys.len() * columns].copy_from_slice(&self.dx[..keys.len() * columns]);
        }
        self.multiply_by_slope(simd, keys.len());
        if is_masked {
            self.clear_unseen(simd, keys.clone());
            // Again: a softcap's derivative may be NaN.
            self.clear_hidden(&keys);
        }
        self.drop_pairs(&keys, true);
    }

    /// `p = exp(s − lse)` and `dx = p · (dp − delta)`.
    #[inline(always)]
    fn differentiate<S: Simd>(&mut self, simd: S, keys: usize) {
        let columns = self.columns;
        let (lse, _) = S::as_simd_f32s(&self.lse[..columns]);
        let (delta, _) = S::as_simd_f32s(&self.delta[..columns]);
        let cells = ..keys * columns;
        let (p, _) = S::as_mut_simd_f32s(&mut self.p[cells]);
        let (dx, _) = S::as_mut_simd_f32s(&mut self.dx[cells]);
        let rows = p
            .chunks_exact_mut(lse.len())
            .zip(dx.chunks_exact_mut(lse.len()));
        for (p, dx) in rows {
            for (((p, dx), &lse), &delta) in p.iter_mut().zip(dx).zip(lse).zip(delta) {
                *p = exp(simd, simd.sub_f32s(*p, lse));
                *dx = simd.mul_f32s(*p, simd.sub_f32s(*dx, delta));
            }
        }
    }

    /// Multiplies dx by the derivative of a softcap, where there is one.
    #[inline(always)]
    fn multiply_by_slope<S: Simd>(&mut self, simd: S, keys: usize) {
        if self.slope.is_empty() {
            return;
        }
        let cells = ..keys * self.columns;
        let (slope, _) = S::as_simd_f32s(&self.slope[cells]);
        let (dx, _) = S::as_mut_simd_f32s(&mut self.dx[cells]);
        for (dx, &slope) in dx.iter_mut().zip(slope) {
            *dx = simd.mul_f32s(*dx, slope);
        }
    }

    /// Adds `dx · distance` of the pairs that see each other, where that is wanted; a softcap comes after.
    #[inline(always)]
    fn add_distances<S: Simd>(&mut self, simd: S, keys: Range<usize>) {
        let Some(Distances { of_tile, sums }) = &mut self.distances else {
            return;
        };
        let columns = self.columns;
        of_tile.fill(0.0);
        let (of_tile_simd, _) = S::as_mut_simd_f32s(&mut of_tile[..columns]);
        let (diagonal, _) = S::as_simd_f32s(&self.bias.diagonals()[..columns]);
        let (first_key, _) = S::as_simd_u32s(&self.first_key[..columns]);
        let (end_key, _) = S::as_simd_u32s(&self.end_key[..columns]);
        let zero = simd.splat_f32s(0.0);
        let rows = self.dx.chunks_exact(columns).zip(keys).enumerate();
        for (key, (row, j)) in rows {
            let (row, _) = S::as_simd_f32s(row);
            let (key, j) = (simd.splat_f32s(key as f32), simd.splat_u32s(j as u32));
            let seen = first_key.iter().zip(end_key);
            let columns = of_tile_simd.iter_mut().zip(row).zip(diagonal).zip(seen);
            for (((sum, &dz), &diagonal), (&first, &end)) in columns {
                let distance = simd.abs_f32s(simd.sub_f32s(diagonal, key));
                let started = simd.less_than_or_equal_u32s(first, j);
                let seen = simd.and_m32s(started, simd.less_than_u32s(j, end));
                let term = simd.select_f32s(seen, simd.mul_f32s(dz, distance), zero);
                *sum = simd.add_f32s(*sum, term);
            }
        }
        for (sum, &of_tile) in sums.iter_mut().zip(&*of_tile) {
            *sum += f64::from(of_tile);
        }
    }

    /// Sets p and dx to 0 where a query does not see a key: the values computed there may be NaN.
    #[inline(always)]
    fn clear_unseen<S: Simd>(&mut self, simd: S, keys: Range<usize>) {
        let columns = self.columns;
        let (first_key, _) = S::as_simd_u32s(&self.first_key[..columns]);
        let (end_key, _) = S::as_simd_u32s(&self.end_key[..columns]);
        let zero = simd.splat_f32s(0.0);
        for tile in [&mut self.p, &mut self.dx] {
            let rows = tile.chunks_exact_mut(columns).zip(keys.clone());
            for (row, j) in rows {
                let j = simd.splat_u32s(j as u32);
                let (row, _) = S::as_mut_simd_f32s(row);
                for ((value, &first), &end) in row.iter_mut().zip(first_key).zip(end_key) {
                    let started = simd.less_than_or_equal_u32s(first, j);
                    let seen = simd.and_m32s(started, simd.less_than_u32s(j, end));
                    *value = simd.select_f32s(seen, *value, zero);
                }
            }
        }
    }
}
