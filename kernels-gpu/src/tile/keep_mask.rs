//! Dropout's keep mask for backward kernels that add dq up ([`crate::modifiers::keep_mask`]): a warp makes the words of a run of tiles of keys and
//! [`QUERIES`] queries at a time, of those that the kernel takes.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use cuda_std::global;
use cuda_std::thread::{block_idx_x, grid_dim_x, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, shuffle_xor, uniform};

use crate::abi::{AttentionParams, BlockState, KeepMaskParams};
use crate::modifiers::dropout::Dropout;
use crate::modifiers::keep_mask::{CALL_KEYS, QUERIES, TILE_KEYS, WARP_BYTES, of_lane};
use crate::modifiers::{Modifiers, Pair, Place};
use crate::tile::black_box;
use crate::tile::block_range::visible_keys;
use crate::tile::grid::{divide, divide_long};
use crate::tile::quad::QUAD;
use crate::tile::sequence::Sequence;

/// Makes the mask, with any number of blocks of `WARPS` warps.
///
/// # Safety
/// `params` describes live allocations that hold every element it can address, among them the mask. The launch drops probabilities.
#[inline(always)]
pub unsafe fn keep_mask<const WARPS: u32>(params: &KeepMaskParams) {
    let AttentionParams {
        heads_q,
        heads_kv,
        seq_q,
        seq_kv,
        ..
    } = params.attention;
    let arg = params.modifiers.keep_mask;
    let (group, _) = divide(heads_q, heads_kv);
    let blocks = seq_q.div_ceil(QUERIES) as u64;
    let (runs, _) = divide(
        seq_kv.div_ceil(TILE_KEYS) + params.run_tiles - 1,
        params.run_tiles,
    );
    let runs = runs as u64;
    let count = (arg.units * group) as u64 * blocks * runs;
    let warp = uniform(thread_idx_x() / WARP_SIZE);
    let mut index = block_idx_x() as u64 * WARPS as u64 + warp as u64;
    while index < count {
        let (rest, run) = divide_long(index, runs);
        let (head, block) = divide_long(rest, blocks);
        let (batch, head) = divide(arg.first_head + head as u32, heads_q);
        let sequence = Sequence::new(&params.attention, batch);
        let at = Place::new(&sequence, batch, head, heads_q);
        let query = block as u32 * QUERIES;
        if query < at.seq_q {
            make_run(
                params,
                &at,
                query,
                run as u32 * params.run_tiles * TILE_KEYS,
            );
        }
        index += grid_dim_x() as u64 * WARPS as u64;
    }
}

/// Makes the words of [`QUERIES`] queries from `query` on, of which there is one, and a run of tiles from `key` on.
///
/// # Safety
/// As [`keep_mask`]; the whole warp calls it.
#[inline(always)]
unsafe fn make_run(params: &KeepMaskParams, at: &Place, query: u32, key: u32) {
    let modifiers = &params.modifiers;
    let mask = modifiers.keep_mask.of_head(at.batch, at.head, at.heads);
    let dropout = Dropout::new(&modifiers.dropout, at);
    let lane = lane_id();
    let tiles_end = params.attention.seq_kv.next_multiple_of(TILE_KEYS);
    let end = (key + params.run_tiles * TILE_KEYS).min(tiles_end);
    let band = Seen::of_queries(at, query);
    let mut begin = key;
    // One copy of the generator's calls.
    while begin < black_box(end) {
        if is_read(params, at, &band, query, begin) {
            let pair = Pair { query, key: begin };
            let first = of_lane(pair, lane);
            let halves = dropout.halves(first);
            // The lane with the key beside.
            let taken = shuffle_xor(f32::from_bits(halves.given), QUAD).to_bits();
            let [low, high] = Dropout::joined(halves, taken, first);
            let address = mask.word(pair, lane);
            global::store_bits(address, low);
            global::store_bits(address + WARP_BYTES as u64, high);
        }
        begin += CALL_KEYS;
    }
}

/// The first and the last key that some of [`QUERIES`] queries see by the band.
struct Seen {
    first: i32,
    last: i32,
}

impl Seen {
    /// Those of the queries from `query` on, of which there is one: the first one's first key, the last one's last.
    #[inline(always)]
    fn of_queries(at: &Place, query: u32) -> Self {
        let end = (query + QUERIES).min(at.seq_q);
        Self {
            first: visible_keys(query as i32, at.band, at.seq_kv).0,
            last: visible_keys(end as i32 - 1, at.band, at.seq_kv).1,
        }
    }
}

/// Whether the kernel takes a block of queries and a tile of keys that hold some of [`QUERIES`] queries from `query` on, which see
/// `band`, and of [`CALL_KEYS`] keys from `key` on.
///
/// # Safety
/// As [`make_run`].
#[inline(always)]
unsafe fn is_read(params: &KeepMaskParams, at: &Place, band: &Seen, query: u32, key: u32) -> bool {
    let KeepMaskParams {
        modifiers,
        block_queries,
        tile_keys,
        ..
    } = params;
    // Powers of two, as a division takes longer than a word.
    let tile_shift = tile_keys.trailing_zeros();
    let tile = key >> tile_shift;
    let (begin, end) = (tile << tile_shift, (tile + 1) << tile_shift);
    if begin >= at.seq_kv {
        return false;
    }
    if !modifiers.hides() {
        let Seen { first, last } = *band;
        return first <= last && first < end as i32 && begin as i32 <= last;
    }
    let block_shift = block_queries.trailing_zeros();
    let queries_end = (query + QUERIES).min(at.seq_q);
    let mut block = query >> block_shift;
    while block << block_shift < queries_end {
        if modifiers.state(at, block, tile) != BlockState::Hidden as u32 {
            return true;
        }
        block += 1;
    }
    false
}
