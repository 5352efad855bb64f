//! fp32 on CUDA cores.
//!
//! | file | holds |
//! |---|---|
//! | `forward.rs` | forward: the FlashAttention-2 loop |
//! | `backward/` | backward: dk and dv of a block of keys, dq of a block of queries, with all scores computed twice or dS stored |
//! | `context.rs` | the tile of queries that a block works on |
//! | `kv_loader.rs` | the pipeline that K and V arrive through |
//! | `stages.rs` | the pipeline's two stages |
//! | `gemm.rs` | the two matrix products of a block of keys |
//! | `copy.rs` | from global to shared memory |
//! | `epilogue.rs` | o and lse |

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`. Where more has to be
// shown, an unsafe block says what.
#![allow(unsafe_op_in_unsafe_fn)]

mod backward;
mod context;
mod copy;
mod epilogue;
mod forward;
mod gemm;
mod kv_loader;
mod stages;

use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::WARP_SIZE;

use crate::config::simt::SimtConfig;
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::tile::mask::MASKED_OUT;
use crate::tile::row_state::RowState;

pub use backward::{backward, bias, slopes, split};
pub use forward::forward;

const LANES: usize = SimtConfig::LANES_PER_ROW;
/// Distance in a warp between two lanes of a row; the lanes between them are the next row's.
///
/// Shared memory serves the 16-byte loads of half a warp at once where neighbouring lanes, or every other two, ask for the same
/// bytes. Lanes that differ in their lowest bit share a column, and those that differ in another share a row: so both operands'
/// loads take two accesses, where a half-warp to a row takes four for its columns.
const LANE_STRIDE: u32 = 32 / LANES as u32;
const BLOCK_N: usize = SimtConfig::BLOCK_N;
const SCORE_COLS: usize = SimtConfig::SCORE_COLS;

/// One instance of a kernel, or the part of it that a group of the block's threads runs.
pub trait SimtKernel {
    const CONFIG: SimtConfig;
    type Modifiers: Modifiers;
    /// Whether the products load the row operand's fragments a step ahead of their use, which takes registers: a second set of them.
    const LOADS_AHEAD: bool = false;

    /// This thread's number among those that share the work, `CONFIG.threads` of them.
    #[inline(always)]
    fn thread() -> u32 {
        black_box(thread_idx_x())
    }

    /// [`thread`](Self::thread), among how many.
    #[inline(always)]
    fn workers() -> Workers {
        Workers {
            thread: Self::thread(),
            count: Self::CONFIG.threads,
        }
    }

    /// Waits for all that share the work.
    ///
    /// # Safety
    /// They all reach the same call.
    #[inline(always)]
    unsafe fn sync() {
        sync_threads();
    }
}

/// A thread among those that share some work.
#[derive(Clone, Copy)]
pub struct Workers {
    thread: u32,
    /// How many; a number known at compile time, once inlined.
    count: u32,
}

/// A thread's part of the score tile: `[row][j]` is column `lane + 16j`.
type Scores<const ROWS: usize> = [[f32; SCORE_COLS]; ROWS];

/// Softmax state of a row.
type Row = RowState<{ LANES as u32 }, { LANE_STRIDE }>;
/// No shift of exponents: f32 results need their last bits.
const SHIFT: f32 = 0.0;

/// Where a thread stands in the block's grid of `row_groups` by [`LANES`] threads.
#[derive(Clone, Copy)]
struct ThreadLayout {
    /// Rows of the grid; a number known at compile time, once inlined.
    row_groups: u32,
    /// Row of the grid; this thread's query rows are `group + i · row_groups`.
    group: u32,
    lane: u32,
}

impl ThreadLayout {
    #[inline(always)]
    fn new<K: SimtKernel>(thread: u32) -> Self {
        Self {
            row_groups: K::CONFIG.row_groups(),
            group: thread / WARP_SIZE * LANE_STRIDE + thread % LANE_STRIDE,
            lane: thread % WARP_SIZE / LANE_STRIDE,
        }
    }

    /// Row `i` of this thread, from the first row of the tile.
    #[inline(always)]
    fn row(&self, i: usize) -> u32 {
        self.group + i as u32 * self.row_groups
    }
}
