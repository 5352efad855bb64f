//! Where dS lies between the kernel that computes it and the one that multiplies it with K.
//!
//! A *unit* is a head of k and v of a batch entry, with all query heads of its group. Units follow each other as many at a
//! time as the workspace holds ([`DsChunk`]); each is a list of tiles, whose inside is a family's own:
//!
//! ```text
//! [unit of the chunk][query head of the group][block of queries][block of keys that it sees]
//! ```
//!
//! A block of queries has places for the keys of its band alone: half of them under a causal mask. Where sequences differ in
//! length, and with them their bands, it has places for all keys of the longest. Where a unit is computed in parts, a chunk has
//! the heads and blocks of queries of one part.

use crate::abi::{AttentionParams, Band, Corner, DsChunk};

/// The extents of a unit's dS, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsTiles {
    /// Query heads that share a head of k and v.
    pub group: u32,
    /// First block of queries of a head, and how many.
    first_q_block: u32,
    pub q_blocks: u32,
    kv_blocks: u32,
    tile_bytes: u32,
    /// Block `i` of the queries sees blocks `i + begin .. i + end` of the keys, of those that exist.
    begin: i32,
    end: i32,
}

impl DsTiles {
    /// Those of a launch whose tiles are `block_q` queries by `block_kv` keys, of elements of `elem_bytes`.
    #[inline(always)]
    pub const fn new(
        params: &AttentionParams,
        block_q: u32,
        block_kv: u32,
        elem_bytes: u32,
    ) -> Self {
        // A launch without keys may be one without heads of k and v.
        let group = match params.heads_kv {
            0 => 0,
            heads_kv => params.heads_q / heads_kv,
        };
        let (band, block) = (params.mask.band, block_q as i32);
        let (begin, end) = match params.mask.corner() {
            Corner::TopLeft if block_q == block_kv => (
                band.lower.div_euclid(block),
                (band.upper + block - 1).div_euclid(block) + 1,
            ),
            _ => (-Band::OPEN, Band::OPEN),
        };
        Self {
            group,
            first_q_block: 0,
            q_blocks: params.seq_q.div_ceil(block_q),
            kv_blocks: params.seq_kv.div_ceil(block_kv),
            tile_bytes: block_q * block_kv * elem_bytes,
            begin,
            end,
        }
    }

    /// Those of a part of each unit.
    #[inline(always)]
    pub const fn of_part(self, chunk: &DsChunk) -> Self {
        Self {
            group: chunk.end_head - chunk.first_head,
            first_q_block: chunk.first_q_block,
            q_blocks: chunk.end_q_block - chunk.first_q_block,
            ..self
        }
    }

    /// Bytes of a unit; `None` if they do not fit 64 bits.
    pub fn unit_bytes(&self) -> Option<u64> {
        let of_head = self.head_tiles().checked_mul(u64::from(self.tile_bytes))?;
        of_head.checked_mul(u64::from(self.group))
    }

    /// Bytes of a block of queries that sees most keys.
    pub fn row_bytes(&self) -> u64 {
        let of_band = self.end.saturating_sub(self.begin).max(0) as u32;
        u64::from(self.kv_blocks.min(of_band)) * u64::from(self.tile_bytes)
    }

    /// Bytes from the start of the chunk to tile (`q_block`, `kv_block`) of query head `head` of the group, or the part of it,
    /// of the chunk's unit number `unit`. The blocks are counted from those of the whole head.
    #[inline(always)]
    pub fn offset(&self, unit: u64, head: u32, q_block: u32, kv_block: u32) -> u64 {
        let head = unit * self.group as u64 + head as u64;
        let tiles = (kv_block as u64).wrapping_sub(self.tiles_before(self.first_q_block));
        let offset = tiles.wrapping_mul(self.tile_bytes as u64);
        offset.wrapping_add(self.row_offset(head, q_block))
    }

    /// What [`offset`](Self::offset) adds for block `q_block` of the queries of the chunk's head number `head`.
    #[inline(always)]
    pub fn row_offset(&self, head: u64, q_block: u32) -> u64 {
        let heads = head * self.head_tiles();
        let before = self.tiles_before(q_block);
        let begin = clamped(q_block, self.begin, self.kv_blocks);
        let tiles = (heads + before).wrapping_sub(begin as u64);
        tiles.wrapping_mul(self.tile_bytes as u64)
    }

    /// Tiles of a head.
    #[inline(always)]
    fn head_tiles(&self) -> u64 {
        let end = self.first_q_block + self.q_blocks;
        self.tiles_before(end) - self.tiles_before(self.first_q_block)
    }

    /// Tiles of the blocks of queries before `q_block`.
    #[inline(always)]
    fn tiles_before(&self, q_block: u32) -> u64 {
        let sum = |shift| sum_of_clamped(q_block, shift, self.kv_blocks);
        (sum(self.end) - sum(self.begin)) as u64
    }
}

/// `row + shift`, between 0 and `most`.
#[inline(always)]
fn clamped(row: u32, shift: i32, most: u32) -> u32 {
    (row as i32 + shift).max(0).min(most as i32) as u32
}

/// The sum of [`clamped`] over the rows before `rows`.
#[inline(always)]
fn sum_of_clamped(rows: u32, shift: i32, most: u32) -> i64 {
    // The rows from which on it grows, and no more.
    let grows = (-shift).max(0).min(rows as i32) as i64;
    let stays = (most as i32 - shift).max(0).min(rows as i32) as i64;
    let growing = stays - grows;
    growing * (grows + stays - 1 + 2 * shift as i64) / 2 + (rows as i64 - stays) * most as i64
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use bytemuck::Zeroable;

    use super::*;
    use crate::abi::MaskParams;
    use crate::tile::block_range::BlockRange;

    const BLOCK: u32 = 16;
    const TILE_BYTES: u64 = 16 * 16 * 2;
    const OPEN: i32 = Band::OPEN;

    fn params(seq_q: u32, seq_kv: u32, (lower, upper): (i32, i32)) -> AttentionParams {
        AttentionParams {
            heads_q: 6,
            heads_kv: 2,
            seq_q,
            seq_kv,
            mask: MaskParams::new(Band { lower, upper }, Corner::TopLeft),
            ..AttentionParams::zeroed()
        }
    }

    /// Every tile of `units` units that some query sees.
    fn seen(params: &AttentionParams, tiles: &DsTiles, units: u64) -> Vec<u64> {
        let mut offsets = vec![];
        for (unit, head) in
            (0..units).flat_map(|unit| (0..tiles.group).map(move |head| (unit, head)))
        {
            for q_block in tiles.first_q_block..tiles.first_q_block + tiles.q_blocks {
                let rows = (q_block * BLOCK, params.seq_q.min((q_block + 1) * BLOCK));
                let band = params.mask.band;
                let range = BlockRange::new(rows.0, rows.1, band, params.seq_kv, BLOCK);
                for kv_block in range.begin..range.end {
                    offsets.push(tiles.offset(unit, head, q_block, kv_block));
                }
            }
        }
        offsets
    }

    /// Every tile of every unit has a place of its own, in order, and all lie inside: also in a part.
    #[test]
    fn tiles_lie_apart() {
        let bands = [
            (-OPEN, OPEN),
            (-OPEN, 0),
            (-OPEN, -30),
            (-40, 17),
            (5, 21),
            (0, OPEN),
            (-33, -16),
        ];
        for (seq_q, seq_kv) in [(100, 33), (33, 100), (64, 64), (1, 1), (90, 90)] {
            for band in bands {
                let params = params(seq_q, seq_kv, band);
                let whole = DsTiles::new(&params, BLOCK, BLOCK, 2);
                let part = whole.of_part(&DsChunk {
                    first_head: 1,
                    end_head: 3,
                    first_q_block: whole.q_blocks / 2,
                    end_q_block: whole.q_blocks,
                    ..DsChunk::zeroed()
                });
                for tiles in [whole, part] {
                    let offsets = seen(&params, &tiles, 2);
                    assert!(offsets.iter().all(|offset| offset % TILE_BYTES == 0));
                    assert!(offsets.is_sorted_by(|a, b| a < b), "{tiles:?}");
                    let end = offsets.last().map_or(0, |last| last + TILE_BYTES);
                    assert!(end <= 2 * tiles.unit_bytes().unwrap(), "{tiles:?}");
                }
            }
        }
    }

    /// Masks save places where the bands of all sequences are known.
    #[test]
    fn hidden_tiles_take_no_place() {
        let bytes = |band, corner| {
            let mut params = params(160, 160, band);
            params.mask = MaskParams::new(params.mask.band, corner);
            let bytes = DsTiles::new(&params, BLOCK, BLOCK, 2).unit_bytes();
            bytes.unwrap() / 3 / TILE_BYTES
        };
        assert_eq!(bytes((-OPEN, OPEN), Corner::TopLeft), 100);
        assert_eq!(bytes((-OPEN, 0), Corner::TopLeft), 55);
        assert_eq!(bytes((-16, 0), Corner::TopLeft), 19);
        assert_eq!(bytes((-16, 0), Corner::BottomRight), 100);
    }

    #[test]
    fn no_rows_or_heads_take_no_bytes() {
        let without = |change: fn(&mut AttentionParams)| {
            let mut params = params(100, 33, (-OPEN, OPEN));
            change(&mut params);
            DsTiles::new(&params, 32, 16, 2).unit_bytes()
        };
        assert_eq!(without(|params| params.seq_q = 0), Some(0));
        assert_eq!(without(|params| params.seq_kv = 0), Some(0));
        assert_eq!(without(|params| params.heads_kv = 0), Some(0));
        let longest = without(|params| (params.seq_q, params.seq_kv) = (1 << 30, 1 << 30));
        assert_eq!(longest, Some(3 << (60 + 1)));
    }
}
