//! Hiding scores that a row does not see: each border by itself, as most masked blocks have one.

use super::lanes::{Lanes, ROW_STEP};
use crate::abi::Band;
use crate::tile::block_range::visible_keys;

/// Sets the scores of keys beyond the last visible one to −∞.
///
/// `row` is the thread's first query, `key_begin` the block's first key.
#[inline(always)]
pub fn hide_right<const S: usize>(
    scores: &mut [f32; S],
    lanes: Lanes,
    row: u32,
    key_begin: u32,
    band: Band,
    seq_kv: u32,
) {
    let origin = (key_begin + lanes.col()) as i32;
    let last = |row: u32| visible_keys(row as i32, band, seq_kv).1 - origin;
    let (upper, lower) = (last(row), last(row + ROW_STEP));
    hide(scores, |col, row| {
        col > if row == 0 { upper } else { lower }
    });
}

/// Sets the scores of keys before the first visible one to −∞.
#[inline(always)]
pub fn hide_left<const S: usize>(
    scores: &mut [f32; S],
    lanes: Lanes,
    row: u32,
    key_begin: u32,
    band: Band,
    seq_kv: u32,
) {
    let origin = (key_begin + lanes.col()) as i32;
    let first = |row: u32| visible_keys(row as i32, band, seq_kv).0 - origin;
    let (upper, lower) = (first(row), first(row + ROW_STEP));
    hide(scores, |col, row| {
        col < if row == 0 { upper } else { lower }
    });
}

/// Sets to −∞ where `hidden(column from the thread's first, row 0 or 1)`.
#[inline(always)]
fn hide<const S: usize>(scores: &mut [f32; S], hidden: impl Fn(i32, usize) -> bool) {
    let mut i = 0;
    while i < S {
        let col = (i / 4 * 8 + i % 2) as i32;
        if hidden(col, i / 2 % 2) {
            scores[i] = f32::NEG_INFINITY;
        }
        i += 1;
    }
}
