//! Which tile of queries a block works on.

use super::l2::Sections;

/// One tile: rows `m_block · block_m ..` of one query head of one batch entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCoord {
    pub m_block: u32,
    pub head: u32,
    pub batch: u32,
}

/// All tiles of a launch, in the order of its blocks.
///
/// Tiles of one head are neighbours, so that blocks running at the same time read the same K and V from
/// L2; within a head the last rows come first, as under a causal mask they are the longest.
#[derive(Clone, Copy, Debug)]
pub struct TileGrid {
    m_blocks: u32,
    heads: u32,
    /// Heads of all batch entries; of a launch that has tiles, which are no fewer.
    sequences: u32,
    /// Number of tiles; the host launches no more than [`TileGrid::LARGEST`].
    pub count: u64,
}

impl TileGrid {
    /// Most blocks of a one-dimensional grid (CUDA C++ Programming Guide, "Technical Specifications per Compute
    /// Capability").
    pub const LARGEST: u64 = i32::MAX as u64;

    /// All tiles of `batch · heads` sequences of `seq_q` rows.
    #[inline(always)]
    pub fn new(batch: u32, heads: u32, seq_q: u32, block_m: u32) -> Self {
        let m_blocks = seq_q.div_ceil(block_m);
        let sequences = heads as u64 * batch as u64;
        Self {
            m_blocks,
            heads,
            sequences: sequences as u32,
            count: m_blocks as u64 * sequences,
        }
    }

    /// Tiles of a head.
    #[inline(always)]
    pub fn m_blocks(&self) -> u32 {
        self.m_blocks
    }

    /// Tile number `index`, which is below [`TileGrid::count`].
    #[inline(always)]
    pub fn get(&self, index: u32) -> BlockCoord {
        let (sequence, reversed) = divide(index, self.m_blocks);
        self.coord(sequence, reversed)
    }

    /// As [`get`](Self::get), where heads of all batch entries are taken in `sections`, if any ([`super::l2`]).
    #[inline(always)]
    pub fn get_by_sections(&self, index: u32, sections: Option<Sections>) -> BlockCoord {
        let Some(sections) = sections else {
            // Fewer divisions, which short tiles notice.
            return self.get(index);
        };
        let (reversed, sequence) = sections.get(index, self.sequences);
        self.coord(sequence, reversed)
    }

    /// The tile of head `sequence` of all batch entries' that has `reversed` tiles of its head behind it.
    #[inline(always)]
    fn coord(&self, sequence: u32, reversed: u32) -> BlockCoord {
        let (batch, head) = divide(sequence, self.heads);
        BlockCoord {
            m_block: self.m_blocks - 1 - reversed,
            head,
            batch,
        }
    }

    /// The number of tile `coord`, one of the launch.
    #[inline(always)]
    pub fn index(&self, coord: BlockCoord) -> u32 {
        let sequence = coord.batch * self.heads + coord.head;
        sequence * self.m_blocks + (self.m_blocks - 1 - coord.m_block)
    }

    /// Number of the last tile, of a launch that has tiles.
    #[inline(always)]
    pub fn last(&self) -> u32 {
        (self.count - 1) as u32
    }

    /// Blocks to launch: one a tile.
    pub fn grid(&self) -> u32 {
        debug_assert!(self.count <= Self::LARGEST);
        self.count as u32
    }
}

/// The tile that block `block` of a launch works on, where the launch has `blocks` blocks, a tile each, of whole heads with
/// `tiles_of_head` tiles: all heads' first tile, then all heads' second, and so on. Returns the head and the tile.
///
/// Where a launch has few heads, the longest tiles of all of them begin first, and the shortest fill what is left in the end.
#[inline(always)]
pub fn longest_first(block: u32, blocks: u32, tiles_of_head: u32) -> (u32, u32) {
    let (heads, _) = divide(blocks, tiles_of_head);
    let (tile, head) = divide(block, heads);
    (head, tile)
}

/// Quotient and remainder of `number` by `by`, which is not 0.
#[inline(always)]
pub fn divide(number: u32, by: u32) -> (u32, u32) {
    // SAFETY: callers divide only where there is an element, so no extent is zero. Without this the division has a
    // panic branch.
    unsafe { core::hint::assert_unchecked(by != 0) };
    (number / by, number % by)
}

/// As [`divide`], of numbers that may need 64 bits; in 32 bits if they suffice: a 64-bit division takes about 100
/// instructions.
#[inline(always)]
pub fn divide_long(dividend: u64, divisor: u64) -> (u64, u64) {
    // SAFETY: as in `divide`.
    unsafe { core::hint::assert_unchecked(divisor != 0) };
    if (dividend | divisor) >> 32 == 0 {
        let (quotient, rest) = divide(dividend as u32, divisor as u32);
        (quotient as u64, rest as u64)
    } else {
        (dividend / divisor, dividend % divisor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_once_longest_first() {
        let list = TileGrid::new(2, 3, 100, 32);
        assert_eq!(list.count, 24);
        let mut seen = [[[false; 4]; 3]; 2];
        for index in 0..list.grid() {
            let tile = list.get(index);
            assert_eq!(list.index(tile), index);
            let slot = &mut seen[tile.batch as usize][tile.head as usize][tile.m_block as usize];
            assert!(!core::mem::replace(slot, true));
        }
        assert_eq!(
            list.get(0),
            BlockCoord {
                m_block: 3,
                head: 0,
                batch: 0
            }
        );
        assert_eq!(
            list.get(4),
            BlockCoord {
                m_block: 3,
                head: 1,
                batch: 0
            }
        );
    }

    #[test]
    fn the_largest_launch() {
        let list = TileGrid::new((1 << 16) - 1, 1 << 14, 64, 32);
        let last = BlockCoord {
            m_block: 0,
            head: (1 << 14) - 1,
            batch: (1 << 16) - 2,
        };
        assert!(list.count <= TileGrid::LARGEST);
        assert_eq!(list.get(list.last()), last);
        assert_eq!(list.index(last), list.last());
    }

    #[test]
    fn first_tiles_of_all_heads_come_first() {
        let order: [_; 6] = core::array::from_fn(|block| longest_first(block as u32, 6, 3));
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    }

    #[test]
    fn the_longest_tiles_of_a_section_come_first() {
        let list = TileGrid::new(2, 3, 100, 32);
        // A section of two heads, and one of the last four.
        let sections = Some(Sections {
            size: 2,
            tiles: 8,
            last: 1,
        });
        for (begin, section, heads) in [(0, 0..2, 2), (8, 2..6, 4)] {
            for index in 0..4 * heads {
                let sequence = section.start + index % heads;
                let expected = BlockCoord {
                    m_block: 3 - index / heads,
                    head: sequence % 3,
                    batch: sequence / 3,
                };
                assert_eq!(list.get_by_sections(begin + index, sections), expected);
            }
        }
    }

    #[test]
    fn long_divisions_agree_with_short_ones() {
        assert_eq!(divide_long(100, 7), (14, 2));
        assert_eq!(divide_long(1 << 40, 1 << 33), (128, 0));
        assert_eq!(divide_long((1 << 40) + 5, 10), (109_951_162_778, 1));
    }
}
