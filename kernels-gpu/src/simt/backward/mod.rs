//! Backward attention in fp32 on CUDA cores.
//!
//! One loop, run twice: a block *keeps* rows of one side and *passes* over the blocks of the other.
//!
//! | kernel | keeps | passes over | sums |
//! |---|---|---|---|
//! | dk, dv ([`KeepKeys`](crate::backward::side::KeepKeys)) | K, V | Q, dO of every query head that shares them | dK += dSᵀ Q, dV += Pᵀ dO |
//! | dq ([`KeepQueries`](crate::backward::side::KeepQueries)) | Q, dO | K, V | dQ += dS K |
//!
//! Scores are computed in both, seven matrix products for five; in return every gradient is summed by one thread in one
//! order, without atomics, and nothing is stored in between ([`split`] stores dS, where there is room for it). Each block of the passing side takes, with `A` and `B` the two
//! operands that are kept and `a` and `b` those that pass (Q and dO or K and V),
//!
//! ```text
//! dP = B bᵀ       dP − delta waits in shared memory, each element with the thread that computed it
//! S  = A aᵀ       P = 2^(S − lse), dS = P ∘ (dP − delta), which takes the place of dP
//! dA += dS a      dQ or dK
//! dB += P b       dV; P follows dS into shared memory
//! ```
//!
//! ```text
//! shared memory   A, B    [block_m][head_dim + pad]
//!                 p_smem  [block_m][block_n + pad]      rows are private to the lanes of a row
//!                 stage 0, stage 1                      a, b by dimensions [block_n][k_chunk + pad] or by rows
//!                                                       [v_chunk][head_dim]
//! ```

mod bias;
mod epilogue;
mod pairs;
mod passing;
mod score_gradient;
mod slopes;
pub mod split;
mod tile;

use cuda_std::shared;
use cuda_std::thread::block_idx_x;
use cuda_std::warp::sync_warp;

pub use self::bias::bias;
use self::pairs::{Pairs, store_difference};
use self::passing::{Operand, Passing, Step};
pub use self::slopes::slopes;
use self::tile::Tile;
use super::gemm::{pv_maybe_masked, qk, store_p};
use super::{SCORE_COLS, Scores, SimtKernel, ThreadLayout};
use crate::abi::BackwardParams;
use crate::backward::side::Side;
use crate::units::F32_BYTES;

/// One pass, a tile a block. `ROWS` and `COLS` are the configuration's `thread_rows` and `output_cols`.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the instance's block
/// size and shared memory.
#[inline(always)]
pub unsafe fn backward<K: SimtKernel, S: Side, const ROWS: usize, const COLS: usize>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
) {
    let block_m = K::CONFIG.block_m() as u32;
    let coord = S::tiles(&params.attention, block_m).get(block_idx_x());
    let tile = Tile::with_modifiers(params, modifiers, coord, block_m);
    // SAFETY: forwarded to the caller; the launch has a block for each tile.
    unsafe { backward_tile::<K, S, ROWS, COLS>(tile) };
}

/// The sums of a tile: dQ, or dK and dV.
struct Sums<const ROWS: usize, const COLS: usize> {
    first: [[f32; COLS]; ROWS],
    second: [[f32; COLS]; ROWS],
}

/// Computes the gradients of one tile of rows.
///
/// # Safety
/// As [`backward`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn backward_tile<K: SimtKernel, S: Side, const ROWS: usize, const COLS: usize>(
    tile: Tile<S, K::Modifiers>,
) {
    if tile.begin >= tile.rows_written() {
        return;
    }
    let mut sums = Sums {
        first: [[0.0; COLS]; ROWS],
        second: [[0.0; COLS]; ROWS],
    };
    let smem = Smem::of::<K>();
    let mut passing = Passing::<K, S>::new(&tile, smem.stages);
    if let Some(first) = passing.first() {
        passing.load_kept(smem.kept[0], Operand::First);
        passing.load_kept(smem.kept[1], Operand::Second);
        passing.load_dims(passing.stages.first(), Operand::Second, first, 0);
        let mut step = Some(first);
        while let Some(now) = step {
            let next = passing.next(now);
            one_block(&tile, &mut passing, &mut sums, &smem, now, next);
            step = next;
        }
    }
    let layout = ThreadLayout::new::<K>(K::thread());
    epilogue::store(&tile, layout, &sums.first, &sums.second);
}

/// Where a tile's operands are in shared memory.
struct Smem {
    /// Of the two operands that are kept.
    kept: [u32; 2],
    p: u32,
    stages: u32,
}

impl Smem {
    #[inline(always)]
    fn of<K: SimtKernel>() -> Self {
        let base = shared::dynamic_base();
        Self {
            kept: [base, base + K::CONFIG.p_offset()],
            p: base + K::CONFIG.backward_p_offset(),
            stages: base + K::CONFIG.backward_stages_offset(),
        }
    }
}

/// Takes one block of the passing side. Starts loading the block `next`.
///
/// # Safety
/// As [`backward_tile`]; the first chunk of the block's second operand is asked for.
#[inline(always)]
unsafe fn one_block<K: SimtKernel, S: Side, const ROWS: usize, const COLS: usize>(
    tile: &Tile<S, K::Modifiers>,
    passing: &mut Passing<K, S>,
    sums: &mut Sums<ROWS, COLS>,
    smem: &Smem,
    now: Step,
    next: Option<Step>,
) {
    let thread = || ThreadLayout::new::<K>(K::thread());
    let pairs = Pairs {
        tile,
        step: now,
        p_smem: smem.p,
    };

    // dP = B bᵀ
    let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
    by_dims(
        passing,
        &mut acc,
        smem.kept[1],
        Operand::Second,
        now,
        |passing, free| {
            passing.load_dims(free, Operand::First, now, 0);
        },
    );
    // The lanes of a row multiplied with their rows of P.
    sync_warp();
    pairs.drop_gradients(&mut acc, thread());
    store_difference(&pairs, &acc, thread());

    // S = A aᵀ
    let mut acc: Scores<ROWS> = [[0.0; SCORE_COLS]; ROWS];
    by_dims(
        passing,
        &mut acc,
        smem.kept[0],
        Operand::First,
        now,
        |passing, free| {
            passing.load_rows(free, Operand::First, now, 0);
        },
    );
    let needs_mask = pairs.differentiate(&mut acc, thread());
    sync_warp();

    // dA += dS a
    by_rows(
        passing,
        &mut sums.first,
        smem.p,
        Operand::First,
        now,
        needs_mask,
        |passing, free| {
            if S::HAS_SECOND {
                passing.load_rows(free, Operand::Second, now, 0);
            } else if let Some(next) = next {
                passing.load_dims(free, Operand::Second, next, 0);
            }
        },
    );

    // dB += P b
    if S::HAS_SECOND {
        pairs.drop_pairs(&mut acc, thread());
        sync_warp();
        store_p(&acc, smem.p, thread());
        sync_warp();
        by_rows(
            passing,
            &mut sums.second,
            smem.p,
            Operand::Second,
            now,
            needs_mask,
            |passing, free| {
                if let Some(next) = next {
                    passing.load_dims(free, Operand::Second, next, 0);
                }
            },
        );
    }
}

/// `acc += kept · operandᵀ`, chunk by chunk of dimensions; `then` starts loading what comes after, to a free stage.
///
/// # Safety
/// As [`one_block`]; the first chunk is asked for.
#[inline(always)]
unsafe fn by_dims<K: SimtKernel, S: Side, const ROWS: usize>(
    passing: &mut Passing<K, S>,
    acc: &mut Scores<ROWS>,
    kept: u32,
    operand: Operand,
    now: Step,
    then: impl FnOnce(&Passing<K, S>, u32),
) {
    let dims = passing.dims(operand);
    let k_chunk = K::CONFIG.k_chunk as u32;
    let chunks = dims.div_ceil(k_chunk);
    let layout = ThreadLayout::new::<K>(K::thread());
    let mut chunk = 0;
    while chunk + 1 < chunks {
        let free = passing.stages.wait();
        passing.load_dims(free, operand, now, chunk + 1);
        let kept = kept + chunk * k_chunk * F32_BYTES;
        qk::<K, ROWS>(acc, kept, passing.stages.chunk_smem(), layout, k_chunk);
        passing.stages.advance();
        chunk += 1;
    }
    let free = passing.stages.wait();
    then(passing, free);
    let kept = kept + chunk * k_chunk * F32_BYTES;
    qk::<K, ROWS>(
        acc,
        kept,
        passing.stages.chunk_smem(),
        layout,
        dims - chunk * k_chunk,
    );
    passing.stages.advance();
}

/// `sum += P · operand`, chunk by chunk of rows; `then` starts loading what comes after, to a free stage.
///
/// # Safety
/// As [`one_block`]; the first chunk is asked for, and P is stored.
#[inline(always)]
unsafe fn by_rows<K: SimtKernel, S: Side, const ROWS: usize, const COLS: usize>(
    passing: &mut Passing<K, S>,
    sum: &mut [[f32; COLS]; ROWS],
    p_smem: u32,
    operand: Operand,
    now: Step,
    needs_mask: bool,
    then: impl FnOnce(&Passing<K, S>, u32),
) {
    let v_chunk = K::CONFIG.v_chunk() as u32;
    let rows = passing.rows(now);
    let chunks = rows.div_ceil(v_chunk);
    let layout = ThreadLayout::new::<K>(K::thread());
    let mut multiply = |passing: &Passing<K, S>, chunk: u32| {
        let begin = chunk * v_chunk;
        let p_chunk = p_smem + begin * F32_BYTES;
        let rows = (rows - begin).min(v_chunk);
        let smem = passing.stages.chunk_smem();
        pv_maybe_masked::<K, _, _>(sum, p_chunk, smem, layout, rows, needs_mask);
    };
    let mut chunk = 0;
    while chunk + 1 < chunks {
        let free = passing.stages.wait();
        passing.load_rows(free, operand, now, chunk + 1);
        multiply(passing, chunk);
        passing.stages.advance();
        chunk += 1;
    }
    let free = passing.stages.wait();
    then(passing, free);
    multiply(passing, chunk);
    passing.stages.advance();
}
