//! Which keys a query sees, where more than the band decides: one function an option, each of which may hide a pair.

use super::load;
use super::place::{Pair, Place};
use crate::abi::{BlockState, DeviceAddress, Divisor, DocumentsArg, ModifierParams, PairsArg};
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
pub fn address(array: &PairsArg, at: &Place, pair: Pair, bytes: u32) -> u64 {
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
            // SAFETY: forwarded to the caller.
            let length = unsafe { prefix_length(prefix, params.prefix_stride, at) };
            in_band || (pair.key as i32) < length
        }
    }
}

/// How many of the sequence's first keys all queries see.
///
/// # Safety
/// The array of lengths has an element for the sequence.
#[inline(always)]
pub(super) unsafe fn prefix_length(lengths: DeviceAddress, stride: u32, at: &Place) -> i32 {
    // SAFETY: the caller vouches for the array.
    unsafe { word(lengths.get(), at.batch as i64 * stride as i64) }
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
    // SAFETY: forwarded to the caller.
    unsafe {
        document_of_query(documents, at, pair.query) == document_of_key(documents, at, pair.key)
    }
}

/// The id of a query's document.
///
/// # Safety
/// There are ids of queries.
#[inline(always)]
pub(super) unsafe fn document_of_query(documents: &DocumentsArg, at: &Place, query: u32) -> i32 {
    let ids = documents.of_queries.map_or(0, |address| address.get());
    let index = at.batch as i64 * documents.query_batch_stride + (at.q_begin + query) as i64;
    // SAFETY: the caller vouches for the element.
    unsafe { word(ids, index) }
}

/// The id of a key's document.
///
/// # Safety
/// There are ids of keys.
#[inline(always)]
pub(super) unsafe fn document_of_key(documents: &DocumentsArg, at: &Place, key: u32) -> i32 {
    let ids = documents.of_keys.map_or(0, |address| address.get());
    let index = at.batch as i64 * documents.key_batch_stride + (at.kv_begin + key) as i64;
    // SAFETY: the caller vouches for the element.
    unsafe { word(ids, index) }
}

/// Whether query and key are of one chunk.
#[inline(always)]
pub(super) fn by_chunk(of: Divisor, at: &Place, pair: Pair) -> bool {
    let (begin, end) = chunk(of, at, pair.query);
    begin <= pair.key as i32 && (pair.key as i32) < end
}

/// First and one past the last key of the chunk of `query`; none of a query before the first key, and all if there are no chunks.
#[inline(always)]
pub(super) fn chunk(chunk: Divisor, at: &Place, query: u32) -> (i32, i32) {
    let position = at.position(query);
    let begin = chunk.divide(position.max(0) as u32) * chunk.get();
    // The last chunk may end beyond what an i32 counts.
    let end = (begin + chunk.get()).min(i32::MAX as u32) as i32;
    let end = if position < 0 { 0 } else { end };
    (begin as i32, if chunk.is_none() { i32::MAX } else { end })
}

/// Whether the distance of query and key is a multiple of `dilation`.
#[inline(always)]
pub(super) fn by_dilation(dilation: Divisor, at: &Place, pair: Pair) -> bool {
    let distance = (at.position(pair.query) - pair.key as i32).unsigned_abs();
    dilation.rest(distance) == 0
}
