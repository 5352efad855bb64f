//! Which keys a query sees, where more than the band decides: one function an option, each of which may hide a pair.

use super::load;
use super::place::{Pair, Place};
use crate::abi::{BlockState, Divisor, DocumentsArg, ModifierParams, PairsArg};
use crate::units::F32_BYTES;

/// Index of a pair's element, in elements.
#[inline(always)]
fn index(array: &PairsArg, at: &Place, pair: Pair) -> i64 {
    at.batch as i64 * array.batch_stride
        + at.head as i64 * array.head_stride
        + pair.query as i64 * array.query_stride
        + pair.key as i64 * array.key_stride
}

/// The address of a pair's element of `bytes` bytes, of an array that there is.
#[inline(always)]
pub(super) fn address(array: &PairsArg, at: &Place, pair: Pair, bytes: u32) -> u64 {
    let base = array.address.map_or(0, |address| address.get());
    base.wrapping_add_signed(index(array, at, pair) * bytes as i64)
}

/// The i32 with index `index` of an array.
///
/// # Safety
/// It is live.
#[inline(always)]
unsafe fn word(address: u64, index: i64) -> i32 {
    // SAFETY: the caller vouches for the element; an i32 has the size of an f32.
    unsafe { load::u32(address.wrapping_add_signed(index * F32_BYTES as i64)) as i32 }
}

/// Whether the band, or the prefix beside it, shows the pair.
///
/// # Safety
/// The prefix's array has an element for the sequence.
#[inline(always)]
pub(super) unsafe fn in_band(params: &ModifierParams, at: &Place, pair: Pair) -> bool {
    let distance = pair.key as i32 - pair.query as i32;
    let in_band = at.band.lower <= distance && distance <= at.band.upper;
    match params.prefix {
        None => in_band,
        Some(prefix) => {
            // SAFETY: the caller vouches for the array.
            let length =
                unsafe { word(prefix.get(), at.batch as i64 * params.prefix_stride as i64) };
            in_band || (pair.key as i32) < length
        }
    }
}

/// Whether the mask shows the pair.
///
/// # Safety
/// It has an element for the pair.
#[inline(always)]
pub(super) unsafe fn by_mask(params: &ModifierParams, at: &Place, pair: Pair) -> bool {
    // SAFETY: the caller vouches for the element.
    unsafe { load::u8(address(&params.mask, at, pair, 1)) != 0 }
}

/// Whether the caller's blocks show the pair.
///
/// # Safety
/// They have an element for the pair's block.
#[inline(always)]
pub(super) unsafe fn by_blocks(params: &ModifierParams, at: &Place, pair: Pair) -> bool {
    let block = Pair {
        query: params.block_q.divide(pair.query),
        key: params.block_kv.divide(pair.key),
    };
    // SAFETY: the caller vouches for the element.
    unsafe { load::u8(address(&params.blocks, at, block, 1)) != BlockState::Hidden as u8 }
}

/// Whether query and key are of one document.
///
/// # Safety
/// There are ids of both.
#[inline(always)]
pub(super) unsafe fn by_document(documents: &DocumentsArg, at: &Place, pair: Pair) -> bool {
    let queries = documents.of_queries.map_or(0, |address| address.get());
    let keys = documents.of_keys.map_or(0, |address| address.get());
    let query = at.batch as i64 * documents.query_batch_stride + (at.q_begin + pair.query) as i64;
    let key = at.batch as i64 * documents.key_batch_stride + (at.kv_begin + pair.key) as i64;
    // SAFETY: the caller vouches for the elements.
    unsafe { word(queries, query) == word(keys, key) }
}

/// Whether query and key are of one chunk.
#[inline(always)]
pub(super) fn by_chunk(chunk: Divisor, at: &Place, pair: Pair) -> bool {
    // A query before the first key is in no chunk of keys.
    let position = at.position(pair.query);
    position >= 0 && chunk.divide(position as u32) == chunk.divide(pair.key)
}

/// Whether the distance of query and key is a multiple of `dilation`.
#[inline(always)]
pub(super) fn by_dilation(dilation: Divisor, at: &Place, pair: Pair) -> bool {
    let distance = (at.position(pair.query) - pair.key as i32).unsigned_abs();
    dilation.rest(distance) == 0
}
