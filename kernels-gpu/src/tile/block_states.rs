//! What the pairs of every tile of queries and block of keys look like: all shown, some, or none. A block of threads takes a tile and
//! a block at a time and asks for every pair.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::global;
use cuda_std::thread::{
    block_dim_x, block_idx_x, grid_dim_x, sync_threads, sync_threads_or, thread_idx_x,
};

use crate::abi::{AttentionParams, BlockState, BlockStatesParams};
use crate::modifiers::{Modifiers, Pair, Place};
use crate::tile::grid::divide;
use crate::tile::sequence::Sequence;

/// Finds all states, with any number of blocks, of `modifiers`: those of the parameters, or these and what is compiled in.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn block_states<M: Modifiers>(params: &BlockStatesParams, modifiers: &M) {
    let (tiles, blocks) = (params.tiles as u64, params.blocks as u64);
    let count = params.batch as u64 * params.heads as u64 * tiles * blocks;
    let mut index = block_idx_x() as u64;
    while index < count {
        let (rest, block) = divide(index, blocks);
        let (rest, tile) = divide(rest, tiles);
        let (batch, head) = divide(rest, params.heads as u64);
        // SAFETY: the indices are below their counts, and the same for the whole block.
        unsafe {
            let state = state(
                params,
                modifiers,
                [batch as u32, head as u32, tile as u32, block as u32],
            );
            let states = &params.modifiers.states;
            let address = states.address.map_or(0, |address| address.get())
                + batch * states.batch_stride
                + head * states.head_stride
                + tile * states.tile_stride
                + block;
            if thread_idx_x() == 0 {
                global::store_u8(address, state as u8);
            }
            sync_threads();
        }
        index += grid_dim_x() as u64;
    }
}

/// The state of a tile and a block.
///
/// # Safety
/// As [`block_states`]; the whole block of threads calls it with the same indices.
#[inline(always)]
unsafe fn state<M: Modifiers>(
    params: &BlockStatesParams,
    modifiers: &M,
    [batch, head, tile, block]: [u32; 4],
) -> BlockState {
    let AttentionParams { heads_q, .. } = params.attention;
    let sequence = Sequence::new(&params.attention, batch);
    let at = Place::new(&sequence, batch, head, heads_q);
    let (rows, keys) = (params.tile_queries, params.block_keys);
    let (first_query, first_key) = (tile * rows, block * keys);
    let (end_query, end_key) = (
        (first_query + rows).min(at.seq_q),
        (first_key + keys).min(at.seq_kv),
    );
    let all_exist = first_query + rows == end_query && first_key + keys == end_key;
    // Of a tile behind the sequence's last row, none.
    let queries = first_query.min(end_query)..end_query;
    // The same for all threads, as what is asked is.
    match modifiers.state_of(&at, queries, first_key.min(end_key)..end_key) {
        Some(BlockState::Hidden) => return BlockState::Hidden,
        Some(BlockState::Full) if all_exist => return BlockState::Full,
        _ => {}
    }
    let (mut any_shown, mut any_hidden) = (false, false);
    let mut index = thread_idx_x();
    while index < rows * keys {
        let (row, key) = divide(index as u64, keys as u64);
        let pair = Pair {
            query: first_query + row as u32,
            key: first_key + key as u32,
        };
        let exists = pair.query < at.seq_q && pair.key < at.seq_kv;
        let is_shown = exists && modifiers.sees(&at, pair);
        any_shown |= is_shown;
        any_hidden |= !is_shown;
        index += block_dim_x();
    }
    let any_shown = sync_threads_or(any_shown);
    let any_hidden = sync_threads_or(any_hidden);
    match (any_shown, any_hidden) {
        (false, _) => BlockState::Hidden,
        (true, true) => BlockState::Partial,
        (true, false) => BlockState::Full,
    }
}
