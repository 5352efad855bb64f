//! The gradient by a bias: a block keeps K and V of a tile of keys, passes over Q and dO, and writes dz of all pairs, or adds it up.

use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::warp::reduce_sum_strided;

use super::pairs::Pairs;
use super::score_gradient::{TakeScoreGradient, each_block};
use super::tile::Tile;
use crate::abi::{BackwardParams, BiasGradientParams};
use crate::backward::bias::{Elements, Owned, owners};
use crate::backward::side::{KeepKeys, Side};
use crate::modifiers::Pair;
use crate::simt::{BLOCK_N, LANE_STRIDE, LANES, SCORE_COLS, Scores, SimtKernel, ThreadLayout};

/// Computes the gradient.
///
/// # Safety
/// `params` and `of` describe live allocations that hold every element they can address, and the launch has the instance's block
/// size and shared memory.
#[inline(always)]
pub unsafe fn bias<K: SimtKernel, const ROWS: usize>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
    of: &BiasGradientParams,
) {
    let attention = &params.attention;
    let block_m = K::CONFIG.block_m() as u32;
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
                let coord = owned.tile(batch, head);
                let tile = Tile::with_modifiers(params, modifiers, coord, block_m);
                each_block::<K, KeepKeys, ROWS>(&tile, &mut Writer { of });
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

impl<K: SimtKernel, const ROWS: usize> TakeScoreGradient<K, KeepKeys, ROWS> for Writer<'_> {
    #[inline(always)]
    unsafe fn take(
        &mut self,
        pairs: &Pairs<KeepKeys, K::Modifiers>,
        dz: &Scores<ROWS>,
        layout: ThreadLayout,
    ) {
        let extent = pairs.tile.extent();
        let at = pairs.tile.place(pairs.step.head);
        let Pair { query, key } = pairs.pair(layout, 0, 0);
        let elements = Elements::new(self.of, &at, pairs.pair(layout, 0, 0));
        let has_queries = self.of.queries > 1;
        let all_queries = pairs.step.begin + BLOCK_N as u32 <= extent.passing;
        if has_queries
            && all_queries
            && pairs.tile.begin + K::CONFIG.block_m() as u32 <= extent.kept
        {
            let mut queries = [0; SCORE_COLS];
            for j in 0..SCORE_COLS {
                queries[j] = (j * LANES) as u32;
            }
            for i in 0..ROWS {
                elements.put_all(queries, i as u32 * layout.row_groups, &dz[i]);
            }
            return;
        }
        for i in 0..ROWS {
            let keys = i as u32 * layout.row_groups;
            let mut sum = 0.0;
            for j in 0..SCORE_COLS {
                let queries = (j * LANES) as u32;
                sum += dz[i][j];
                if has_queries && query + queries < extent.passing && key + keys < extent.kept {
                    // SAFETY: the pair exists, and is this thread's.
                    unsafe { elements.put([queries, keys], dz[i][j]) };
                }
            }
            // A row is in lanes of one warp.
            let sum = reduce_sum_strided::<{ LANES as u32 }, LANE_STRIDE>(sum);
            if !has_queries && layout.lane == 0 && key + keys < extent.kept {
                elements.put([0, keys], sum);
            }
        }
    }
}
