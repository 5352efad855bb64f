//! A warp's rows: the state of their softmax, and their output before it is normalised.

use cuda_std::math::{exp2, fma};
use cuda_std::warp::any;

use crate::score::ScoreTransform;
use crate::tile::row_state::RowState;

/// Softmax state of a row, which four lanes share.
pub type Row = RowState<4>;

/// A lane's part of a warp's rows.
pub struct Accumulator<const ROWS: usize, const O_COLS: usize> {
    pub rows: [Row; ROWS],
    pub acc_o: [[f32; O_COLS]; ROWS],
}

impl<const ROWS: usize, const O_COLS: usize> Accumulator<ROWS, O_COLS> {
    /// No key seen.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            rows: [Row::new(); ROWS],
            acc_o: [[0.0; O_COLS]; ROWS],
        }
    }

    /// Raises the rows' maxima to the largest scores so far, and rescales what was accumulated to them.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn update_max<const S_COLS: usize>(
        &mut self,
        acc_s: &[[f32; S_COLS]; ROWS],
        transform: &ScoreTransform,
    ) {
        let mut bits = [0.0; ROWS];
        let mut underflows = false;
        for i in 0..ROWS {
            bits[i] = self.rows[i].update_max(Row::block_max(&acc_s[i], transform));
            underflows |= self.rows[i].rescale_underflows(bits[i]);
        }
        if any(underflows) {
            // By the square root of the factor twice, as the factor is too small.
            for bits in &mut bits {
                *bits *= 0.5;
            }
            self.rescale(&bits);
        }
        self.rescale(&bits);
    }

    /// Multiplies what was accumulated by 2^`bits`.
    #[inline(always)]
    fn rescale(&mut self, bits: &[f32; ROWS]) {
        for i in 0..ROWS {
            let factor = exp2(bits[i]);
            self.rows[i].rescale(factor);
            for o in &mut self.acc_o[i] {
                *o *= factor;
            }
        }
    }

    /// Whether a sum or an element of the output has left f32's range, or is NaN.
    #[inline(always)]
    pub fn has_overflowed(&self) -> bool {
        let mut overflowed = false;
        for i in 0..ROWS {
            // A sum of zeros becomes NaN with the first number that is not finite.
            let mut zero = 0.0;
            for o in &self.acc_o[i] {
                zero = fma(*o, 0.0, zero);
            }
            overflowed |= zero != 0.0 || self.rows[i].has_overflowed();
        }
        overflowed
    }
}
