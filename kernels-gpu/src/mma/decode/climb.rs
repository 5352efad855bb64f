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
use crate::tile::kv_tree::{Chunks, SUPER};
use crate::units::F32_BYTES;

/// Bytes from one word of a thread's state to the next.
const WORD_BYTES: u64 = (DecodeConfig::THREADS * F32_BYTES) as u64;

/// Address of the first word of row `i` of this thread's part of a partial result.
#[inline(always)]
fn words<const O_COLS: usize>(tile: &Tile<'_>, slot: u32, i: usize) -> u64 {
    let params = tile.params();
    let attention = &params.forward.attention;
    // SAFETY: where there is an item there are heads.
    unsafe { core::hint::assert_unchecked(attention.heads_kv != 0) };
    let rows = attention.seq_q * (attention.heads_q / attention.heads_kv);
    let partial = workspace(&params).partial(slot, tile.config.partial_bytes(rows));
    let half = i as u64 * (O_COLS as u64 + 2) * WORD_BYTES;
    params.workspace + partial + half + (thread_idx_x() * F32_BYTES) as u64
}

/// Writes the partial result `slot`, of rows at `position`.
///
/// # Safety
/// The workspace is live, and nobody else accesses the slot.
#[inline(always)]
pub unsafe fn store<const O_COLS: usize>(
    tile: &Tile<'_>,
    slot: u32,
    state: &State<O_COLS>,
    position: u32,
) {
    for i in 0..2 {
        if tile.has_row(i, position) {
            let address = words::<O_COLS>(tile, slot, i);
            for col in 0..O_COLS {
                global::store(address + col as u64 * WORD_BYTES, state.acc_o[i][col]);
            }
            let rest = address + O_COLS as u64 * WORD_BYTES;
            global::store(rest, state.rows[i].row_max);
            global::store(rest + WORD_BYTES, state.rows[i].row_sum);
        }
    }
}

/// Reads the rows at `position` of the partial result `slot`.
///
/// # Safety
/// It is written and visible to this thread.
#[inline(always)]
pub unsafe fn load<const O_COLS: usize>(
    tile: &Tile<'_>,
    slot: u32,
    position: u32,
) -> State<O_COLS> {
    let mut state = State::<O_COLS>::new();
    for i in 0..2 {
        if tile.has_row(i, position) {
            let address = words::<O_COLS>(tile, slot, i);
            for col in 0..O_COLS {
                state.acc_o[i][col] = global::load(address + col as u64 * WORD_BYTES);
            }
            let rest = address + O_COLS as u64 * WORD_BYTES;
            state.rows[i].row_max = global::load(rest);
            state.rows[i].row_sum = global::load(rest + WORD_BYTES);
        }
    }
    state
}

/// Merges what is complete with the item, whose partial result is written.
///
/// # Safety
/// As [`decode`](super::decode); the whole block calls it.
#[inline(always)]
pub unsafe fn climb<K: DecodeKernel, const O_COLS: usize>(tile: &Tile<'_>) {
    let chunks = tile.chunks();
    let of_items = uniform(tile.get(Word::Level));
    let (mut level, mut node) = (of_items, uniform(tile.get(Word::Node)));
    loop {
        let (first, count) = chunks.siblings(level, node);
        let (first, count) = (uniform(first), uniform(count));
        let slot = tile.slot_of(level, first);
        if count > 1 {
            if !is_last(tile, level - of_items, slot, count) {
                return;
            }
            let mut state = State::<O_COLS>::new();
            let mut child = 0;
            while child < count {
                fold(
                    &mut state,
                    &load(tile, tile.slot_of(level, first + child), ALL_POSITIONS),
                );
                child += 1;
            }
            if any(level == SUPER || chunks.nodes(level + 1) == 1) {
                return finish::<K, O_COLS>(tile, &state, ALL_POSITIONS);
            }
            // Nobody but this thread has a part in what it has read.
            store(tile, slot, &state, ALL_POSITIONS);
        }
        node = Chunks::parent(level, node);
        level += 1;
    }
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
        global::fence();
        let before = global::fetch_increment(counter, count - 1);
        global::fence();
        shared::store_bits(info(Word::IsLast as u32), (before == count - 1) as u32);
    }
    sync_threads();
    let is_last = shared::load_bits(info(Word::IsLast as u32)) != 0;
    any(is_last)
}
