//! One sequence, as the list sees it.

use super::{ListedCoord, ListedTile, TileListParams};
use crate::abi::{Band, CachePages, SequenceRows};
use crate::tile::block_range::visible_keys;
use crate::tile::rows::used_address;

/// A sequence and its tiles.
#[derive(Clone, Copy)]
pub struct ListedSequence {
    batch: u32,
    pub rows: SequenceRows,
    /// Tiles of a pack of its heads; 0 if it has no queries.
    pub cluster_m_blocks: u32,
    band: Band,
    /// Queries of a tile.
    queries: u32,
}

impl ListedSequence {
    /// Sequence `batch` of the launch; `load` gives the i32 at a device address.
    #[inline(always)]
    pub fn new(params: &TileListParams, batch: u32, load: impl Fn(u64) -> i32) -> Self {
        let attention = &params.attention;
        let mut rows = SequenceRows::read(attention, batch, &load);
        if params.reads_cache != 0 && attention.lengths.has_cu_seqlens() {
            let length = load(used_address(attention, batch));
            if length == CachePages::SKIPPED {
                rows.seq_q = 0;
            }
            (rows.kv_begin, rows.seq_kv) = (0, (length.max(0) as u32).min(attention.seq_kv));
        }
        let queries = params.pack_gqa.query(params.cluster_m);
        // SAFETY: a tile has a row for every head of a pack. Without this a division carries a panic branch.
        unsafe { core::hint::assert_unchecked(queries != 0) };
        Self {
            batch,
            rows,
            cluster_m_blocks: rows.seq_q.div_ceil(queries),
            band: attention.mask.of_sequence(rows.seq_q, rows.seq_kv),
            queries,
        }
    }

    /// Keys from the first that a tile's first query sees to the last that its last query sees: about proportional to
    /// the time the tile takes.
    #[inline(always)]
    pub fn keys(&self, cluster_m_block: u32) -> u32 {
        let SequenceRows { seq_q, seq_kv, .. } = self.rows;
        let begin = cluster_m_block * self.queries;
        let end = (begin + self.queries).min(seq_q);
        let (first, _) = visible_keys(begin as i32, self.band, seq_kv);
        let (_, last) = visible_keys(end as i32 - 1, self.band, seq_kv);
        (last - first + 1).max(0) as u32
    }

    /// [`Self::keys`] of the longest tile; there has to be a tile.
    #[inline(always)]
    pub fn longest(&self) -> u32 {
        let last = self.cluster_m_blocks - 1;
        // The number of keys that a tile sees grows along the sequence until tiles reach the last key, and shrinks once
        // they leave the first key behind. It is a concave function of the tile's number, largest next to one of its
        // bends.
        let number = |key: i32| key.max(0) as u32 / self.queries;
        let reach_end = number(self.rows.seq_kv as i32 - self.band.upper);
        let leave_start = number(-self.band.lower);
        let beside = |number: u32| {
            let here = self.keys(number.min(last));
            here.max(self.keys((number + 1).min(last)))
        };
        beside(reach_end.saturating_sub(1))
            .max(beside(leave_start))
            .max(beside(last.saturating_sub(1)))
    }

    /// The entry of a tile.
    #[inline(always)]
    pub fn entry(&self, cluster_m_block: u32) -> ListedTile {
        ListedTile {
            coord: ListedCoord {
                cluster_m_block,
                cluster_m_blocks: self.cluster_m_blocks,
                batch: self.batch,
                reserved: 0,
            },
            rows: self.rows,
        }
    }
}
