//! Backward attention on 16-bit elements by `mma.sync`.
//!
//! One loop for both sides, as in [`crate::simt`]: a block *keeps* rows of one side and *passes* over the blocks of the other.
//! Of the two operands `A`, `B` that are kept and `a`, `b` that pass, each block takes
//!
//! ```text
//! S = A aᵀ        P = 2^(S − lse)            rounded into shared memory
//! dP = B bᵀ       dS = P ∘ (dP − delta)      the same
//! dA += dS a      dB += P b      dq += dSᵀ A, where dq is added up
//! ```
//!
//! | kernel | keeps | passes over | sums |
//! |---|---|---|---|
//! | `dkdv` | K, V | Q, dO of every query head that shares them | dK += dSᵀ Q, dV += Pᵀ dO |
//! | `dq` | Q, dO | K, V | dQ += dS K |
//! | `fused` | as `dkdv` | | and each block's part of dQ, added to f32 in global memory |
//!
//! `dkdv` and `dq` form the scores twice, seven products for five, and repeat bit for bit; `fused` forms them once, and adds in
//! an order that differs between runs.
//!
//! | who | does |
//! |---|---|
//! | warp | a part of each product: the warps form a grid over each result, by which `A`'s and `B`'s fragments are reused |
//! | group of warps | has rows of its own: P and dS pass between its warps alone, and stay in a warp's registers where it is a group |
//! | every thread | copies its share of the next block with `cp.async` while computing on the current one |
//!
//! dq needs dS of all groups, and is computed where a barrier stands anyway: with the next block. Where the configuration
//! `takes_turns`, one half of the warps is half a block behind, and a scheduler has a warp of either half: one multiplies while
//! the other computes P and dS.
//!
//! ```text
//! barrier 0     |               |               |               |
//! first half    | S dP, P dS of 1 | dV dK of 1   | dq of 1, S dP, P dS of 2 | dV dK of 2 ...
//! second half   |               | S dP, P dS of 1 | dq of 1, dV dK of 1      | S dP, P dS of 2 ...
//! ```
//!
//! The first half stores dS of block 2 once the second has read that of block 1 for dq (`TURNS_BARRIER`), and asks for block 2 once
//! the second reads block 0 no more.
//!
//! ```text
//! shared memory   A, B               [block_m][head_dim]; the gradients, in the end
//!                 stage 0 (stage 1)  a, b [block_n][head_dim]
//!                 P, dS (dS again)   [block_m][block_n]
//!                 terms              lse and delta of the queries, f32
//! ```
//!
//! f16 has no room for the range of dS: it is rounded times 2^−κ, where κ is the exponent of the largest |dO| of the head, and
//! the sums are multiplied by 2^κ. Where another query head passes, dK's sums so far are rescaled to its κ.
//!
//! A tile takes the fast path first, and is computed again if that leaves a gradient that is not finite
//! ([`non_finite`]).

mod bias;
mod block;
mod dq;
mod epilogue;
mod gemm;
mod keep_words;
mod non_finite;
mod pairs;
mod passing;
mod score_gradient;
mod slopes;
mod sums;
mod tile;

use cuda_std::half::Half;
use cuda_std::named_barrier;
use cuda_std::thread::{block_idx_x, sync_threads, sync_threads_or};
use cuda_std::warp::{any, lane_id, warp_id};

pub use self::bias::bias;
use self::block::{Block, TURNS_BARRIER};
use self::epilogue::{stage, write};
use self::passing::Passing;
pub use self::slopes::slopes;
use self::sums::{Attempt, Sums};
use self::tile::{Smem, Step, Tile};
use super::element::Element;
use crate::abi::{AttentionParams, BackwardParams};
use crate::backward::side::Side;
use crate::config::mma_backward::MmaBackwardConfig;
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::units::pow2;

/// One instance of a backward kernel.
///
/// Of the const generics that go with it, which size arrays in registers, `S_ROWS` and `S_COLS` are what a lane holds of the
/// configuration's `scores`, `O_ROWS` and `O_COLS` of its `output`, `Q_ROWS` and `Q_COLS` of its `dq`.
pub trait MmaBackwardKernel {
    const CONFIG: MmaBackwardConfig;
    type Element: Element;
    type Side: Side;
    type Modifiers: Modifiers;
    /// Whether dq is added up too, by a kernel that keeps keys.
    const ADDS_DQ: bool;
    /// Whether dS is rounded times a power of two.
    const SCALES_DS: bool = Self::Element::LARGEST_EXPONENT.is_some();
}

/// One pass over all tiles of the launch.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the instance's block
/// size and shared memory.
#[inline(always)]
pub unsafe fn backward<
    K: MmaBackwardKernel,
    const S_ROWS: usize,
    const S_COLS: usize,
    const O_ROWS: usize,
    const O_COLS: usize,
    const Q_ROWS: usize,
    const Q_COLS: usize,
>(
    params: &BackwardParams,
    modifiers: &K::Modifiers,
) {
    let tiles = K::Side::tiles(&params.attention, K::CONFIG.block_m as u32);
    // SAFETY: forwarded to the caller; the launch has a block for each tile.
    unsafe {
        let mut number = block_idx_x();
        if K::ADDS_DQ
            && let Some((first_unit, _)) = modifiers.units()
        {
            number += first_unit * tiles.m_blocks();
        }
        let tile = Tile::<K>::new(params, modifiers, tiles.get(number));
        backward_tile::<K, S_ROWS, S_COLS, O_ROWS, O_COLS, Q_ROWS, Q_COLS>(&tile);
    }
}

/// Computes the gradients of one tile of rows.
///
/// # Safety
/// As [`backward`]; the whole block must call it with the same tile.
#[inline(always)]
unsafe fn backward_tile<
    K: MmaBackwardKernel,
    const S_ROWS: usize,
    const S_COLS: usize,
    const O_ROWS: usize,
    const O_COLS: usize,
    const Q_ROWS: usize,
    const Q_COLS: usize,
>(
    tile: &Tile<K>,
) {
    if any(tile.begin >= tile.rows_written()) {
        return;
    }
    let mut attempt = Attempt::fast();
    let mut sums = Sums::<O_ROWS, O_COLS>::new();
    loop {
        sums.clear::<K>(attempt);
        if attempt.is_careful() {
            attempt.marks::<K>().clear::<K>();
        }
        try_tile::<K, S_ROWS, S_COLS, O_ROWS, O_COLS, Q_ROWS, Q_COLS>(tile, attempt, &mut sums);
        // The barrier also frees shared memory.
        let overflowed = any(sync_threads_or(sums.has_overflowed::<K>()));
        if attempt.is_careful() {
            let marks = attempt.marks::<K>();
            if attempt.takes_first() {
                marks.apply::<K, O_ROWS, O_COLS>(&mut sums.first);
                break;
            }
            marks.apply::<K, O_ROWS, O_COLS>(&mut sums.second);
        } else if !overflowed {
            break;
        }
        attempt = attempt.next::<K>();
    }
    store(tile, &sums);
}

/// Takes all blocks of the passing side.
///
/// # Safety
/// As [`backward_tile`]; nobody accesses shared memory but for marks.
#[inline(always)]
unsafe fn try_tile<
    K: MmaBackwardKernel,
    const S_ROWS: usize,
    const S_COLS: usize,
    const O_ROWS: usize,
    const O_COLS: usize,
    const Q_ROWS: usize,
    const Q_COLS: usize,
>(
    tile: &Tile<K>,
    attempt: Attempt,
    sums: &mut Sums<O_ROWS, O_COLS>,
) {
    let mut passing = Passing::new(tile);
    let mut step = tile.first();
    let Some(first) = step else { return };
    passing.load_first(first);
    let takes_turns = K::CONFIG.takes_turns && !attempt.is_careful();
    let is_late = takes_turns && any(warp_id() >= K::CONFIG.warps / 2);
    if is_late {
        // Half a block behind: the others compute their first scores. There is no dS yet that they would have to leave.
        named_barrier::arrive(TURNS_BARRIER, K::CONFIG.threads());
        passing.wait_all();
    }
    let mut before: Option<Step> = None;
    while step.is_some() || K::ADDS_DQ && before.is_some() && !is_late {
        passing.pass(step, before.is_none());
        if K::ADDS_DQ
            && !attempt.is_careful()
            && !is_late
            && let Some(now) = before
        {
            // dq += dSᵀ A, of the block before: until the barrier, not all of its dS was there.
            let block = Block {
                tile,
                now,
                attempt,
                is_late,
            };
            let [ds_smem, _] = Smem::ds_and_p::<K>(passing.stage ^ 1);
            block.add_dq::<Q_ROWS, Q_COLS>(ds_smem);
        }
        before = step;
        let Some(now) = step else { break };
        passing.wait_first();
        let block = Block {
            tile,
            now,
            attempt,
            is_late,
        };
        block.take::<S_ROWS, S_COLS, O_ROWS, O_COLS, Q_ROWS, Q_COLS>(&mut passing, sums);
        step = tile.next(now);
    }
}

/// Writes the tile's gradients.
///
/// # Safety
/// As [`backward_tile`]; nobody accesses shared memory.
#[inline(always)]
unsafe fn store<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    tile: &Tile<K>,
    sums: &Sums<ROWS, COLS>,
) {
    let params = tile.params;
    let AttentionParams {
        head_dim,
        head_dim_v,
        score,
        ..
    } = params.attention;
    // Where what was kept was, there is room for gradients.
    let [first_smem, second_smem] = Smem::kept::<K>();
    let (warp, lane) = (warp_id(), black_box(lane_id()));
    let mut factor = score.softmax_scale;
    if K::SCALES_DS {
        factor *= pow2(sums.exponent);
    }
    stage::<K, ROWS, COLS>(first_smem, &sums.first, factor, warp, lane);
    if K::Side::HAS_SECOND {
        let factor = tile.modifiers.dropout_scale();
        stage::<K, ROWS, COLS>(second_smem, &sums.second, factor, warp, lane);
    }
    sync_threads();
    if K::Side::HAS_SECOND {
        write(tile, &params.dk, head_dim, first_smem);
        write(tile, &params.dv, head_dim_v, second_smem);
    } else {
        write(tile, &params.dq, head_dim, first_smem);
    }
}
