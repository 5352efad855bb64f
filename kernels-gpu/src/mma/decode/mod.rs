//! Attention to a cache of keys and values: few rows, many keys, bound by memory.
//!
//! | who | does |
//! |---|---|
//! | block | 8 warps; takes items of work until none is left: the keys of a node of the tree ([`crate::tile::kv_tree`]) against a tile of 8 or 16 rows, the queries × heads that share a head of K and V |
//! | warp | copies its eighth of a step's keys, and computes their scores, probabilities and output for all rows, without a look at the other warps; at a chunk's end they merge |
//! | thread | its part of the merged state: of a row of each half, head_dim / 32 components |
//!
//! ```text
//! shared memory   ring     K, V, K, V, … in slots of a part: 16 keys a warp (of codes 32) × up to 128 components
//!                 maxima   [rows][8 warps]
//!                 info     words about the item
//!
//! a step of a warp    S = Q Kᵀ                          rows × its keys; then the next part is copied to where K was
//!                     P = exp2(S − m)                   in registers, where it is the operand that is needed
//!                     Oᵀ += Vᵀ Pᵀ                       so that 8 rows fill an instruction
//! a chunk's end       m, O of the warps → shared        O to where the last V was
//!                     O = Σ O exp2(m − max)             in the order of warps
//! ```
//!
//! A row's maximum moves by its own scores alone, where they are some bits above it, and rows that a step does not move keep their
//! bits: so neighbours in the tile cannot change a row's bits, and neither can anything else of the schedule.
//!
//! | file | holds |
//! |---|---|
//! | `work.rs` | which item a block takes: found from the lengths alone |
//! | `tile.rs` | the item's rows and keys |
//! | `loader.rs` | from pages to the ring |
//! | `step.rs` | scores, probabilities, output of a warp's keys of a step |
//! | `codes/` | the same products with K and V of e4m3 codes |
//! | `merge.rs` | a chunk's end: the warps' states become one |
//! | `reduce.rs` | a node: steps to chunks, chunks to the node's state |
//! | `climb.rs` | partial results, and who merges them |
//! | `output.rs` | o and lse |

mod climb;
mod codes;
mod loader;
mod merge;
mod output;
mod reduce;
mod step;
mod tile;
mod work;

use cuda_std::thread::{block_idx_x, sync_threads, sync_threads_or};
use cuda_std::warp::{any, uniform};

use super::Element;
use super::accumulator::Accumulator;
use crate::abi::{CacheScales, DecodeParams};
use crate::config::decode::DecodeConfig;
use climb::{Partials, climb};
use output::finish;
use reduce::reduce;
use tile::{ALL_POSITIONS, Tile};
use work::Work;

/// One instance of a kernel.
///
/// Of the const generics that go with it, `HALVES` are the configuration's `halves`, `O_COLS` its `output_cols`, `S_COLS` its `score_cols`, `D_STEPS` the head_dim
/// over 16, `KEPT` the copies that may be unfinished when a part is waited for: one less than the ring's slots.
pub trait DecodeKernel {
    const CONFIG: DecodeConfig;
    /// Of q and o; of K, unless that is e4m3.
    type Element: Element;
    /// Of probabilities and V when they are multiplied: f16 beside an e4m3 cache.
    type Weight: Element;
}

/// A thread's part of a tile's state: of row `lane / 4` of each half, its columns, the maximum, and its part of the sum.
type State<const HALVES: usize, const O_COLS: usize> = Accumulator<HALVES, O_COLS>;

/// All items of the launch.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, and the launch has the instance's block size
/// and shared memory.
#[inline(always)]
pub unsafe fn decode<
    K: DecodeKernel,
    const HALVES: usize,
    const O_COLS: usize,
    const D_STEPS: usize,
    const S_COLS: usize,
    const KEPT: usize,
>(
    params: &DecodeParams,
    scales: &CacheScales,
) {
    let work = Work::new(params, K::CONFIG);
    let mut index = uniform(block_idx_x());
    loop {
        work.find(index);
        if index >= work.items() {
            return;
        }
        of_item::<K, HALVES, O_COLS, D_STEPS, S_COLS, KEPT>(&Tile::new(params, scales, K::CONFIG));
        if !work.is_drawn() {
            return;
        }
        index = work.next();
    }
}

/// Computes an item, and merges what is complete with it.
///
/// # Safety
/// As [`decode`]; the whole block calls it with the same tile.
#[inline(always)]
unsafe fn of_item<
    K: DecodeKernel,
    const HALVES: usize,
    const O_COLS: usize,
    const D_STEPS: usize,
    const S_COLS: usize,
    const KEPT: usize,
>(
    tile: &Tile<'_>,
) {
    let mut position = ALL_POSITIONS;
    loop {
        let state = reduce::<K, HALVES, O_COLS, D_STEPS, S_COLS, KEPT>(tile, position);
        // A value that is not finite may belong to a key that rows of the tile do not see, for which 0 · v is NaN: then the
        // rows of each position are computed alone, and V is 0 where they do not see it.
        if any(position == ALL_POSITIONS && tile.some_see_less())
            && any(sync_threads_or(tile.has_overflowed(&state)))
        {
            position = uniform(tile.positions().0);
            tile.copy_for(position);
            continue;
        }
        let is_row = any(tile.is_row());
        if is_row {
            finish::<K, HALVES, O_COLS>(tile, &state, position);
        } else {
            Partials::new(tile).store(tile.slot(), &state, &tile.has_rows(position));
        }
        if position == ALL_POSITIONS || position == uniform(tile.positions().1) {
            break;
        }
        position += 1;
        // Nobody reads shared memory any more.
        sync_threads();
        tile.copy_for(position);
    }
    if !any(tile.is_row()) {
        climb::<K, HALVES, O_COLS>(tile);
    }
}
