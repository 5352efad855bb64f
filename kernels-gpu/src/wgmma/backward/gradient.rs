//! From a warpgroup's sum of one gradient to global memory.

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::math::fma;
use cuda_std::warp::{any, sync_warp, uniform};

use super::tile::Tile;
use crate::backward::careful::{Code, Head, Which};
use crate::backward::side::Side;
use crate::config::wgmma::WARP_ROWS;
use crate::layout::fragment::ROW_STEP;
use crate::modifiers::Modifiers;
use crate::tile::element::Element;
use crate::tile::quad::{QUAD, transposed};
use crate::units::HALF_BYTES;
use crate::wgmma::forward::lanes::{Lanes, VEC16_ELEMS};

/// The row of the tile that lies in row `row` of the warpgroup's sum, where that is the same.
#[inline(always)]
pub fn contiguous_rows(row: u32) -> u32 {
    row
}

/// A gradient that one warpgroup sums.
pub struct Gradient<'a, S, M> {
    pub tile: &'a Tile<'a, S, M>,
    /// The gradient is so many times the sum.
    pub scale: f32,
    pub which: Which,
    /// What computes rows again.
    pub code: Code,
}

impl<S: Side, M: Modifiers> Gradient<'_, S, M> {
    /// Stores `scale · sum`, zeros to rows that the sequence leaves unused; `row_of` gives the tile's row that a row of the
    /// sum is. Where one is not finite, the warp's rows are computed again with care.
    ///
    /// # Safety
    /// The tile is one of the launch; all threads of the warpgroup that has the sum call it.
    #[inline(always)]
    pub unsafe fn store<E: Half + Element, const SUM_REGS: usize>(
        &self,
        sum: &[f32; SUM_REGS],
        lanes: Lanes,
        row_of: impl Fn(u32) -> u32,
    ) {
        // 0 times what is not finite is NaN.
        let mut zero = 0.0;
        for i in 0..SUM_REGS {
            zero = fma(sum[i], 0.0, zero);
        }
        for h in 0..2 {
            let row = self.tile.begin() + row_of(lanes.row() + h as u32 * ROW_STEP);
            self.store_row::<E, SUM_REGS>(sum, h, row, lanes);
        }
        if any(zero != 0.0) {
            // Other lanes overwrite what was stored.
            sync_warp();
            self.repair::<E>(lanes, row_of);
        }
    }

    /// Computes the warp's rows again.
    ///
    /// # Safety
    /// As [`Gradient::store`], of a warp.
    #[inline(always)]
    unsafe fn repair<E: Half + Element>(&self, lanes: Lanes, row_of: impl Fn(u32) -> u32) {
        let tile = self.tile;
        let head = Head {
            params: tile.params,
            modifiers: tile.modifiers,
            sequence: &tile.sequence(),
            extent: tile.extent(),
            batch: tile.batch(),
            head: tile.head(),
            code: self.code,
        };
        let mut of_warp = 0;
        while of_warp < WARP_ROWS {
            // The same in the whole warp, which nobody sees where rows are not contiguous.
            let row = tile.begin() + uniform(row_of(lanes.warp * WARP_ROWS + of_warp));
            if row < head.extent.kept {
                head.compute::<E, S>(row, lanes.lane, self.which);
            }
            of_warp = self.code.next(of_warp);
        }
    }

    /// Stores one of the thread's two rows.
    ///
    /// # Safety
    /// As [`Gradient::store`].
    #[inline(always)]
    unsafe fn store_row<E: Half, const SUM_REGS: usize>(
        &self,
        sum: &[f32; SUM_REGS],
        h: usize,
        row: u32,
        lanes: Lanes,
    ) {
        let tile = self.tile;
        let (tensor, dims) = self.which.tensor::<S>(tile.params);
        let start = S::kept_address(&tile.sequence(), tensor, tile.head(), HALF_BYTES);
        let offset = row as i64 * tensor.seq_stride * HALF_BYTES as i64;
        let start = start.wrapping_add_signed(offset);
        // Not by a scale of 0: what lies in rows that are not used need not be finite. Of queries, all that are written are used.
        let is_used = !S::HAS_SECOND || row < tile.extent().kept;
        let is_written = row < tile.rows_written();
        let scaled = |sum: f32| if is_used { sum * self.scale } else { 0.0 };
        let lane = lanes.lane % QUAD;
        for i in 0..SUM_REGS / 16 {
            // A pair of each of four vec16s, whose other pairs the quad's other lanes have.
            let pair = |j: usize| {
                let at = 16 * i + 4 * j + 2 * h;
                E::cvt_pair(scaled(sum[at]), scaled(sum[at + 1]))
            };
            let vec16 = transposed([pair(0), pair(1), pair(2), pair(3)], lane);
            let column = (4 * i as u32 + lane) * VEC16_ELEMS;
            if is_written && column < dims {
                global::store4_bits(start + (column * HALF_BYTES) as u64, vec16);
            }
        }
    }
}
