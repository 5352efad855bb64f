//! Which tiles of queries a block of keys needs, and which of them need no mask: the transpose of
//! [`BlockRange`], for backward, where a block of keys stays and queries pass by.

use super::block_range::BlockRange;
use crate::abi::Band;

/// The tiles of queries that see a key of one block of keys.
///
/// Key `j` is visible to query `i` iff `lower <= j - i <= upper`, which is `-upper <= i - j <= -lower`: in the
/// transposed band, keys and queries are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRange(BlockRange);

impl QueryRange {
    /// The tiles of `block_m` queries that see a key of `key_begin..key_end` (not empty, and not beyond the sequence).
    #[inline(always)]
    pub fn new(key_begin: u32, key_end: u32, band: Band, seq_q: u32, block_m: u32) -> Self {
        let band = band.transposed();
        Self(BlockRange::new(key_begin, key_end, band, seq_q, block_m))
    }

    /// First tile with a query that sees a key.
    #[inline(always)]
    pub fn begin(&self) -> u32 {
        self.0.begin
    }

    /// One past the last tile with a query that sees a key; equal to `begin` if no query does: then the gradients of
    /// these keys are zero.
    #[inline(always)]
    pub fn end(&self) -> u32 {
        self.0.end
    }

    /// The tiles of which every query sees every key of the block, as `begin..end`; empty ranges lie at `self.begin()`.
    #[inline(always)]
    pub fn unmasked(&self, block_m: u32) -> (u32, u32) {
        self.0.unmasked(block_m)
    }

    /// Whether a query of the tile that starts at `query_begin` comes too early to see some key of the block: the
    /// border of causal masks.
    #[inline(always)]
    pub fn needs_early_mask(&self, query_begin: u32) -> bool {
        self.0.needs_left_mask(query_begin)
    }

    /// Whether a query of the tile comes too late to see some key of the block, the far border of a window, or does not
    /// exist.
    #[inline(always)]
    pub fn needs_late_mask(&self, query_begin: u32, block_m: u32) -> bool {
        self.0.needs_right_mask(query_begin, block_m)
    }

    /// Whether a query of the tile does not see some key of the block.
    #[inline(always)]
    pub fn needs_mask(&self, query_begin: u32, block_m: u32) -> bool {
        self.0.needs_mask(query_begin, block_m)
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Range;
    use std::collections::BTreeMap;

    use super::*;

    const OPEN: i32 = Band::OPEN;

    /// No mask, causal, windows with one border and two, and bands next to the diagonal, counted from the top-left
    /// corner.
    const BANDS: [(i32, i32); 10] = [
        (-OPEN, OPEN),
        (-OPEN, 0),
        (-OPEN, 3),
        (-OPEN, -3),
        (0, OPEN),
        (-2, 1),
        (0, 0),
        (2, 5),
        (-6, -4),
        (Band::EMPTY.lower, Band::EMPTY.upper),
    ];

    fn bands() -> impl Iterator<Item = Band> {
        let band = |(lower, upper)| Band { lower, upper };
        BANDS.into_iter().map(band)
    }

    fn sees(query: u32, key: u32, band: Band) -> bool {
        let distance = key as i32 - query as i32;
        band.lower <= distance && distance <= band.upper
    }

    /// Compares with the definition, query by query, on every small shape.
    #[test]
    fn agrees_with_the_definition() {
        for band in bands() {
            for seq_q in 0..14 {
                for key_begin in 0..10 {
                    for key_end in key_begin + 1..key_begin + 6 {
                        check(key_begin..key_end, band, seq_q);
                    }
                }
            }
        }
    }

    const BLOCK_M: u32 = 4;
    const BLOCK_N: u32 = 3;

    fn check(keys: Range<u32>, band: Band, seq_q: u32) {
        let range = QueryRange::new(keys.start, keys.end, band, seq_q, BLOCK_M);
        let (full_begin, full_end) = range.unmasked(BLOCK_M);
        for tile in 0..seq_q.div_ceil(BLOCK_M) + 1 {
            let begin = tile * BLOCK_M;
            let queries = begin..begin + BLOCK_M;
            let exists = |query: u32| query < seq_q;
            let any = |is: &dyn Fn(u32, u32) -> bool| {
                let mut queries = queries.clone();
                queries.any(|query| keys.clone().any(|key| is(query, key)))
            };
            let is_seen = any(&|query, key| exists(query) && sees(query, key, band));
            let is_full = !any(&|query, key| !exists(query) || !sees(query, key, band));
            let is_early = any(&|query, key| key as i32 - query as i32 > band.upper);
            let is_late =
                any(&|query, key| !exists(query) || (key as i32 - query as i32) < band.lower);
            let is_inside = (range.begin()..range.end()).contains(&tile);

            let what = (tile, range, band, seq_q);
            assert_eq!(is_inside, is_seen, "{what:?}");
            assert_eq!(range.needs_mask(begin, BLOCK_M), !is_full, "{what:?}");
            assert_eq!(range.needs_early_mask(begin), is_early, "{what:?}");
            assert_eq!(range.needs_late_mask(begin, BLOCK_M), is_late, "{what:?}");
            if is_inside {
                assert_eq!((full_begin..full_end).contains(&tile), is_full, "{what:?}");
            }
        }
    }

    /// A tile and a block that meet, and whether they need a mask.
    type Meetings = BTreeMap<(u32, u32), bool>;

    /// Tile by tile, each with the blocks it needs.
    fn forward(band: Band, seq_q: u32, seq_kv: u32) -> Meetings {
        let mut met = Meetings::new();
        for tile in 0..seq_q.div_ceil(BLOCK_M) {
            let rows = tile * BLOCK_M..seq_q.min((tile + 1) * BLOCK_M);
            let range = BlockRange::new(rows.start, rows.end, band, seq_kv, BLOCK_N);
            for block in range.begin..range.end {
                met.insert((tile, block), range.needs_mask(block * BLOCK_N, BLOCK_N));
            }
        }
        met
    }

    /// Block by block, each with the tiles it needs.
    fn backward(band: Band, seq_q: u32, seq_kv: u32) -> Meetings {
        let mut met = Meetings::new();
        for block in 0..seq_kv.div_ceil(BLOCK_N) {
            let keys = block * BLOCK_N..seq_kv.min((block + 1) * BLOCK_N);
            let range = QueryRange::new(keys.start, keys.end, band, seq_q, BLOCK_M);
            for tile in range.begin()..range.end() {
                met.insert((tile, block), range.needs_mask(tile * BLOCK_M, BLOCK_M));
            }
        }
        met
    }

    /// A tile and a block that meet in forward meet in backward, and no others do; if both are whole, both directions
    /// agree whether they need a mask.
    #[test]
    fn forward_and_backward_visit_the_same_pairs() {
        for seq_q in 0..14 {
            for seq_kv in 0..14 {
                let both_corners = |band: Band| [band, band.bottom_right(seq_q, seq_kv)];
                for band in bands().flat_map(both_corners) {
                    let forward = forward(band, seq_q, seq_kv);
                    let backward = backward(band, seq_q, seq_kv);
                    let what = (band, seq_q, seq_kv);
                    assert!(forward.keys().eq(backward.keys()), "{what:?}");
                    for (pair @ (tile, block), masked) in forward {
                        if (tile + 1) * BLOCK_M <= seq_q && (block + 1) * BLOCK_N <= seq_kv {
                            assert_eq!(masked, backward[&pair], "{what:?} {pair:?}");
                        }
                    }
                }
            }
        }
    }
}
