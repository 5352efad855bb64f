//! The gradient by ALiBi's slopes: a block keeps Q and dO of a tile of queries, passes over K and V, and adds up
//! `dz · distance` of all pairs.

use cuda_std::thread::block_idx_x;

use super::pairs::Pairs;
use super::score_gradient::{TakeScoreGradient, each_block};
use super::tile::Tile;
use crate::abi::BackwardParams;
use crate::backward::side::{KeepQueries, Side};
use crate::math::fma;
use crate::modifiers::Modifiers;
use crate::simt::{LANES, SCORE_COLS, Scores, SimtKernel, ThreadLayout};
use crate::tile::block_sum::store_block_sum;
use crate::units::F32_BYTES;

/// Leaves the sum of every tile of the launch in the f32 array at `sums`, in the order of [`Side::tiles`].
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, `sums` has an element a tile, and the launch has
/// the instance's block size and shared memory.
#[inline(always)]
pub unsafe fn slopes<K: SimtKernel, const ROWS: usize>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
    sums: u64,
) {
    let block_m = K::CONFIG.block_m() as u32;
    let index = block_idx_x();
    let coord = KeepQueries::tiles(&params.attention, block_m).get(index);
    let tile = Tile::with_modifiers(params, modifiers, coord, block_m);
    let mut part = Distances { sum: 0.0 };
    // SAFETY: forwarded to the caller; the launch has a block for each tile.
    unsafe {
        each_block::<K, KeepQueries, ROWS>(&tile, &mut part);
        store_block_sum(part.sum, sums + index as u64 * F32_BYTES as u64);
    }
}

/// The thread's part of a tile's sum.
struct Distances {
    sum: f32,
}

impl<K: SimtKernel, const ROWS: usize> TakeScoreGradient<K, KeepQueries, ROWS> for Distances {
    #[inline(always)]
    unsafe fn take(
        &mut self,
        pairs: &Pairs<KeepQueries, K::Modifiers>,
        dz: &Scores<ROWS>,
        layout: ThreadLayout,
    ) {
        self.sum += pairs.times_distances(dz, layout);
    }
}

impl<M: Modifiers> Pairs<'_, KeepQueries, M> {
    /// `Σ dz · distance` of the thread's part.
    ///
    /// # Safety
    /// As [`Pairs::differentiate`].
    #[inline(always)]
    unsafe fn times_distances<const ROWS: usize>(
        &self,
        dz: &Scores<ROWS>,
        layout: ThreadLayout,
    ) -> f32 {
        let extent = self.tile.extent();
        let diagonal = extent.diagonal - (self.step.begin + layout.lane) as i32;
        let mut sum = 0.0;
        for i in 0..ROWS {
            let row = self.tile.begin + layout.row(i);
            let mut of_row = 0.0;
            for j in 0..SCORE_COLS {
                let column = (j * LANES) as i32;
                let keys = (row as i32 + diagonal - column).unsigned_abs() as f32;
                of_row = fma(dz[i][j], keys, of_row);
            }
            sum += if row < extent.kept { of_row } else { 0.0 };
        }
        sum
    }
}
