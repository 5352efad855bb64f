//! The gradient by ALiBi's slopes: a block keeps Q and dO of a tile of queries, passes over K and V, and adds up
//! `dz · distance` of all pairs.
//!
//! dz is dS before a softcap's derivative: it is formed here from products of its own, beside the kernels that compute dq, dk and
//! dv, whichever those are, so that these spend nothing on it.

use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads};

use super::pairs::{Pairs, Place, store_difference};
use super::passing::{Operand, Passing, Step};
use super::tile::Tile;
use super::{Smem, by_dims};
use crate::abi::BackwardParams;
use crate::backward::side::{KeepQueries, Side};
use crate::math::fma;
use crate::modifiers::Modifiers;
use crate::simt::{LANES, MASKED_OUT, SCORE_COLS, Scores, SimtKernel, ThreadLayout};
use crate::tile::black_box;
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
    let tiles = KeepQueries::tiles(&params.attention, block_m);
    let mut round = 0u64;
    loop {
        let index = black_box(block_idx_x()) as u64 + round * grid_dim_x() as u64;
        if index >= tiles.count {
            break;
        }
        let tile = Tile::with_modifiers(params, modifiers, tiles.get(index), block_m);
        // SAFETY: the loop bound is the same for the whole block.
        unsafe {
            let sum = of_tile::<K, ROWS>(&tile);
            store_block_sum(sum, sums + index * F32_BYTES as u64);
            // The next tile overwrites shared memory that others may still read.
            sync_threads();
        }
        round += 1;
    }
}

/// The thread's part of a tile's sum.
///
/// # Safety
/// As [`slopes`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn of_tile<K: SimtKernel, const ROWS: usize>(tile: &Tile<KeepQueries, K::Modifiers>) -> f32 {
    let smem = Smem::of::<K>();
    let mut passing = Passing::<K, KeepQueries>::new(tile, smem.stages);
    let mut sum = 0.0;
    let mut step = passing.first();
    if let Some(first) = step {
        passing.load_kept(smem.kept[0], Operand::First);
        passing.load_kept(smem.kept[1], Operand::Second);
        passing.load_dims(passing.stages.first(), Operand::Second, first, 0);
    }
    while let Some(now) = step {
        let next = passing.next(now);
        sum += of_block::<K, ROWS>(tile, &mut passing, &smem, now, next);
        step = next;
    }
    sum
}

/// The same of one block of keys. Starts loading the block `next`.
///
/// # Safety
/// As [`of_tile`]; the first chunk of the block's V is asked for.
#[inline(always)]
unsafe fn of_block<K: SimtKernel, const ROWS: usize>(
    tile: &Tile<KeepQueries, K::Modifiers>,
    passing: &mut Passing<K, KeepQueries>,
    smem: &Smem,
    now: Step,
    next: Option<Step>,
) -> f32 {
    let thread = || ThreadLayout::new::<K>(K::thread());
    let pairs = Pairs {
        tile,
        step: now,
        p_smem: smem.p,
    };

    // dP = dO Vᵀ, of which each thread leaves its own in shared memory.
    let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
    let kept = smem.kept[1];
    by_dims(
        passing,
        &mut acc,
        kept,
        Operand::Second,
        now,
        |passing, free| {
            passing.load_dims(free, Operand::First, now, 0);
        },
    );
    pairs.drop_gradients(&mut acc, thread());
    store_difference(&pairs, &acc, thread());

    // S = Q Kᵀ
    let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
    let kept = smem.kept[0];
    by_dims(
        passing,
        &mut acc,
        kept,
        Operand::First,
        now,
        |passing, free| {
            if let Some(next) = next {
                passing.load_dims(free, Operand::Second, next, 0);
            }
        },
    );
    pairs.times_distances(&mut acc, thread())
}

impl<M: Modifiers> Pairs<'_, KeepQueries, M> {
    /// `Σ dz · distance` of the thread's part: turns `q · k` into P on the way.
    ///
    /// # Safety
    /// As [`Pairs::differentiate`].
    #[inline(always)]
    unsafe fn times_distances<const ROWS: usize>(
        &self,
        acc: &mut Scores<ROWS>,
        layout: ThreadLayout,
    ) -> f32 {
        let extent = self.tile.extent();
        let place = Place::new(self.p_smem, layout);
        let transform = self.transform();
        let first = self.step.begin + layout.lane;
        let row = |i: usize| self.tile.begin + layout.row(i);
        let column = |j: usize| (j * LANES) as i32;
        let diagonal = extent.diagonal - first as i32;
        transform.apply(acc, |i| row(i) as i32 + diagonal, column);
        self.change(acc, layout, |i, j, slope| {
            // SAFETY: the element is this thread's.
            unsafe { place.store(i, j, place.load(i, j) * slope) };
        });
        self.exponentiate(acc, layout, transform.scale_log2);
        self.mask_out(acc, layout);
        let mut sum = 0.0;
        for i in 0..ROWS {
            let mut of_row = 0.0;
            for j in 0..SCORE_COLS {
                // SAFETY: the element is this thread's.
                let dz = unsafe { acc[i][j] * place.load(i, j) };
                let is_masked_out = acc[i][j].to_bits() == MASKED_OUT.to_bits();
                let dz = if is_masked_out { 0.0 } else { dz };
                let keys = (row(i) as i32 + diagonal - column(j)).unsigned_abs() as f32;
                of_row = fma(dz, keys, of_row);
            }
            sum += if row(i) < extent.kept { of_row } else { 0.0 };
        }
        sum
    }
}
