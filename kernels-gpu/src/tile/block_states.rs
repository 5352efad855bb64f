//! What the pairs of every tile of queries and block of keys look like: all shown, some, or none. A warp takes a tile and a
//! block at a time. It asks for every pair only where the modifiers cannot tell of all at once.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::global;
use cuda_std::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, any, lane_id, uniform};

use crate::abi::{AttentionParams, BlockState, BlockStatesParams};
use crate::modifiers::{Modifiers, Pair, Place};
use crate::tile::grid::divide_long;
use crate::tile::sequence::Sequence;

/// Finds all states, with any number of blocks of `WARPS` warps, of `modifiers`: those of the parameters, or these and what is
/// compiled in.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address.
#[inline(always)]
pub unsafe fn block_states<const WARPS: u32, M: Modifiers>(
    params: &BlockStatesParams,
    modifiers: &M,
) {
    let (tiles, blocks) = (params.tiles as u64, params.blocks as u64);
    let count = params.batch as u64 * params.heads as u64 * tiles * blocks;
    let warp = uniform(thread_idx_x() / WARP_SIZE);
    let mut index = block_idx_x() as u64 * WARPS as u64 + warp as u64;
    while index < count {
        let (rest, block) = divide_long(index, blocks);
        let (rest, tile) = divide_long(rest, tiles);
        let (batch, head) = divide_long(rest, params.heads as u64);
        // The indices are below their counts, and the same for the whole warp.
        let indices = [batch as u32, head as u32, tile as u32, block as u32];
        let state = state(params, modifiers, indices);
        let states = &params.modifiers.states;
        let address = states.address.map_or(0, |address| address.get())
            + batch * states.batch_stride
            + head * states.head_stride
            + tile * states.tile_stride
            + block;
        if lane_id() == 0 {
            global::store_u8(address, state as u8);
        }
        index += grid_dim_x() as u64 * WARPS as u64;
    }
}

/// The state of a tile and a block.
///
/// # Safety
/// As [`block_states`]; the whole warp calls it with the same indices.
#[inline(always)]
unsafe fn state<M: Modifiers>(
    params: &BlockStatesParams,
    modifiers: &M,
    [batch, head, tile, block]: [u32; 4],
) -> BlockState {
    let AttentionParams { heads_q, .. } = params.attention;
    let sequence = Sequence::new(&params.attention, batch);
    let at = Place::new(&sequence, batch, head, heads_q);
    let (rows, columns) = (params.tile_queries, params.block_keys);
    let (query, key) = (tile * rows, block * columns);
    let queries = query..(query + rows).min(at.seq_q);
    let keys = key..(key + columns).min(at.seq_kv);
    if queries.start >= queries.end || keys.start >= keys.end {
        return BlockState::Hidden;
    }
    let all_exist = queries.end == query + rows && keys.end == key + columns;
    let known = modifiers.state_of(&at, queries.clone(), keys.clone());
    let state = match known {
        Some(state) => state,
        None => ask(
            modifiers,
            &at,
            [queries.start, keys.start],
            [queries.end, keys.end],
        ),
    };
    match state {
        BlockState::Full if !all_exist => BlockState::Partial,
        state => state,
    }
}

/// The state of the pairs of queries and keys from `begin` to `end`, as far as one has to ask.
///
/// # Safety
/// As [`state`].
#[inline(always)]
unsafe fn ask<M: Modifiers>(
    modifiers: &M,
    at: &Place,
    begin: [u32; 2],
    end: [u32; 2],
) -> BlockState {
    let (mut any_shown, mut any_hidden) = (false, false);
    let mut query = begin[0];
    // As soon as there are both, the rest does not matter.
    while query < end[0] && !(any_shown && any_hidden) {
        let mut key = begin[1];
        while key < end[1] {
            let pair = Pair {
                query,
                key: key + lane_id(),
            };
            let exists = pair.key < end[1];
            let is_shown = exists && modifiers.sees(at, pair);
            any_shown |= any(is_shown);
            any_hidden |= any(exists && !is_shown);
            key += WARP_SIZE;
        }
        query += 1;
    }
    match (any_shown, any_hidden) {
        (false, _) => BlockState::Hidden,
        (true, true) => BlockState::Partial,
        (true, false) => BlockState::Full,
    }
}
