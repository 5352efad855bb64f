//! Which blocks of keys a tile of queries needs, and which of them need no mask.

use crate::abi::Band;

/// Keys visible to query `row`: `first..=last`, empty if `last < first`.
#[inline(always)]
pub fn visible_keys(row: i32, band: Band, seq_kv: u32) -> (i32, i32) {
    let first = (row + band.lower).max(0);
    let last = (row + band.upper).min(seq_kv as i32 - 1);
    (first, last)
}

/// The key blocks of one tile of queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block with a visible key.
    pub begin: u32,
    /// One past the last block with a visible key; equal to `begin` when no key is visible.
    pub end: u32,
    /// First key that every row of the tile sees.
    full_first: i32,
    /// Last key that every row of the tile sees.
    full_last: i32,
}

impl BlockRange {
    /// No block.
    pub const EMPTY: Self = Self {
        begin: 0,
        end: 0,
        full_first: i32::MAX,
        full_last: -1,
    };

    /// The blocks of `block_n` keys that rows `row_begin..row_end` (not empty) can see.
    #[inline(always)]
    pub fn new(row_begin: u32, row_end: u32, band: Band, seq_kv: u32, block_n: u32) -> Self {
        // The band moves right as the row grows: the first row has the first key, the last row the last.
        let (first, full_last) = visible_keys(row_begin as i32, band, seq_kv);
        let (full_first, last) = visible_keys(row_end as i32 - 1, band, seq_kv);
        // Computed on both paths: a branch costs more registers than a division by a constant.
        let (begin, end) = (first as u32 / block_n, last as u32 / block_n + 1);
        let (begin, end) = if first <= last { (begin, end) } else { (0, 0) };
        Self {
            begin,
            end,
            full_first,
            full_last,
        }
    }

    /// All blocks of `seq_kv` keys, each of which may need a mask.
    #[inline(always)]
    pub fn all(seq_kv: u32, block_n: u32) -> Self {
        Self {
            end: seq_kv.div_ceil(block_n),
            ..Self::EMPTY
        }
    }

    /// The blocks that queries `begin..end` need; block `masked_out` alone if there are none or they see no key.
    ///
    /// Selected at the end: a value that is undefined on one path keeps a register through a kernel's loop.
    #[inline(always)]
    pub fn of_queries(
        (begin, end): (u32, u32),
        band: Band,
        seq_kv: u32,
        block_n: u32,
        masked_out: u32,
    ) -> Self {
        let range = Self::new(begin, end, band, seq_kv, block_n);
        if begin < end && range.begin < range.end {
            range
        } else {
            Self::masked_out(masked_out)
        }
    }

    /// As words, to be stored in memory.
    #[inline(always)]
    pub fn to_words(self) -> [u32; 4] {
        let (full_first, full_last) = (self.full_first as u32, self.full_last as u32);
        [self.begin, self.end, full_first, full_last]
    }

    /// The inverse of [`BlockRange::to_words`].
    #[inline(always)]
    pub fn from_words([begin, end, full_first, full_last]: [u32; 4]) -> Self {
        Self {
            begin,
            end,
            full_first: full_first as i32,
            full_last: full_last as i32,
        }
    }

    /// Block `block` alone, none of whose keys any row sees.
    #[inline(always)]
    pub fn masked_out(block: u32) -> Self {
        Self {
            begin: block,
            end: block + 1,
            full_first: i32::MAX,
            full_last: -1,
        }
    }

    /// The blocks that every row of the tile sees whole, as `begin..end`; empty ranges lie at `self.begin`.
    #[inline(always)]
    pub fn unmasked(&self, block_n: u32) -> (u32, u32) {
        let begin = (self.full_first as u32).div_ceil(block_n).max(self.begin);
        let end = ((self.full_last + 1).max(0) as u32 / block_n).min(self.end);
        if begin < end {
            (begin, end)
        } else {
            (self.begin, self.begin)
        }
    }

    /// Whether a row of the tile does not see a key of the block because of the right border.
    #[inline(always)]
    pub fn needs_right_mask(&self, key_begin: u32, block_n: u32) -> bool {
        (key_begin + block_n - 1) as i32 > self.full_last
    }

    /// Whether a row of the tile does not see a key of the block because of the left border.
    #[inline(always)]
    pub fn needs_left_mask(&self, key_begin: u32) -> bool {
        (key_begin as i32) < self.full_first
    }

    /// Whether a row of the tile does not see a key of the block that starts at `key_begin`.
    #[inline(always)]
    pub fn needs_mask(&self, key_begin: u32, block_n: u32) -> bool {
        self.needs_left_mask(key_begin) || self.needs_right_mask(key_begin, block_n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the definition, key by key, on every small shape.
    #[test]
    fn agrees_with_the_definition() {
        const BLOCK_N: u32 = 4;
        let open = Band::OPEN;
        for (lower, upper) in [
            (-open, open),
            (-open, 0),
            (-open, 3),
            (-2, 1),
            (-open, -3),
            (2, 5),
        ] {
            let band = Band { lower, upper };
            for seq_kv in 0..14u32 {
                for row_begin in 0..10u32 {
                    for row_end in row_begin + 1..row_begin + 6 {
                        check(row_begin, row_end, band, seq_kv, BLOCK_N);
                    }
                }
            }
        }
    }

    fn check(row_begin: u32, row_end: u32, band: Band, seq_kv: u32, block_n: u32) {
        let visible = |row: u32, key: u32| {
            let distance = key as i32 - row as i32;
            key < seq_kv && band.lower <= distance && distance <= band.upper
        };
        let range = BlockRange::new(row_begin, row_end, band, seq_kv, block_n);
        for block in 0..seq_kv.div_ceil(block_n) + 1 {
            let keys = block * block_n..(block + 1) * block_n;
            let any = keys
                .clone()
                .any(|key| (row_begin..row_end).any(|row| visible(row, key)));
            let all = keys
                .clone()
                .all(|key| (row_begin..row_end).all(|row| visible(row, key)));
            let inside = (range.begin..range.end).contains(&block);
            assert!(!any || inside, "block {block} of {range:?} is needed");
            assert_eq!(
                range.needs_mask(block * block_n, block_n),
                !all,
                "block {block} of {range:?}"
            );
        }
        let (begin, end) = range.unmasked(block_n);
        for block in range.begin..range.end {
            assert_eq!(
                (begin..end).contains(&block),
                !range.needs_mask(block * block_n, block_n),
                "block {block} of {range:?}"
            );
        }
        // The ends are tight; a tile whose rows see disjoint ranges may keep empty blocks in between.
        for block in [range.begin, range.end.wrapping_sub(1)] {
            if range.begin < range.end {
                let mut keys = block * block_n..(block + 1) * block_n;
                assert!(
                    keys.any(|key| (row_begin..row_end).any(|row| visible(row, key))),
                    "{range:?}"
                );
            }
        }
    }
}
