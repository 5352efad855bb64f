//! The key blocks of a cluster's tile and of one block's part of it.

use crate::abi::ForwardParams;
use crate::config::wgmma::WgmmaTile;
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

/// Key blocks that block `rank` of the cluster needs, inside `cluster` and not empty.
#[inline(always)]
pub fn block_range(
    params: &ForwardParams,
    tile: &WgmmaTile,
    cluster: &BlockRange,
    m_begin: u32,
) -> BlockRange {
    let end = (m_begin + tile.block_m()).min(params.seq_q);
    if m_begin < end {
        let range = BlockRange::new(m_begin, end, params.band, params.seq_kv, tile.block_n);
        if range.begin < range.end {
            return range;
        }
    }
    BlockRange::hidden(cluster.begin)
}
