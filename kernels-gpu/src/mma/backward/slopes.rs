//! The gradient by ALiBi's slopes: a block keeps Q and dO of a tile of queries, passes over K and V, and adds up
//! `dz · distance` of all pairs.
//!
//! dz is dS before a softcap's derivative: it is formed here from products of its own, beside the kernels that compute dq, dk and
//! dv, whichever those are, so that these spend nothing on it. Neither P nor dz is rounded, or multiplied with anything that
//! may not be finite: a tile is computed once.

use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

use super::MmaBackwardKernel;
use super::gemm::product_of_rows;
use super::pairs::{Pairs, column};
use super::passing::Passing;
use super::tile::{Smem, Step, Tile};
use crate::abi::BackwardParams;
use crate::backward::side::Side;
use crate::layout::fragment::{TILE_K, a_row_vec16, k_row_vec16};
use crate::math::fma;
use crate::mma::gemm::LaneAddress;
use crate::tile::black_box;
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
    let mut index = block_idx_x() as u64;
    loop {
        let tiles = K::Side::tiles(&params.attention, K::CONFIG.block_m as u32);
        if index >= tiles.count {
            break;
        }
        // SAFETY: the loop bound is the same for the whole block.
        unsafe {
            let tile = Tile::<K>::new(params, modifiers, tiles.get(index));
            let sum = of_tile::<K, ROWS, COLS>(&tile);
            store_block_sum(sum, sums + index * F32_BYTES as u64);
            // The next tile overwrites shared memory that others may still read.
            sync_threads();
        }
        index += grid_dim_x() as u64;
    }
}

/// The thread's part of a tile's sum.
///
/// # Safety
/// As [`slopes`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn of_tile<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<K>,
) -> f32 {
    let mut passing = Passing::new(tile);
    let mut step = tile.first();
    if let Some(first) = step {
        passing.load_first(first);
    }
    let (mut sum, mut is_first) = (0.0, true);
    while let Some(now) = step {
        passing.pass(step, is_first);
        is_first = false;
        sum += of_block::<K, ROWS, COLS>(tile, &mut passing, now);
        step = tile.next(now);
    }
    sum
}

/// The same of one block of keys. Starts loading the next.
///
/// # Safety
/// As [`of_tile`]; the block is asked for.
#[inline(always)]
unsafe fn of_block<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<K>,
    passing: &mut Passing<K>,
    now: Step,
) -> f32 {
    let thread = black_box(thread_idx_x());
    let (lane, warp) = (thread % WARP_SIZE, thread / WARP_SIZE);
    let pairs = Pairs {
        tile,
        step: now,
        stage: passing.stage,
        lane,
        warp,
    };
    let kept = Smem::kept::<K>();
    let stage = Smem::passing::<K>(passing.stage);
    let products = |kept: u32, passing: u32| {
        let (row, col) = pairs.origin();
        let (a, b) = (a_row_vec16(lane), k_row_vec16(lane));
        let head_dim = K::CONFIG.head_dim;
        let a = LaneAddress::new(kept, head_dim, (row + a.0, a.1));
        let b = LaneAddress::new(passing, head_dim, (col + b.0, b.1));
        // SAFETY: the operands have arrived before it is called.
        unsafe { product_of_rows::<K::Element, ROWS, COLS>(a, b, head_dim / TILE_K) }
    };

    // P = 2^(S − lse)
    passing.wait_first();
    let mut p = products(kept[0], stage[0]);
    passing.load_next(now);
    // dz is without a softcap's derivative.
    pairs.probabilities(&mut p, None);

    // dz = P ∘ (dP − delta)
    passing.wait_second();
    let mut dz = products(kept[1], stage[1]);
    pairs.differentiate(&mut dz, &p, 1.0);
    let sum = pairs.times_distances(&dz);
    passing.release_first(now);
    passing.release_second(now);
    passing.advance();
    sum
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
