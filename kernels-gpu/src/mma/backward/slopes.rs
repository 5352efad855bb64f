//! The gradient by ALiBi's slopes: a block keeps Q and dO of a tile of queries, passes over K and V, and adds up
//! `dz · distance` of all pairs.

use cuda_std::thread::block_idx_x;

use super::MmaBackwardKernel;
use super::pairs::{Pairs, column};
use super::score_gradient::{TakeScoreGradient, each_block};
use super::tile::Tile;
use crate::abi::BackwardParams;
use crate::backward::side::Side;
use crate::math::fma;
use crate::tile::block_sum::store_block_sum;
use crate::units::F32_BYTES;

/// Leaves the sum of every tile of the launch in the f32 array at `sums`, in the order of [`Side::tiles`].
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, `sums` has an element a tile, and the launch has
/// the instance's block size and shared memory. `K` keeps queries and does not scale dS.
#[inline(always)]
pub unsafe fn slopes<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
    sums: u64,
) {
    let index = block_idx_x();
    let coord = K::Side::tiles(&params.attention, K::CONFIG.block_m as u32).get(index);
    // SAFETY: forwarded to the caller; the launch has a block for each tile.
    unsafe {
        let tile = Tile::<K>::new(params, modifiers, coord);
        let mut part = Distances { sum: 0.0 };
        each_block::<K, ROWS, COLS>(&tile, &mut part);
        store_block_sum(part.sum, sums + index as u64 * F32_BYTES as u64);
    }
}

/// The thread's part of a tile's sum.
struct Distances {
    sum: f32,
}

impl<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize> TakeScoreGradient<K, ROWS, COLS>
    for Distances
{
    #[inline(always)]
    unsafe fn take(&mut self, pairs: &Pairs<K>, dz: &[[f32; COLS]; ROWS]) {
        self.sum += pairs.times_distances(dz);
    }
}

impl<K: MmaBackwardKernel> Pairs<'_, K> {
    /// `Σ dz · distance` of the lane's part, of rows that exist; other rows may hold anything.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    unsafe fn times_distances<const ROWS: usize, const COLS: usize>(
        &self,
        dz: &[[f32; COLS]; ROWS],
    ) -> f32 {
        let extent = self.tile.extent();
        let diagonal = extent.diagonal - self.first_column() as i32;
        let mut sum = 0.0;
        for i in 0..ROWS {
            let row = self.row(i);
            let mut of_row = 0.0;
            for j in 0..COLS {
                let keys = (row as i32 + diagonal - column(j)).unsigned_abs() as f32;
                of_row = fma(dz[i][j], keys, of_row);
            }
            sum += if row < extent.kept { of_row } else { 0.0 };
        }
        sum
    }
}
