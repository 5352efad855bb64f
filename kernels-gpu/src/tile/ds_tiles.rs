//! Where dS lies between the kernel that computes it and the one that multiplies it with K.
//!
//! A *unit* is a head of k and v of a batch entry, with all query heads of its group. Units follow each other as many at a
//! time as the workspace holds ([`DsChunk`](crate::abi::DsChunk)); each is a grid of tiles, whose inside is a family's own:
//!
//! ```text
//! [unit of the chunk][query head of the group][block of queries][block of keys]
//! ```
//!
//! All units have the extents of the longest sequence. Tiles that no query sees are neither written nor read.

use crate::abi::AttentionParams;

/// The extents of a unit's dS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsTiles {
    /// Query heads that share a head of k and v.
    pub group: u32,
    q_blocks: u32,
    kv_blocks: u32,
    tile_bytes: u32,
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
        Self {
            group,
            q_blocks: params.seq_q.div_ceil(block_q),
            kv_blocks: params.seq_kv.div_ceil(block_kv),
            tile_bytes: block_q * block_kv * elem_bytes,
        }
    }

    /// Bytes of a unit; `None` if they do not fit 64 bits.
    pub fn unit_bytes(&self) -> Option<u64> {
        let blocks = u64::from(self.q_blocks) * u64::from(self.kv_blocks);
        let of_head = blocks.checked_mul(u64::from(self.tile_bytes))?;
        of_head.checked_mul(u64::from(self.group))
    }

    /// Bytes from the start of the chunk to tile (`q_block`, `kv_block`) of query head `head` of the group of the chunk's
    /// unit number `unit`.
    #[inline(always)]
    pub const fn offset(&self, unit: u64, head: u32, q_block: u32, kv_block: u32) -> u64 {
        let heads = unit * self.group as u64 + head as u64;
        let rows = heads * self.q_blocks as u64 + q_block as u64;
        (rows * self.kv_blocks as u64 + kv_block as u64) * self.tile_bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use bytemuck::Zeroable;

    use super::*;

    fn params() -> AttentionParams {
        AttentionParams {
            heads_q: 6,
            heads_kv: 2,
            seq_q: 100,
            seq_kv: 33,
            ..AttentionParams::zeroed()
        }
    }

    /// Every tile of every unit has a place of its own, and all lie inside.
    #[test]
    fn tiles_lie_apart() {
        let tiles = DsTiles::new(&params(), 32, 16, 2);
        let (units, tile_bytes) = (2, 32 * 16 * 2);
        let all = units * tiles.unit_bytes().unwrap() / tile_bytes;
        let mut taken = vec![false; all as usize];
        for unit in 0..units {
            for head in 0..3 {
                for q_block in 0..4 {
                    for kv_block in 0..3 {
                        let offset = tiles.offset(unit, head, q_block, kv_block);
                        assert_eq!(offset % tile_bytes, 0);
                        let place = &mut taken[(offset / tile_bytes) as usize];
                        assert!(!core::mem::replace(place, true));
                    }
                }
            }
        }
        assert!(taken.into_iter().all(|is_taken| is_taken));
    }

    #[test]
    fn no_rows_or_heads_take_no_bytes() {
        let without = |change: fn(&mut AttentionParams)| {
            let mut params = params();
            change(&mut params);
            DsTiles::new(&params, 32, 16, 2).unit_bytes()
        };
        assert_eq!(without(|params| params.seq_q = 0), Some(0));
        assert_eq!(without(|params| params.seq_kv = 0), Some(0));
        assert_eq!(without(|params| params.heads_kv = 0), Some(0));
        let huge = without(|params| {
            (params.seq_q, params.seq_kv) = (u32::MAX, u32::MAX);
        });
        assert_eq!(huge, None);
    }
}
