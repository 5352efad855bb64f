//! Packed GQA: query heads that share keys and values in the rows of one tile.
//!
//! A short sequence fills a fraction of a tile's rows. The heads of its group then fill the rest, and K and V are
//! read once for all of them: row `r` of a *pack* of `2^shift` heads belongs to query `r >> shift`, head
//! `r & (2^shift − 1)`. That is the order in which TMA lays a box of so many heads by `64 >> shift` queries in shared
//! memory. A group that is no whole number of packs leaves rows of its last one empty. Packs of one head are the
//! ordinary case.
//!
//! ```text
//! a pack of 4 heads, 3 queries      row = query << 2 | head
//! row     0    1    2    3    4    5    6    7    8    9   10   11
//! query   0    0    0    0    1    1    1    1    2    2    2    2
//! head    0    1    2    3    0    1    2    3    0    1    2    3
//! ```

use bytemuck::{Pod, Zeroable};

use crate::config::wgmma::WARPGROUP_ROWS;

/// log₂ of the heads of the largest pack, which has a query in every warpgroup's rows.
const MAX_SHIFT: u32 = WARPGROUP_ROWS.ilog2();

/// How the rows of a launch's tiles are shared by heads.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct PackGqa {
    /// log₂ of the heads of a pack.
    shift: u32,
    /// Query heads that share a key/value head.
    group: u32,
}

impl PackGqa {
    /// Longest sequence whose packs have rows that 31 bits count.
    pub const LONGEST: u32 = i32::MAX as u32 >> MAX_SHIFT;

    /// A tile for each of the `group` heads that share a key/value head.
    pub const fn none(group: u32) -> Self {
        Self { shift: 0, group }
    }

    /// The smallest packs that leave fewest tiles of `tile_rows` rows, for sequences of `lengths` queries, none above
    /// [`Self::LONGEST`].
    pub fn fewest_tiles(
        group: u32,
        lengths: impl Iterator<Item = u32> + Clone,
        tile_rows: u32,
    ) -> Self {
        let tiles = |pack_gqa: &Self| {
            let rows = |length: u32| u64::from(length) * u64::from(pack_gqa.heads());
            let of_pack = |length| rows(length).div_ceil(tile_rows.into());
            u64::from(pack_gqa.packs()) * lengths.clone().map(of_pack).sum::<u64>()
        };
        (0..=MAX_SHIFT)
            .map(|shift| Self { shift, group })
            // More rows than twice the group's heads would be empty in any tile.
            .take_while(|pack_gqa| pack_gqa.heads() / 2 < group)
            .min_by_key(tiles)
            .unwrap_or(Self::none(group))
    }

    /// Whether a warpgroup's rows hold a pack: what every constructor here gives.
    #[inline(always)]
    pub const fn is_possible(self) -> bool {
        self.shift <= MAX_SHIFT
    }

    /// Heads of a pack, of which the last may be missing.
    #[inline(always)]
    pub const fn heads(self) -> u32 {
        1 << self.shift
    }

    /// Packs of a group.
    #[inline(always)]
    pub const fn packs(self) -> u32 {
        self.group.div_ceil(self.heads())
    }

    /// Query heads of a group.
    #[inline(always)]
    pub const fn group(self) -> u32 {
        self.group
    }

    /// Rows of a pack that `queries` queries fill.
    #[inline(always)]
    pub const fn rows(self, queries: u32) -> u32 {
        queries << self.shift
    }

    /// The query that a row of a pack belongs to.
    #[inline(always)]
    pub const fn query(self, row: u32) -> u32 {
        row >> self.shift
    }

    /// First and one past the last query of `rows` rows from `begin` on, of a sequence of `seq_q`.
    #[inline(always)]
    pub fn queries(self, begin: u32, rows: u32, seq_q: u32) -> (u32, u32) {
        (self.query(begin), self.query(begin + rows).min(seq_q))
    }

    /// The head that a row of a pack belongs to, from the pack's first.
    #[inline(always)]
    pub const fn head(self, row: u32) -> u32 {
        row & (self.heads() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(group: u32, lengths: &[u32], tile_rows: u32) -> u32 {
        PackGqa::fewest_tiles(group, lengths.iter().copied(), tile_rows).heads()
    }

    #[test]
    fn short_queries_share_a_tile() {
        assert_eq!(heads(8, &[1], 128), 8);
        assert_eq!(heads(64, &[1], 256), 64);
        // 32 queries fill a tile of 128 rows with four heads; eight would need two tiles, as twice four do.
        assert_eq!(heads(8, &[32], 128), 4);
        assert_eq!(heads(8, &[33], 128), 8);
        // Sequences count together.
        assert_eq!(heads(4, &[100, 1, 1, 1], 128), 4);
        assert_eq!(heads(4, &[128, 128, 128, 128], 128), 1);
    }

    #[test]
    fn whole_tiles_and_single_heads_are_left_alone() {
        for length in [128, 1280, 1 << 20] {
            assert_eq!(heads(8, &[length], 128), 1);
        }
        assert_eq!(heads(1, &[1], 128), 1);
        assert_eq!(heads(8, &[], 128), 1);
        assert_eq!(heads(8, &[0], 128), 1);
        // Two heads of 100 rows need two tiles of 128 either way.
        assert_eq!(heads(2, &[100], 128), 1);
    }

    #[test]
    fn groups_that_are_no_power_of_two() {
        // Three heads in packs of four, a row of each query empty.
        assert_eq!(heads(3, &[1], 128), 4);
        assert_eq!(heads(7, &[3], 128), 8);
        // Packs of eight would need three tiles, of four two, one each.
        assert_eq!(heads(5, &[32], 128), 4);
        assert_eq!(PackGqa { shift: 2, group: 5 }.packs(), 2);
    }

    #[test]
    fn a_pack_is_no_larger_than_a_box() {
        let pack_gqa = PackGqa::fewest_tiles(128, [1].into_iter(), 128);
        assert_eq!((pack_gqa.heads(), pack_gqa.packs()), (64, 2));
    }

    #[test]
    fn every_query_of_every_head_has_a_row() {
        for (shift, group) in [(0, 3), (1, 2), (3, 5), (6, 64)] {
            let pack_gqa = PackGqa { shift, group };
            let mut next = 0;
            for query in 0..5 {
                for head in 0..pack_gqa.heads() {
                    assert_eq!((pack_gqa.query(next), pack_gqa.head(next)), (query, head));
                    next += 1;
                }
            }
            assert_eq!(next, pack_gqa.rows(5));
        }
    }
}
