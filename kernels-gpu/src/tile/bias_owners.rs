//! Which blocks a launch has that computes the gradient by a bias: each owns elements of its own.

use super::grid::TileGrid;
use crate::abi::{AttentionParams, BiasGradientParams};

/// What blocks own, of a kernel with tiles of so many queries and blocks of so many keys: for each head of the gradient's, a tile of one
/// row for every tile of queries that differ in their elements and every block of keys.
#[inline(always)]
pub fn owners(
    params: &BiasGradientParams,
    attention: &AttentionParams,
    [tile_queries, block_keys]: [u32; 2],
) -> TileGrid {
    let tiles = query_tiles(params, attention, tile_queries);
    let blocks = attention.seq_kv.div_ceil(block_keys);
    TileGrid::new(params.batch, params.heads, tiles * blocks, 1)
}

/// The tiles of queries that differ in their elements: one, of all, where queries share theirs.
#[inline(always)]
pub fn query_tiles(
    params: &BiasGradientParams,
    attention: &AttentionParams,
    tile_queries: u32,
) -> u32 {
    if params.queries == 1 {
        1
    } else {
        attention.seq_q.div_ceil(tile_queries)
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn every_element_has_one_owner() {
        let attention = AttentionParams {
            seq_q: 130,
            seq_kv: 100,
            ..Zeroable::zeroed()
        };
        let of = |queries| BiasGradientParams {
            batch: 2,
            heads: 3,
            queries,
            ..Zeroable::zeroed()
        };
        // Three tiles of queries and two blocks of keys.
        assert_eq!(owners(&of(130), &attention, [64, 64]).count, 2 * 3 * 3 * 2);
        assert_eq!(owners(&of(1), &attention, [64, 64]).count, 2 * 3 * 2);
    }
}
