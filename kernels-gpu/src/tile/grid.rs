//! Which tile of queries a block works on.

/// One tile: rows `m_block · block_m ..` of one query head of one batch entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCoord {
    pub m_block: u32,
    pub head: u32,
    pub batch: u32,
}

/// All tiles of a launch, in the order blocks take them.
///
/// Tiles of one head are neighbours, so that blocks running at the same time read the same K and V from
/// L2; within a head the last rows come first, as under a causal mask they are the longest.
#[derive(Clone, Copy, Debug)]
pub struct TileGrid {
    m_blocks: u32,
    heads: u32,
    /// Number of tiles. Beyond what a grid can hold, blocks take several.
    pub count: u64,
}

impl TileGrid {
    /// All tiles of `batch · heads` sequences of `seq_q` rows.
    #[inline(always)]
    pub fn new(batch: u32, heads: u32, seq_q: u32, block_m: u32) -> Self {
        let m_blocks = seq_q.div_ceil(block_m);
        Self {
            m_blocks,
            heads,
            count: m_blocks as u64 * heads as u64 * batch as u64,
        }
    }

    /// Tile number `index`, which is below [`TileGrid::count`].
    #[inline(always)]
    pub fn get(&self, index: u64) -> BlockCoord {
        let (sequence, reversed) = divide(index, self.m_blocks as u64);
        let (batch, head) = divide(sequence, self.heads as u64);
        BlockCoord {
            m_block: self.m_blocks - 1 - reversed as u32,
            head: head as u32,
            batch: batch as u32,
        }
    }

    /// The number of tile `coord`, one of the launch.
    #[inline(always)]
    pub fn index(&self, coord: BlockCoord) -> u64 {
        let sequence = coord.batch as u64 * self.heads as u64 + coord.head as u64;
        sequence * self.m_blocks as u64 + (self.m_blocks - 1 - coord.m_block) as u64
    }

    /// Number of the last tile, of a launch that has tiles and numbers them with 32 bits.
    #[inline(always)]
    pub fn last(&self) -> u32 {
        (self.count - 1) as u32
    }

    /// Blocks to launch: one a tile, up to the largest one-dimensional grid.
    pub fn grid(&self) -> u32 {
        self.count.min(i32::MAX as u64) as u32
    }
}

/// Quotient and remainder of a division by `divisor`, which is not 0, in 32 bits if they suffice: a 64-bit division
/// takes about 100 instructions.
#[inline(always)]
pub fn divide(dividend: u64, divisor: u64) -> (u64, u64) {
    // SAFETY: callers divide only where there is an element, so no extent is zero. Without this the division has a
    // panic branch.
    unsafe { core::hint::assert_unchecked(divisor != 0) };
    if (dividend | divisor) >> 32 == 0 {
        let (dividend, divisor) = (dividend as u32, divisor as u32);
        // SAFETY: as above.
        unsafe { core::hint::assert_unchecked(divisor != 0) };
        ((dividend / divisor) as u64, (dividend % divisor) as u64)
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
        for index in 0..list.count {
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
    fn more_tiles_than_a_grid_or_32_bits_hold() {
        let list = TileGrid::new(1 << 16, 1 << 16, 64, 32);
        assert_eq!(list.count, 1 << 33);
        assert_eq!(list.grid(), i32::MAX as u32);
        assert_eq!(
            list.get((1 << 33) - 1),
            BlockCoord {
                m_block: 0,
                head: 65535,
                batch: 65535
            }
        );
    }
}
