//! The kernel of dk and dv, which leaves dS.
//!
//! A block keeps a tile of K and V, for two groups of threads. In the time in which one multiplies scores, the other
//! multiplies dP; each then holds one sum. Thread `t` of both holds the same pairs of keys and queries.
//!
//! | group | by dimensions | then | by rows |
//! |---|---|---|---|
//! | [`Probabilities`] | S = K Qᵀ | P = 2^(S − lse) to shared memory, with the softcap's slopes in dS's place | dV += P dO |
//! | [`Differences`] | dP = V dOᵀ | dS = P ∘ (dP − delta) to shared memory and to the workspace | dK += dS Q |
//!
//! ```text
//! shared memory   K, V    [block_m][head_dim + pad]
//!                 P, dS   [block_m][block_n + pad]
//!                 stages  two of each group, as in the kernels without groups
//! ```

use cuda_std::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{sync_warp, uniform};
use cuda_std::{global, shared};

use super::super::super::gemm::store_p;
use super::super::super::{
    BLOCK_N, LANES, MASKED_OUT, SCORE_COLS, Scores, SimtKernel, ThreadLayout,
};
use super::super::epilogue::store_sum;
use super::super::pairs::{Pairs, Place};
use super::super::passing::{Passing, Step};
use super::super::tile::Tile;
use super::group::{Differences, Group, Handover, Probabilities, Role};
use super::products::{by_dims, by_rows};
use super::{DS_ROW_BYTES, SplitKeysKernel, ds_tiles};
use crate::abi::BackwardParams;
use crate::backward::side::{KeepKeys, Side};
use crate::math::{exp2, fma};
use crate::tile::grid::longest_first;
use crate::tile::mask;
use crate::units::F32_BYTES;

/// One tile a block. `ROWS` and `COLS` are the group's `thread_rows` and `output_cols`.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the workspace holds the chunk's dS; the
/// launch has a block for each tile of the chunk, and the instance's block size and shared memory.
#[inline(always)]
pub unsafe fn keys<K: SplitKeysKernel, const ROWS: usize, const COLS: usize>(
    params: &BackwardParams,
) {
    let block_m = K::CONFIG.group.block_m() as u32;
    let tiles = KeepKeys::tiles(&params.attention, block_m);
    let tiles_of_unit = params.attention.seq_kv.div_ceil(block_m);
    let (unit, of_unit) = longest_first(block_idx_x(), grid_dim_x(), tiles_of_unit);
    let index = (params.ds.first_unit as u32 + unit) * tiles_of_unit + of_unit;
    let tile = Tile::<KeepKeys>::new(params, tiles.get(index), block_m);
    if tile.begin >= tile.rows_written() {
        return;
    }
    // Whole warps take the branch.
    if uniform(thread_idx_x() / K::CONFIG.group.threads) == Probabilities::INDEX {
        hold_probabilities::<K, ROWS, COLS>(&tile);
    } else {
        hold_differences::<K, ROWS, COLS>(&tile);
    }
}

/// Where a group's operands are in shared memory.
struct Smem {
    kept: u32,
    p: u32,
    ds: u32,
    stages: u32,
}

impl Smem {
    #[inline(always)]
    fn of<K: SplitKeysKernel, R: Role>() -> Self {
        let base = shared::dynamic_base();
        let pairs = base + K::CONFIG.pairs_offset();
        Self {
            kept: base + R::INDEX * K::CONFIG.group.p_offset(),
            p: pairs,
            ds: pairs + K::CONFIG.pairs_bytes(),
            stages: base + K::CONFIG.stages_offset() + R::INDEX * K::CONFIG.stages_bytes(),
        }
    }
}

/// The threads' places in a tile of pairs.
#[inline(always)]
fn layout<K: SplitKeysKernel, R: Role>() -> ThreadLayout {
    ThreadLayout::new::<Group<K, R>>(Group::<K, R>::thread())
}

/// What a group does between its two products of a block of queries, and after them.
trait Work<K: SplitKeysKernel>: Role {
    /// Makes, of the first product, what the second one takes from shared memory. Returns whether some of it is masked out.
    ///
    /// # Safety
    /// All of the group call it, once a block; `is_first` tells the first.
    unsafe fn between<const ROWS: usize>(
        tile: &Tile<KeepKeys>,
        acc: &mut Scores<ROWS>,
        now: Step,
        is_first: bool,
    ) -> bool;

    /// Called when the group has multiplied with that.
    ///
    /// # Safety
    /// All of the group call it, once a block; `is_last` tells the last.
    unsafe fn after(is_last: bool);
}

/// The sum of a group. `pairs_smem` is where the second product takes pairs from.
///
/// # Safety
/// All of the group call it with the same tile, as [`keys`].
#[inline(always)]
unsafe fn pass<K: SplitKeysKernel, R: Work<K>, const ROWS: usize, const COLS: usize>(
    tile: &Tile<KeepKeys>,
    smem: &Smem,
    pairs_smem: u32,
) -> [[f32; COLS]; ROWS] {
    let mut sum = [[0.0; COLS]; ROWS];
    let mut passing = Passing::<Group<K, R>, KeepKeys>::new(tile, smem.stages);
    let Some(first) = passing.first() else {
        return sum;
    };
    passing.load_kept(smem.kept, R::BY_DIMS);
    passing.load_dims(passing.stages.first(), R::BY_DIMS, first, 0);
    let mut is_first = true;
    let mut step = Some(first);
    while let Some(now) = step {
        let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
        by_dims(
            &mut passing,
            &mut acc,
            smem.kept,
            R::BY_DIMS,
            now,
            |passing, free| passing.load_rows(free, R::BY_ROWS, now, 0),
        );
        // The lanes of a row multiplied with their rows of pairs.
        sync_warp();
        let needs_mask = R::between(tile, &mut acc, now, is_first);
        sync_warp();
        by_rows(
            &mut passing,
            &mut sum,
            pairs_smem,
            R::BY_ROWS,
            now,
            needs_mask,
            |passing, free| {
                if let Some(next) = passing.next(now) {
                    passing.load_dims(free, R::BY_DIMS, next, 0);
                }
            },
        );
        // Computed again, as it would take registers in between.
        step = passing.next(now);
        R::after(step.is_none());
        is_first = false;
    }
    sum
}

/// Whether a block of queries has some that a key of the tile does not see.
///
/// # Safety
/// As [`Tile::sequence`].
#[inline(always)]
unsafe fn needs_mask<K: SplitKeysKernel>(tile: &Tile<KeepKeys>, step: Step) -> bool {
    let extent = tile.extent();
    let blocks = tile.blocks(&extent, K::CONFIG.group.block_m() as u32);
    blocks.needs_mask(step.begin, BLOCK_N as u32)
}

impl<K: SplitKeysKernel> Work<K> for Probabilities {
    #[inline(always)]
    unsafe fn between<const ROWS: usize>(
        tile: &Tile<KeepKeys>,
        acc: &mut Scores<ROWS>,
        now: Step,
        is_first: bool,
    ) -> bool {
        let smem = Smem::of::<K, Self>();
        let needs_mask = needs_mask::<K>(tile, now);
        if !is_first {
            Handover::<K>::wait_for_reader();
        }
        probabilities(tile, acc, now, &smem, layout::<K, Self>(), needs_mask);
        store_p(acc, smem.p, layout::<K, Self>());
        Handover::<K>::p_is_there();
        needs_mask
    }

    #[inline(always)]
    unsafe fn after(_: bool) {}
}

/// The group of P and dV.
///
/// # Safety
/// As [`pass`].
#[inline(always)]
unsafe fn hold_probabilities<K: SplitKeysKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<KeepKeys>,
) {
    let smem = Smem::of::<K, Probabilities>();
    let dv = pass::<K, Probabilities, ROWS, COLS>(tile, &smem, smem.p);
    let params = tile.params;
    let (layout, dims) = (layout::<K, Probabilities>(), params.attention.head_dim_v);
    store_sum(tile, layout, &params.dv, dims, &dv, 1.0);
}

/// Turns `q · k` into P, with [`MASKED_OUT`] for pairs that do not meet. With a softcap its slopes go to where dS will be.
///
/// # Safety
/// As [`Tile::sequence`]; nobody else accesses the thread's place in dS.
#[inline(always)]
unsafe fn probabilities<const ROWS: usize>(
    tile: &Tile<KeepKeys>,
    acc: &mut Scores<ROWS>,
    step: Step,
    smem: &Smem,
    layout: ThreadLayout,
    needs_mask: bool,
) {
    let pairs = Pairs {
        tile,
        step,
        p_smem: smem.p,
    };
    let extent = tile.extent();
    let transform = pairs.transform(false);
    let place = Place::new(smem.ds, layout);
    let first = step.begin + layout.lane;
    let row = |i: usize| tile.begin + layout.row(i);
    let column = |j: usize| (j * LANES) as i32;
    let diagonal = extent.diagonal - first as i32;
    transform.apply_with_slope(
        acc,
        |i| row(i) as i32 + diagonal,
        column,
        // SAFETY: forwarded to the caller.
        |i, j, slope| unsafe { place.store(i, j, slope) },
    );
    let lse = pairs.terms::<ROWS>(tile.params.terms.lse_log2, layout);
    for i in 0..ROWS {
        for j in 0..SCORE_COLS {
            let minus_lse = -lse.get::<KeepKeys>(i, j);
            acc[i][j] = exp2(fma(acc[i][j], transform.scale_log2, minus_lse));
        }
    }
    if needs_mask {
        let (band, passing) = (extent.band, extent.passing);
        mask::mark_masked_out(acc, row, first, column, band, passing, MASKED_OUT);
    }
}

impl<K: SplitKeysKernel> Work<K> for Differences {
    #[inline(always)]
    unsafe fn between<const ROWS: usize>(
        tile: &Tile<KeepKeys>,
        acc: &mut Scores<ROWS>,
        now: Step,
        _: bool,
    ) -> bool {
        let smem = Smem::of::<K, Self>();
        let needs_mask = needs_mask::<K>(tile, now);
        subtract_delta(tile, acc, now, layout::<K, Self>());
        Handover::<K>::wait_for_p();
        differences(tile, acc, &smem, layout::<K, Self>(), needs_mask);
        store_p(acc, smem.ds, layout::<K, Self>());
        store_ds::<K, ROWS>(tile, acc, now, layout::<K, Self>());
        needs_mask
    }

    #[inline(always)]
    unsafe fn after(is_last: bool) {
        if !is_last {
            Handover::<K>::p_is_read();
        }
    }
}

/// The group of dS and dK.
///
/// # Safety
/// As [`pass`].
#[inline(always)]
unsafe fn hold_differences<K: SplitKeysKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<KeepKeys>,
) {
    let smem = Smem::of::<K, Differences>();
    let dk = pass::<K, Differences, ROWS, COLS>(tile, &smem, smem.ds);
    let params = tile.params;
    let scale = params.attention.score.softmax_scale;
    let (layout, dims) = (layout::<K, Differences>(), params.attention.head_dim);
    store_sum(tile, layout, &params.dk, dims, &dk, scale);
}

/// `acc −= delta`
///
/// # Safety
/// As [`Tile::sequence`].
#[inline(always)]
unsafe fn subtract_delta<const ROWS: usize>(
    tile: &Tile<KeepKeys>,
    acc: &mut Scores<ROWS>,
    step: Step,
    layout: ThreadLayout,
) {
    let pairs = Pairs {
        tile,
        step,
        p_smem: 0,
    };
    let delta = pairs.terms::<ROWS>(tile.params.terms.delta, layout);
    for i in 0..ROWS {
        for j in 0..SCORE_COLS {
            acc[i][j] -= delta.get::<KeepKeys>(i, j);
        }
    }
}

/// Turns `dP − delta` into dS, with [`MASKED_OUT`] for pairs that do not meet.
///
/// # Safety
/// P is in shared memory, and with a softcap its slopes are.
#[inline(always)]
unsafe fn differences<const ROWS: usize>(
    tile: &Tile<KeepKeys>,
    acc: &mut Scores<ROWS>,
    smem: &Smem,
    layout: ThreadLayout,
    needs_mask: bool,
) {
    let p = Place::new(smem.p, layout);
    if tile.params.attention.score.softcap.is_some() {
        let slopes = Place::new(smem.ds, layout);
        for i in 0..ROWS {
            for j in 0..SCORE_COLS {
                acc[i][j] *= slopes.load(i, j);
            }
        }
    }
    for i in 0..ROWS {
        for j in 0..SCORE_COLS {
            let p = p.load(i, j);
            let is_masked_out = needs_mask && p.to_bits() == MASKED_OUT.to_bits();
            // Adding 0 makes −0, which would be taken for the mark, +0.
            let ds = p * acc[i][j] + 0.0;
            acc[i][j] = if is_masked_out { MASKED_OUT } else { ds };
        }
    }
}

/// Leaves dS in the workspace.
///
/// # Safety
/// The workspace holds the chunk's dS, of which the tile's is the group's.
#[inline(always)]
unsafe fn store_ds<K: SplitKeysKernel, const ROWS: usize>(
    tile: &Tile<KeepKeys>,
    ds: &Scores<ROWS>,
    step: Step,
    layout: ThreadLayout,
) {
    let params = tile.params;
    let tiles = ds_tiles(&params.attention, &K::CONFIG);
    let unit = tile.coord.batch * params.attention.heads_kv + tile.coord.head;
    let unit = unit as u64 - params.ds.first_unit;
    let head = step.head - tile.coord.head * tiles.group;
    let (q_block, kv_block) = (step.begin / BLOCK_N as u32, tile.coord.m_block);
    let start = params.ds.tiles.map_or(0, |address| address.get());
    let address = start + tiles.offset(unit, head, q_block, kv_block);
    let address = address + (layout.row(0) * DS_ROW_BYTES + layout.lane * F32_BYTES) as u64;
    for i in 0..ROWS {
        let row = i as u32 * layout.row_groups * DS_ROW_BYTES;
        for j in 0..SCORE_COLS {
            let offset = row + (j * LANES) as u32 * F32_BYTES;
            // SAFETY: forwarded to the caller.
            unsafe { global::store(address + offset as u64, ds[i][j]) };
        }
    }
}
