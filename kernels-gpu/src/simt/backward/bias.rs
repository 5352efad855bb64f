//! The gradient by a bias: dz of a tile of queries and a block of keys, added up over all heads that share its elements.

use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, reduce_sum};

use super::pairs::Pairs;
use super::score_gradient::{TakeScoreGradient, one_block};
use super::tile::Tile;
use crate::abi::{BackwardParams, BiasGradientParams};
use crate::backward::bias::Owned;
use crate::backward::side::KeepQueries;
use crate::modifiers::Pair;
use crate::simt::{BLOCK_N, LANE_STRIDE, LANES, SCORE_COLS, Scores, SimtKernel, ThreadLayout};
use crate::tile::grid::BlockCoord;
use crate::units::F32_BYTES;

/// Computes the gradient. `WARPS` is the number of a block's warps.
///
/// # Safety
/// `params` and `of` describe live allocations that hold every element they can address, and the launch has the instance's block
/// size and shared memory.
#[inline(always)]
pub unsafe fn bias<K: SimtKernel, const ROWS: usize, const WARPS: u32>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
    of: &BiasGradientParams,
) {
    let block_m = K::CONFIG.block_m() as u32;
    let shape = [block_m, BLOCK_N as u32];
    let owned = Owned::new(of, &params.attention, shape, block_idx_x());
    // SAFETY: the loop bounds are the same for the whole block.
    unsafe {
        let mut sums = Sums {
            biases: owned.biases(modifiers, pair_of_thread::<K>),
            dz: [[0.0; SCORE_COLS]; ROWS],
        };
        let (batches, heads, tiles) = (owned.batches(), owned.heads(), owned.tiles());
        let mut batch = batches.start;
        while batch < batches.end {
            let mut head = heads.start;
            while head < heads.end {
                let mut m_block = tiles.start;
                while m_block < tiles.end {
                    let coord = BlockCoord {
                        m_block,
                        head,
                        batch,
                    };
                    let tile = Tile::with_modifiers(params, modifiers, coord, block_m);
                    one_block::<K, KeepQueries, ROWS>(&tile, owned.block, &mut sums);
                    // The next tile overwrites shared memory that others may still read.
                    sync_threads();
                    m_block += 1;
                }
                head += 1;
            }
            batch += 1;
        }
        if owned.has_queries() {
            owned.store(&sums.dz, pair_of_thread::<K>);
        } else {
            let smem = shared::dynamic_base();
            store_columns::<K, ROWS>(&sums.dz, smem);
            owned.store_of_keys::<WARPS, { BLOCK_N as u32 }>(smem);
        }
    }
}

/// The pair of the tile and the block that the thread's element `[i][j]` is of.
#[inline(always)]
fn pair_of_thread<K: SimtKernel>(i: usize, j: usize) -> Pair {
    let layout = ThreadLayout::new::<K>(K::thread());
    Pair {
        query: layout.row(i),
        key: layout.lane + (j * LANES) as u32,
    }
}

/// Leaves the sums of the warps' columns at `smem`, those of a warp after those of the warp before.
///
/// # Safety
/// The whole block reaches the same call, and nobody accesses shared memory.
#[inline(always)]
unsafe fn store_columns<K: SimtKernel, const ROWS: usize>(dz: &Scores<ROWS>, smem: u32) {
    let thread = thread_idx_x();
    let part = thread / WARP_SIZE;
    for j in 0..SCORE_COLS {
        let mut sum = 0.0;
        for i in 0..ROWS {
            sum += dz[i][j];
        }
        // Neighbouring lanes have different rows.
        let sum = reduce_sum::<LANE_STRIDE>(sum);
        let Pair { key, .. } = pair_of_thread::<K>(0, j);
        if thread.is_multiple_of(LANE_STRIDE) {
            shared::store(smem + (part * BLOCK_N as u32 + key) * F32_BYTES, sum);
        }
    }
}

/// dz of the thread's pairs, added up, and what is added to their scores.
struct Sums<const ROWS: usize> {
    biases: Scores<ROWS>,
    dz: Scores<ROWS>,
}

impl<K: SimtKernel, const ROWS: usize> TakeScoreGradient<K, KeepQueries, ROWS> for Sums<ROWS> {
    #[inline(always)]
    unsafe fn change(
        &self,
        _: &Pairs<KeepQueries, K::Modifiers>,
        scores: &mut Scores<ROWS>,
        _: ThreadLayout,
    ) {
        for i in 0..ROWS {
            for j in 0..SCORE_COLS {
                scores[i][j] += self.biases[i][j];
            }
        }
    }

    #[inline(always)]
    unsafe fn take(
        &mut self,
        pairs: &Pairs<KeepQueries, K::Modifiers>,
        dz: &Scores<ROWS>,
        layout: ThreadLayout,
    ) {
        let kept = pairs.tile.extent().kept;
        for i in 0..ROWS {
            let exists = pairs.tile.begin + layout.row(i) < kept;
            for j in 0..SCORE_COLS {
                self.dz[i][j] += if exists { dz[i][j] } else { 0.0 };
            }
        }
    }
}
