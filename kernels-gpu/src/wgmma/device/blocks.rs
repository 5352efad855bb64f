//! The key blocks of a cluster's tile, of one block's part of it, and of one warpgroup's.

use super::Launch;
use crate::config::wgmma::{WARPGROUP_ROWS, WgmmaTile};
use crate::tile::block_range::BlockRange;
use crate::tile::opaque;
use crate::tile::sequence::Sequence;
use crate::wgmma::gqa::Packing;
use crate::wgmma::schedule::Tile;

/// Key blocks the whole cluster loads. Never empty, so that the pipelines always turn: a tile that sees no key
/// gets one block, which its masks hide.
#[inline(always)]
pub fn cluster_range(
    sequence: &Sequence,
    tile: &WgmmaTile,
    place: Tile,
    packing: Packing,
) -> BlockRange {
    let begin = place.super_block * tile.cluster_m();
    range(sequence, tile, packing, begin, tile.cluster_m(), 0)
}

/// First row of a warpgroup's part of a tile.
#[inline(always)]
pub fn row_begin(launch: &Launch, tile: &WgmmaTile, place: Tile, warpgroup: u32) -> u32 {
    let block = place.super_block * tile.cluster + launch.rank;
    // Hidden, or what comes of the rank and the warpgroup would be kept through the kernel.
    opaque(block) * tile.block_m() + warpgroup * WARPGROUP_ROWS
}

/// The key blocks of one warpgroup, and of the larger parts it keeps step with.
#[derive(Clone, Copy)]
pub struct Ranges {
    pub cluster: BlockRange,
    /// Of the thread block; a part of `cluster`.
    pub block: BlockRange,
    /// Of the warpgroup; a part of `block`.
    pub own: BlockRange,
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
        let packing = launch.packing();
        let cluster = cluster_range(sequence, tile, place, packing);
        let m_begin = row_begin(launch, tile, place, 0);
        let row_begin = row_begin(launch, tile, place, warpgroup);
        // Rows that see no key share a block with the others.
        let part = |outer: &BlockRange, begin: u32, rows: u32| {
            range(sequence, tile, packing, begin, rows, outer.begin)
        };
        let block = part(&cluster, m_begin, tile.block_m());
        let own = part(&block, row_begin, WARPGROUP_ROWS);
        Self {
            cluster,
            block,
            own,
        }
    }
}

/// Key blocks that `rows` rows from `begin` on need, or else `hidden` alone.
#[inline(always)]
fn range(
    sequence: &Sequence,
    tile: &WgmmaTile,
    packing: Packing,
    begin: u32,
    rows: u32,
    hidden: u32,
) -> BlockRange {
    let Sequence {
        seq_q,
        seq_kv,
        band,
        ..
    } = *sequence;
    let queries = packing.queries(begin, rows, seq_q);
    BlockRange::of_queries(queries, band, seq_kv, tile.block_n, hidden)
}
