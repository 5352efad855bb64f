//! The key blocks of a cluster's tile, of one block's part of it, and of one warpgroup's.

use super::Launch;
use crate::abi::ForwardParams;
use crate::config::wgmma::{WARPGROUP_ROWS, WgmmaTile};
use crate::tile::block_range::BlockRange;
use crate::wgmma::schedule::Tile;

/// Key blocks the whole cluster loads. Never empty, so that the pipelines always turn: a tile that sees no key
/// gets one block, which its masks hide.
#[inline(always)]
pub fn cluster_range(params: &ForwardParams, tile: &WgmmaTile, work: Tile) -> BlockRange {
    let begin = work.super_block * tile.cluster_m();
    let end = (begin + tile.cluster_m()).min(params.seq_q);
    let range = BlockRange::new(begin, end, params.band, params.seq_kv, tile.block_n);
    if range.begin < range.end {
        range
    } else {
        BlockRange::hidden(0)
    }
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
    pub fn new(launch: &Launch, tile: &WgmmaTile, place: Tile, warpgroup: u32) -> Self {
        let params = launch.params;
        let cluster = cluster_range(params, tile, place);
        let m_begin = place.super_block * tile.cluster_m() + launch.rank * tile.block_m();
        let block = part_range(params, tile, &cluster, m_begin, tile.block_m());
        let row_begin = m_begin + warpgroup * WARPGROUP_ROWS;
        Self {
            cluster,
            block,
            own: part_range(params, tile, &block, row_begin, WARPGROUP_ROWS),
            row_begin,
        }
    }
}

/// Key blocks that `rows` rows from `row_begin` on need, as a non-empty part of `outer`, which rows that see no
/// key share.
#[inline(always)]
fn part_range(
    params: &ForwardParams,
    tile: &WgmmaTile,
    outer: &BlockRange,
    row_begin: u32,
    rows: u32,
) -> BlockRange {
    let end = (row_begin + rows).min(params.seq_q);
    if row_begin < end {
        let range = BlockRange::new(row_begin, end, params.band, params.seq_kv, tile.block_n);
        if range.begin < range.end {
            return range;
        }
    }
    BlockRange::hidden(outer.begin)
}
