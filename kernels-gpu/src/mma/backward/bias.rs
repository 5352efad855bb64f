//! The gradient by a bias: dz of a tile of queries and a block of keys, added up over all heads that share its elements.

use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, reduce_sum_strided};

use super::MmaBackwardKernel;
use super::pairs::{Pairs, column};
use super::score_gradient::{TakeScoreGradient, each_block};
use super::tile::Tile;
use crate::abi::{BackwardParams, BiasGradientParams};
use crate::backward::bias::Owned;
use crate::layout::fragment::{ROW_STEP, row_column};
use crate::modifiers::Pair;
use crate::tile::black_box;
use crate::tile::grid::BlockCoord;
use crate::units::F32_BYTES;

/// Lanes that have parts of one row of a fragment, and those that have parts of one column.
const ROW_LANES: u32 = 4;
const COLUMN_LANES: u32 = WARP_SIZE / ROW_LANES;

/// Computes the gradient. `WARPS_M` is the number of rows of the grid of warps over scores, and `KEYS` that of a block's keys.
///
/// # Safety
/// `params` and `of` describe live allocations that hold every element they can address, and the launch has the instance's block
/// size and shared memory. `K` keeps queries and does not scale dS.
#[inline(always)]
pub unsafe fn bias<
    K: MmaBackwardKernel,
    const ROWS: usize,
    const COLS: usize,
    const WARPS_M: u32,
    const KEYS: u32,
>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
    of: &BiasGradientParams,
) {
    let shape = [K::CONFIG.block_m as u32, KEYS];
    let owned = Owned::new(of, &params.attention, shape, block_idx_x());
    // SAFETY: the loop bounds are the same for the whole block.
    unsafe {
        let mut sums = Sums {
            biases: owned.biases(modifiers, pair_of_thread::<K>),
            dz: [[0.0; COLS]; ROWS],
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
                    let tile = Tile::<K>::new(params, modifiers, coord).only(owned.block);
                    each_block::<K, ROWS, COLS>(&tile, &mut sums);
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
            store_columns::<K, ROWS, COLS, KEYS>(&sums.dz, smem);
            owned.store_of_keys::<WARPS_M, KEYS>(smem);
        }
    }
}

/// The pair of the tile and the block that the thread's element `[i][j]` is of.
#[inline(always)]
fn pair_of_thread<K: MmaBackwardKernel>(i: usize, j: usize) -> Pair {
    let thread = black_box(thread_idx_x());
    let lane = thread % WARP_SIZE;
    let (row, first) = K::CONFIG.scores().origin(thread / WARP_SIZE);
    Pair {
        query: row + lane / ROW_LANES + i as u32 * ROW_STEP,
        key: first + row_column(lane, 0) + column(j) as u32,
    }
}

/// Leaves the sums of the warps' columns at `smem`, those of a row of warps after those of the row before.
///
/// # Safety
/// The whole block reaches the same call, and nobody accesses shared memory.
#[inline(always)]
unsafe fn store_columns<
    K: MmaBackwardKernel,
    const ROWS: usize,
    const COLS: usize,
    const KEYS: u32,
>(
    dz: &[[f32; COLS]; ROWS],
    smem: u32,
) {
    let scores = K::CONFIG.scores();
    let warp = thread_idx_x() / WARP_SIZE;
    let part = scores.origin(warp).0 / scores.rows as u32;
    for j in 0..COLS {
        let mut sum = 0.0;
        for i in 0..ROWS {
            sum += dz[i][j];
        }
        let sum = reduce_sum_strided::<COLUMN_LANES, ROW_LANES>(sum);
        let Pair { key, .. } = pair_of_thread::<K>(0, j);
        if thread_idx_x() % WARP_SIZE < ROW_LANES {
            shared::store(smem + (part * KEYS + key) * F32_BYTES, sum);
        }
    }
}

/// dz of the thread's pairs, added up, and what is added to their scores.
struct Sums<const ROWS: usize, const COLS: usize> {
    biases: [[f32; COLS]; ROWS],
    dz: [[f32; COLS]; ROWS],
}

impl<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize> TakeScoreGradient<K, ROWS, COLS>
    for Sums<ROWS, COLS>
{
    #[inline(always)]
    unsafe fn weights(&self, pairs: &Pairs<K>, s: &mut [[f32; COLS]; ROWS]) {
        pairs.weights_of_biased(s, &self.biases);
    }

    #[inline(always)]
    unsafe fn take(&mut self, pairs: &Pairs<K>, dz: &[[f32; COLS]; ROWS]) {
        let kept = pairs.tile.extent().kept;
        for i in 0..ROWS {
            let exists = pairs.row(i) < kept;
            for j in 0..COLS {
                self.dz[i][j] += if exists { dz[i][j] } else { 0.0 };
            }
        }
    }
}
