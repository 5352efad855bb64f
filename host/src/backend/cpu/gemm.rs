//! The matrix product of the inner loop.

use pulp::Simd;

/// Rows of A in one register tile, each read as a broadcast scalar.
pub(super) const MICRO_ROWS: usize = 6;

/// `C (+)= Aᵀ · B` on dense tiles of f32.
///
/// A is `[depth][rows]` or `[rows][depth]` as its strides say, B is `[depth][columns]` and C is
/// `[rows][columns]`, both with `columns` a whole number of vectors.
pub(super) struct Gemm<'a> {
    pub a: &'a [f32],
    /// Distance between rows of A's logical `[rows][depth]` matrix, in elements.
    pub a_row_stride: usize,
    /// Distance along `depth`, in elements.
    pub a_depth_stride: usize,
    pub b: &'a [f32],
    pub c: &'a mut [f32],
    /// A multiple of [`MICRO_ROWS`].
    pub rows: usize,
    pub depth: usize,
    /// A multiple of the vector length.
    pub columns: usize,
}

impl Gemm<'_> {
    /// Runs the product; `ACCUMULATE` adds to C instead of overwriting it.
    #[inline(always)]
    pub fn run<S: Simd, const ACCUMULATE: bool>(self, simd: S) {
        let (b, b_rest) = S::as_simd_f32s(self.b);
        let (c, c_rest) = S::as_mut_simd_f32s(self.c);
        let vectors = self.columns / S::F32_LANES;
        debug_assert!(self.rows.is_multiple_of(MICRO_ROWS));
        debug_assert!(self.columns.is_multiple_of(S::F32_LANES));
        debug_assert!(b_rest.is_empty() && c_rest.is_empty());
        let tile = Tile {
            a: self.a,
            a_row_stride: self.a_row_stride,
            a_depth_stride: self.a_depth_stride,
            b,
            vectors,
            depth: self.depth,
        };
        // Accumulators, one row of B and one broadcast must fit the vector registers: 6 × 4 of
        // AVX-512's 32, 6 × 2 of the 16 elsewhere.
        let wide = if S::REGISTER_COUNT >= 32 { 4 } else { 2 };
        let mut column = 0;
        while column < vectors {
            let left = vectors - column;
            for row in (0..self.rows).step_by(MICRO_ROWS) {
                match left.min(wide) {
                    4.. => tile.run::<S, 4, ACCUMULATE>(simd, c, row, column),
                    2.. => tile.run::<S, 2, ACCUMULATE>(simd, c, row, column),
                    _ => tile.run::<S, 1, ACCUMULATE>(simd, c, row, column),
                }
            }
            column += match left.min(wide) {
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
        }
    }
}

struct Tile<'a, V> {
    a: &'a [f32],
    a_row_stride: usize,
    a_depth_stride: usize,
    b: &'a [V],
    vectors: usize,
    depth: usize,
}

impl<V: Copy> Tile<'_, V> {
    /// One register tile: [`MICRO_ROWS`] rows by `WIDE` vectors of C.
    #[inline(always)]
    fn run<S: Simd<f32s = V>, const WIDE: usize, const ACCUMULATE: bool>(
        &self,
        simd: S,
        c: &mut [V],
        row: usize,
        column: usize,
    ) {
        let mut acc = [[simd.splat_f32s(0.0); WIDE]; MICRO_ROWS];
        if ACCUMULATE {
            for (r, acc) in acc.iter_mut().enumerate() {
                let start = (row + r) * self.vectors + column;
                acc.copy_from_slice(&c[start..start + WIDE]);
            }
        }
        let a_start = row * self.a_row_stride;
        let last = a_start
            + (MICRO_ROWS - 1) * self.a_row_stride
            + self.depth.saturating_sub(1) * self.a_depth_stride;
        assert!(self.depth == 0 || last < self.a.len());
        for (d, b) in self
            .b
            .chunks_exact(self.vectors)
            .take(self.depth)
            .enumerate()
        {
            let b: &[V; WIDE] = b[column..].first_chunk().expect("column + WIDE <= vectors");
            for (r, acc) in acc.iter_mut().enumerate() {
                let index = a_start + r * self.a_row_stride + d * self.a_depth_stride;
                // SAFETY: `index <= last`, which was just checked against the length.
                let a = simd.splat_f32s(unsafe { *self.a.get_unchecked(index) });
                for (acc, &b) in acc.iter_mut().zip(b) {
                    *acc = simd.mul_add_e_f32s(a, b, *acc);
                }
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            let start = (row + r) * self.vectors + column;
            c[start..start + WIDE].copy_from_slice(acc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, Scalar, WithSimd};

    struct Both<'a> {
        a: &'a [f32],
        b: &'a [f32],
        c: &'a mut [f32],
        columns: usize,
    }

    const ROWS: usize = 2 * MICRO_ROWS;
    const DEPTH: usize = 5;

    impl WithSimd for Both<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for accumulate in [false, true] {
                let gemm = Gemm {
                    a: self.a,
                    a_row_stride: 1,
                    a_depth_stride: ROWS,
                    b: self.b,
                    c: self.c,
                    rows: ROWS,
                    depth: DEPTH,
                    columns: self.columns,
                };
                if accumulate {
                    gemm.run::<S, true>(simd);
                } else {
                    gemm.run::<S, false>(simd);
                }
            }
        }
    }

    #[test]
    fn every_vector_count_multiplies_exactly() {
        // Small integers: f32 holds every product and sum exactly.
        let a: Vec<f32> = (0..DEPTH * ROWS).map(|x| (x % 7) as f32 - 3.0).collect();
        for columns in (1..=9).map(|blocks| blocks * 16) {
            let b: Vec<f32> = (0..DEPTH * columns).map(|x| (x % 5) as f32 - 2.0).collect();
            let mut product = vec![f32::NAN; ROWS * columns];
            let mut without_vectors = product.clone();
            let both = |c| Both {
                a: &a,
                b: &b,
                c,
                columns,
            };
            Arch::new().dispatch(both(&mut product));
            Scalar.vectorize(both(&mut without_vectors));
            for row in 0..ROWS {
                for column in 0..columns {
                    let dot: f32 = (0..DEPTH)
                        .map(|d| a[d * ROWS + row] * b[d * columns + column])
                        .sum();
                    let place = row * columns + column;
                    assert_eq!(product[place], 2.0 * dot, "{row} {column}");
                    assert_eq!(without_vectors[place], 2.0 * dot, "{row} {column}");
                }
            }
        }
    }
}
