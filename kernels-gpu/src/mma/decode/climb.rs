//! Partial results, and their merging: whoever finishes the last child of a node merges all of them, in the tree's order and
//! not in that of their arrival, and goes on from there.
//!
//! A partial result lies as threads hold it, `[half of the rows][word][thread]`, so that a thread reads what its like in
//! another block has written.

use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{any, uniform};
use cuda_std::{global, shared};

use super::output::finish;
use super::reduce::fold;
use super::tile::{ALL_POSITIONS, Tile};
use super::work::{Word, info, workspace};
use super::{DecodeKernel, State};
use crate::config::decode::DecodeConfig;
use crate::layout::key_tree::{FAN_OUT_SHIFT, SUPER};
use crate::units::F32_BYTES;

/// Bytes from one word of a thread's state to the next.
const WORD_BYTES: u64 = (DecodeConfig::THREADS * F32_BYTES) as u64;
/// Children that are read at once, so that the last has hardly to be waited for longer than the first.
const READ_AT_ONCE: u32 = 1 << FAN_OUT_SHIFT;

/// This thread's part of the launch's partial results.
#[derive(Clone, Copy)]
pub struct Partials {
    /// Address of its first word of partial result 0.
    base: u64,
    /// Bytes of a partial result.
    bytes: u64,
}

impl Partials {
    #[inline(always)]
    pub fn new(tile: &Tile<'_>) -> Self {
        let params = tile.params();
        let rows = params.forward.attention.seq_q * params.group;
        let bytes = tile.config.partial_bytes(rows);
        let first = params.workspace + workspace(&params).partial(0, bytes);
        Self {
            base: first + (thread_idx_x() * F32_BYTES) as u64,
            bytes,
        }
    }

    /// Address of the first word of row `i` of partial result `slot`, and of the two behind its output.
    #[inline(always)]
    fn words<const O_COLS: usize>(&self, slot: u32, i: usize) -> (u64, u64) {
        let half = i as u64 * (O_COLS as u64 + 2) * WORD_BYTES;
        let first = self.base + slot as u64 * self.bytes + half;
        (first, first + O_COLS as u64 * WORD_BYTES)
    }

    /// Writes rows `has_row` of partial result `slot`.
    ///
    /// # Safety
    /// The workspace is live, and nobody else accesses the slot.
    #[inline(always)]
    pub unsafe fn store<const HALVES: usize, const O_COLS: usize>(
        &self,
        slot: u32,
        state: &State<HALVES, O_COLS>,
        has_row: &[bool; HALVES],
    ) {
        for i in 0..HALVES {
            if has_row[i] {
                let (first, rest) = self.words::<O_COLS>(slot, i);
                for col in 0..O_COLS {
                    global::store(first + col as u64 * WORD_BYTES, state.acc_o[i][col]);
                }
                global::store(rest, state.rows[i].row_max);
                global::store(rest + WORD_BYTES, state.rows[i].row_sum);
            }
        }
    }

    /// Reads rows `has_row` of partial result `slot`.
    ///
    /// # Safety
    /// They are written and visible to this thread.
    #[inline(always)]
    pub unsafe fn load<const HALVES: usize, const O_COLS: usize>(
        &self,
        slot: u32,
        has_row: &[bool; HALVES],
    ) -> State<HALVES, O_COLS> {
        let mut state = State::<HALVES, O_COLS>::new();
        for i in 0..HALVES {
            if has_row[i] {
                let (first, rest) = self.words::<O_COLS>(slot, i);
                for col in 0..O_COLS {
                    state.acc_o[i][col] = global::load(first + col as u64 * WORD_BYTES);
                }
                state.rows[i].row_max = global::load(rest);
                state.rows[i].row_sum = global::load(rest + WORD_BYTES);
            }
        }
        state
    }
}

/// Merges what is complete with the item, whose partial result is written.
///
/// # Safety
/// As [`decode`](super::decode); the whole block calls it.
#[inline(always)]
pub unsafe fn climb<K: DecodeKernel, const HALVES: usize, const O_COLS: usize>(tile: &Tile<'_>) {
    let slots = tile.slots();
    let (chunks, of_items) = (slots.chunks, slots.of_items);
    let (mut level, mut node) = (of_items, uniform(tile.get(Word::Node)));
    loop {
        let (first, count) = chunks.siblings(level, node);
        let (first, count) = (uniform(first), uniform(count));
        let slot = slots.of_node(level, first);
        if count > 1 {
            if !is_last(tile, level - of_items, slot, count) {
                return;
            }
            let state = merge_children::<HALVES, O_COLS>(tile, level, (first, count));
            if any(level == SUPER || chunks.nodes(level + 1) == 1) {
                return finish::<K, HALVES, O_COLS>(tile, &state, ALL_POSITIONS);
            }
            // Nobody but this thread has a part in what it has read.
            Partials::new(tile).store(slot, &state, &tile.has_rows(ALL_POSITIONS));
        }
        node = tile.config.tree().parent(level, node);
        level += 1;
    }
}

/// The state of `count` nodes of `level` from node `first` on.
///
/// # Safety
/// As [`climb`]; their partial results are visible.
#[inline(always)]
unsafe fn merge_children<const HALVES: usize, const O_COLS: usize>(
    tile: &Tile<'_>,
    level: u32,
    (first, count): (u32, u32),
) -> State<HALVES, O_COLS> {
    let (partials, slots) = (Partials::new(tile), tile.slots());
    let has_row = tile.has_rows(ALL_POSITIONS);
    let mut state = State::<HALVES, O_COLS>::new();
    let mut child = 0;
    while child < count {
        // Behind the last is nothing.
        let children: [_; READ_AT_ONCE as usize] = core::array::from_fn(|i| {
            let index = child + i as u32;
            let has_row = has_row.map(|has_row| has_row & (index < count));
            partials.load(slots.of_node(level, first + index), &has_row)
        });
        for half in 0..2 {
            // A jump over half of them costs less than one over each.
            let begin = half * READ_AT_ONCE / 2;
            if any(child + begin < count) {
                for i in begin..begin + READ_AT_ONCE / 2 {
                    fold(&mut state, &children[i as usize]);
                }
            }
        }
        child += READ_AT_ONCE;
    }
    state
}

/// Whether this block is the last of `count` to have written a child of the node whose first item is `slot`; then those of
/// the others are visible to it.
///
/// # Safety
/// As [`climb`].
#[inline(always)]
unsafe fn is_last(tile: &Tile<'_>, level: u32, slot: u32, count: u32) -> bool {
    sync_threads();
    if thread_idx_x() == 0 {
        let counter = tile.params().workspace + workspace(&tile.params()).counter(level, slot);
        // What the block has written is visible before the count, and what it reads is read after it.
        let before = global::fetch_increment_acq_rel(counter, count - 1);
        shared::store_bits(info(Word::IsLast as u32), (before == count - 1) as u32);
    }
    sync_threads();
    let is_last = shared::load_bits(info(Word::IsLast as u32)) != 0;
    any(is_last)
}
