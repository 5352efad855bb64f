//! From the sums in registers to the gradients in global memory.

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::warp::{any, sync_warp};

use super::tile::Tile;
use super::traits::BackwardKernel;
use crate::abi::TensorArg;
use crate::backward::careful::Head;
use crate::backward::side::Side;
use crate::config::wgmma::WARP_ROWS;
use crate::layout::fragment::ROW_STEP;
use crate::tile::element::Element;
use crate::units::HALF_BYTES;
use crate::wgmma::forward::lanes::Lanes;

/// A warpgroup's part of a tile.
pub struct Epilogue<'a, S> {
    pub tile: &'a Tile<'a, S>,
    /// First kept row of the warpgroup, of the tile.
    pub kept_begin: u32,
    pub lanes: Lanes,
}

impl<S: Side> Epilogue<'_, S> {
    /// Stores dQ, or dK and dV. Where one is not finite, the warp's rows are computed again with care.
    ///
    /// # Safety
    /// As [`consume`](super::consumer::consume).
    #[inline(always)]
    pub unsafe fn store<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>(
        &self,
        sum_first: &[f32; SUM_REGS],
        sum_second: &[f32; SUM_REGS],
    ) where
        K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    {
        let mut is_finite = true;
        for i in 0..SUM_REGS {
            is_finite &= sum_first[i].is_finite();
            if S::HAS_SECOND {
                is_finite &= sum_second[i].is_finite();
            }
        }
        let params = self.tile.params;
        let scale = params.attention.score.softmax_scale;
        let (dims, dims_v) = (params.attention.head_dim, params.attention.head_dim_v);
        if S::HAS_SECOND {
            self.store_one::<K::Element, SUM_REGS>(&params.dk, dims, sum_first, scale);
            self.store_one::<K::Element, SUM_REGS>(&params.dv, dims_v, sum_second, 1.0);
        } else {
            self.store_one::<K::Element, SUM_REGS>(&params.dq, dims, sum_first, scale);
        }
        if any(!is_finite) {
            // Other lanes overwrite what was stored.
            sync_warp();
            self.repair::<K::Element>();
        }
    }

    /// Computes the warp's rows again.
    ///
    /// # Safety
    /// As [`Epilogue::store`], of a warp.
    #[inline(always)]
    unsafe fn repair<E: Half + Element>(&self) {
        let (tile, lanes) = (self.tile, self.lanes);
        let head = Head {
            params: tile.params,
            sequence: &tile.sequence(),
            extent: tile.extent(),
            batch: tile.batch(),
            head: tile.head(),
        };
        let mut row = tile.begin() + self.kept_begin + lanes.warp * WARP_ROWS;
        let end = (row + WARP_ROWS).min(tile.extent().kept);
        while row < end {
            head.compute::<E, S>(row, lanes.lane);
            row += 1;
        }
    }

    /// Stores `scale · sum` to the rows of one gradient; rows that the sequence leaves unused get zeros.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    unsafe fn store_one<E: Half, const SUM_REGS: usize>(
        &self,
        gradient: &TensorArg,
        dims: u32,
        sum: &[f32; SUM_REGS],
        scale: f32,
    ) {
        let Self {
            tile,
            kept_begin,
            lanes,
        } = self;
        let (head, sequence) = (tile.head(), tile.sequence());
        let start = S::kept_address(&sequence, gradient, head, HALF_BYTES);
        let (kept, rows_written) = (tile.extent().kept, tile.rows_written());
        for h in 0..2 {
            let row = tile.begin() + kept_begin + lanes.row() + h as u32 * ROW_STEP;
            let offset = row as i64 * gradient.seq_stride * HALF_BYTES as i64;
            let start = start.wrapping_add_signed(offset);
            // Not by a scale of 0: what lies in rows that are not used need not be finite.
            let is_used = row < kept;
            let scaled = |sum: f32| if is_used { sum * scale } else { 0.0 };
            for j in 0..SUM_REGS / 4 {
                let column = 8 * j as u32 + lanes.col();
                let pair = E::cvt_pair(scaled(sum[4 * j + 2 * h]), scaled(sum[4 * j + 2 * h + 1]));
                if row < rows_written && column < dims {
                    global::store_bits(start + (column * HALF_BYTES) as u64, pair);
                }
            }
        }
    }
}
