//! The gradient by a bias: a block keeps K and V of a tile of keys, passes over Q and dO, and writes dz of all pairs, or adds it up.

use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::warp::reduce_sum;

use super::MmaBackwardKernel;
use super::pairs::{Pairs, column};
use super::score_gradient::{TakeScoreGradient, each_block};
use super::tile::Tile;
use crate::abi::{BackwardParams, BiasGradientParams};
use crate::backward::bias::{Elements, Owned, owners};
use crate::backward::side::{KeepKeys, Side};
use crate::layout::fragment::ROW_STEP;

/// Lanes that have parts of one row of a fragment.
const ROW_LANES: u32 = 4;

/// Computes the gradient.
///
/// # Safety
/// `params` and `of` describe live allocations that hold every element they can address, and the launch has the instance's block
/// size and shared memory. `K` keeps keys and does not scale dS.
#[inline(always)]
pub unsafe fn bias<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
    of: &BiasGradientParams,
) {
    let attention = &params.attention;
    let block_m = K::CONFIG.block_m as u32;
    let owned = Owned::new(owners(of, attention, block_m).get(block_idx_x()));
    // SAFETY: the loop bounds are the same for the whole block.
    unsafe {
        let begin = KeepKeys::coord(owned.tile(0, 0), attention, block_m).m_block * block_m;
        owned.fill(of, attention, [begin, block_m]);
        let (batches, heads) = (owned.batches(of, attention), owned.heads(of, attention));
        let mut batch = batches.start;
        while batch < batches.end {
            let mut head = heads.start;
            while head < heads.end {
                let tile = Tile::<K>::new(params, modifiers, owned.tile(batch, head));
                each_block::<K, ROWS, COLS>(&tile, &mut Writer { of });
                // The next tile overwrites shared memory that others may still read.
                sync_threads();
                head += 1;
            }
            batch += 1;
        }
    }
}

/// Writes dz to the gradient.
struct Writer<'a> {
    of: &'a BiasGradientParams,
}

impl<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize> TakeScoreGradient<K, ROWS, COLS>
    for Writer<'_>
{
    #[inline(always)]
    unsafe fn take(&mut self, pairs: &Pairs<K>, dz: &[[f32; COLS]; ROWS]) {
        let extent = pairs.tile.extent();
        let at = pairs.tile.place(pairs.step);
        let elements = Elements::new(self.of, &at, pairs.pair(0, 0));
        if self.of.queries == 1 {
            pairs.add_rows(elements, dz);
            return;
        }
        let (tile, step) = (pairs.tile, pairs.step);
        let all_queries = step.begin + K::CONFIG.block_n as u32 <= extent.passing;
        if all_queries && tile.begin + K::CONFIG.block_m as u32 <= extent.kept {
            let mut queries = [0; COLS];
            for j in 0..COLS {
                queries[j] = column(j) as u32;
            }
            for i in 0..ROWS {
                elements.put_all(queries, i as u32 * ROW_STEP, &dz[i]);
            }
            return;
        }
        for j in 0..COLS {
            let query = pairs.first_column() + column(j) as u32;
            for i in 0..ROWS {
                if query < extent.passing && pairs.row(i) < extent.kept {
                    // SAFETY: the pair exists, and is this thread's.
                    unsafe { elements.put([column(j) as u32, i as u32 * ROW_STEP], dz[i][j]) };
                }
            }
        }
    }
}

impl<K: MmaBackwardKernel> Pairs<'_, K> {
    /// Adds the sum of each row, of a key, to its element: the warps that share rows one after the other.
    ///
    /// # Safety
    /// As [`TakeScoreGradient::take`].
    #[inline(always)]
    unsafe fn add_rows<const ROWS: usize, const COLS: usize>(
        &self,
        elements: Elements,
        dz: &[[f32; COLS]; ROWS],
    ) {
        let kept = self.tile.extent().kept;
        let mut sums = [0.0; ROWS];
        for i in 0..ROWS {
            for j in 0..COLS {
                sums[i] += dz[i][j];
            }
            sums[i] = reduce_sum::<ROW_LANES>(sums[i]);
        }
        let cols = K::CONFIG.scores().cols as u32;
        let (_, first) = self.origin();
        let mut col = 0;
        while col < K::CONFIG.block_n as u32 {
            if col == first && self.lane.is_multiple_of(ROW_LANES) {
                for i in 0..ROWS {
                    if self.row(i) < kept {
                        elements.put([0, i as u32 * ROW_STEP], sums[i]);
                    }
                }
            }
            sync_threads();
            col += cols;
        }
    }
}
