//! The key blocks of a cluster's tile, of one block's part of it, and of one warpgroup's.

use super::Launch;
use crate::config::wgmma::{WARPGROUP_ROWS, WgmmaConfig};
use crate::tile::black_box;
use crate::tile::block_range::{BlockRange, visible_keys};
use crate::tile::sequence::Sequence;
use crate::wgmma::pack_gqa::PackGqa;
use crate::wgmma::scheduler::TileCoord;

/// Key blocks the whole cluster loads. Never empty, so that every pipeline moves with every tile: a tile that sees no
/// key gets one block, which is masked out.
#[inline(always)]
pub fn cluster_range(
    sequence: &Sequence,
    config: &WgmmaConfig,
    work_tile: TileCoord,
    pack_gqa: PackGqa,
) -> BlockRange {
    let begin = work_tile.cluster_m_block * config.cluster_m();
    range(sequence, config, pack_gqa, begin, config.cluster_m(), 0)
}

/// First row of a warpgroup's part of a tile.
#[inline(always)]
pub fn row_begin(
    launch: &Launch,
    config: &WgmmaConfig,
    work_tile: TileCoord,
    warpgroup: u32,
) -> u32 {
    let block = work_tile.cluster_m_block * config.cluster + launch.rank;
    // black_box: otherwise ptxas keeps the row live across the kernel.
    black_box(block) * config.block_m() + warpgroup * WARPGROUP_ROWS
}

/// The key blocks of one warpgroup, and of the larger parts it keeps step with.
#[derive(Clone, Copy)]
pub struct Ranges {
    pub cluster: BlockRange,
    /// Blocks that the thread block needs; a part of `cluster`.
    pub block: BlockRange,
    /// Blocks that the warpgroup needs; a part of `block`.
    pub own: BlockRange,
}

impl Ranges {
    #[inline(always)]
    pub fn new(
        launch: &Launch,
        config: &WgmmaConfig,
        sequence: &Sequence,
        work_tile: TileCoord,
        warpgroup: u32,
    ) -> Self {
        let cluster = cluster_range(sequence, config, work_tile, launch.pack_gqa());
        Self::within(cluster, launch, config, sequence, work_tile, warpgroup)
    }

    /// As [`Ranges::new`], of which only the distances between `begin`s are asked for: where no row of the cluster sees a key they are 0,
    /// whatever its own is.
    #[inline(always)]
    pub fn begins(
        launch: &Launch,
        config: &WgmmaConfig,
        sequence: &Sequence,
        work_tile: TileCoord,
        warpgroup: u32,
    ) -> Self {
        let row = work_tile.cluster_m_block * config.cluster_m();
        let query = launch.pack_gqa().query(row);
        let (first, _) = visible_keys(query as i32, sequence.band, sequence.seq_kv);
        let cluster = BlockRange::masked_out(first as u32 / config.block_n);
        Self::within(cluster, launch, config, sequence, work_tile, warpgroup)
    }

    /// Those of a cluster whose own is `cluster`.
    #[inline(always)]
    fn within(
        cluster: BlockRange,
        launch: &Launch,
        config: &WgmmaConfig,
        sequence: &Sequence,
        work_tile: TileCoord,
        warpgroup: u32,
    ) -> Self {
        // Rows that see no key take a block that the others load anyway.
        let part = |outer: &BlockRange, begin: u32, rows: u32| {
            range(
                sequence,
                config,
                launch.pack_gqa(),
                begin,
                rows,
                outer.begin,
            )
        };
        let block = if config.cluster == 1 {
            cluster
        } else {
            let m_begin = row_begin(launch, config, work_tile, 0);
            part(&cluster, m_begin, config.block_m())
        };
        let row_begin = row_begin(launch, config, work_tile, warpgroup);
        let own = part(&block, row_begin, WARPGROUP_ROWS);
        Self {
            cluster,
            block,
            own,
        }
    }
}

/// Key blocks that `rows` rows from `begin` on need, or else `masked_out` alone.
#[inline(always)]
fn range(
    sequence: &Sequence,
    config: &WgmmaConfig,
    pack_gqa: PackGqa,
    begin: u32,
    rows: u32,
    masked_out: u32,
) -> BlockRange {
    let Sequence {
        seq_q,
        seq_kv,
        band,
        ..
    } = *sequence;
    let queries = pack_gqa.queries(begin, rows, seq_q);
    BlockRange::of_queries(queries, band, seq_kv, config.block_n, masked_out)
}
