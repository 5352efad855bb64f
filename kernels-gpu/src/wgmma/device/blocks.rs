//! The key blocks of a cluster's tile, of one block's part of it, and of one warpgroup's.

use super::Launch;
use crate::config::wgmma::{WARPGROUP_ROWS, WgmmaTile};
use crate::tile::block_range::BlockRange;
use crate::tile::sequence::Sequence;
use crate::wgmma::schedule::Tile;

/// Key blocks the whole cluster loads. Never empty, so that the pipelines always turn: a tile that sees no key
/// gets one block, which its masks hide.
#[inline(always)]
pub fn cluster_range(sequence: &Sequence, tile: &WgmmaTile, place: Tile) -> BlockRange {
    let begin = place.super_block * tile.cluster_m();
    range(sequence, tile, begin, tile.cluster_m()).unwrap_or(BlockRange::hidden(0))
}

/// The key blocks of one warpgroup, and of the larger parts it keeps step with.
#[derive(Clone, Copy)]
pub struct Ranges {
    pub cluster: BlockRange,
    /// Of the thread block; a part of `cluster`.
    pub block: BlockRange,
    /// Of the warpgroup; a part of `block`.
    pub own: BlockRange,
    /// The warpgroup's first query.
    pub row_begin: u32,
}

impl Ranges {
    #[inline(always)]
    pub fn new(
        launch: &Launch,
        tile: &WgmmaTile,
        sequence: &Sequence,
        place: Tile,
        warpgroup: u32,
    ) -> Self {
        let cluster = cluster_range(sequence, tile, place);
        let m_begin = place.super_block * tile.cluster_m() + launch.rank * tile.block_m();
        let row_begin = m_begin + warpgroup * WARPGROUP_ROWS;
        // Rows that see no key share a block with the others, the last one: what is passed over at the right is then
        // the mask's doing alone.
        let part = |outer: &BlockRange, begin: u32, rows: u32| {
            range(sequence, tile, begin, rows).unwrap_or(BlockRange::hidden(outer.end - 1))
        };
        let block = part(&cluster, m_begin, tile.block_m());
        let own = part(&block, row_begin, WARPGROUP_ROWS);
        Self {
            cluster,
            block,
            own,
            row_begin,
        }
    }
}

/// Key blocks that `rows` rows from `begin` on need, if any.
#[inline(always)]
fn range(sequence: &Sequence, tile: &WgmmaTile, begin: u32, rows: u32) -> Option<BlockRange> {
    let Sequence {
        seq_q,
        seq_kv,
        band,
        ..
    } = *sequence;
    BlockRange::of_rows(begin, rows, seq_q, band, seq_kv, tile.block_n)
}
