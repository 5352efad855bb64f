//! The order in which clusters take tiles.
//!
//! Tiles are numbered so that taking them in order keeps K and V of the running tiles in L2 and leaves short
//! tiles for the end. Each cluster fetches the next number from a semaphore in global memory, which balances
//! better than any fixed split: tiles of a causal mask differ in length, and SMs in speed.

use bytemuck::{Pod, Zeroable};

use super::tile_list::{ListHeader, ListedCoord, ListedTile, Order, capacity};
use crate::abi::AttentionParams;
use crate::config::wgmma::WgmmaConfig;
use crate::tile::grid::divide;
use crate::tile::l2::{Sections, head_bytes, row_bytes, uneven};
use crate::units::HALF_BYTES;
use crate::wgmma::pack_gqa::PackGqa;

/// One cluster's tile: rows `cluster_m_block · cluster_m ..` of a pack of query heads ([`PackGqa`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileCoord {
    pub cluster_m_block: u32,
    /// The pack's first query head, from the first of its group.
    pub head: u32,
    /// The key/value head it reads.
    pub head_kv: u32,
    pub batch: u32,
}

/// All tiles of a launch. The host computes it and passes it to the kernel by value.
///
/// Dense: heads are grouped into sections of about equal size; within a section the last rows of every head come
/// first, which under a causal mask are the longest.
///
/// Varlen, counted: as dense, with as many tiles for every sequence as the longest may have, of which some have no rows.
///
/// Varlen, listed: another kernel has listed the non-empty tiles of one pack ([`super::tile_list`]), and the values that depend
/// on their number are in the list's header. The list is walked in one of two ways ([`Order`]).
///
/// Aligned to 8 bytes, so that a kernel loads two fields at a time from the parameters.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Schedule {
    /// Tiles of a head; listed: 0.
    pub(super) cluster_m_blocks: u32,
    /// Packs of a batch entry, each of which takes the place of a query head.
    packs: u32,
    /// Packs that share a key/value head.
    packs_of_group: u32,
    /// `batch · packs`; listed: `packs`.
    sequences: u32,
    /// Listed: the size is 0 for [`Order::BySequence`], else not 0, and says nothing more.
    sections: Sections,
    /// Number of the last tile; listed: an upper bound on tile numbers.
    pub last: u32,
    pub pack_gqa: PackGqa,
    /// Clusters of the launch, which take the first tiles without fetching them.
    pub clusters: u32,
    reserved: u32,
}

impl Schedule {
    /// The tiles of dense `params`, or of varlen ones to be counted, for a kernel of shape `config`; `None` if there are none, or too
    /// many to number with 31 bits.
    pub fn new(params: &AttentionParams, pack_gqa: PackGqa, config: &WgmmaConfig) -> Option<Self> {
        let rows = params.seq_q.checked_mul(pack_gqa.heads())?;
        let cluster_m_blocks = rows.div_ceil(config.cluster_m());
        let packs = params.heads_kv.checked_mul(pack_gqa.packs())?;
        let sequences = params.batch.checked_mul(packs)?;
        let last = last(cluster_m_blocks, sequences)?;
        let sections = if uneven(params) {
            let kv_heads = params.batch * params.heads_kv;
            let head_bytes = head_bytes(params.seq_kv, row_bytes(params, HALF_BYTES));
            let (group, cluster) = (pack_gqa.packs(), config.cluster);
            Sections::new(kv_heads, head_bytes, group, cluster_m_blocks, cluster)
        } else {
            Sections::one_each(sequences, cluster_m_blocks)
        };
        Some(Self {
            cluster_m_blocks,
            packs,
            packs_of_group: pack_gqa.packs(),
            sequences,
            sections,
            last,
            pack_gqa,
            clusters: 0,
            reserved: 0,
        })
    }

    /// The tiles of varlen `params` to be listed, whatever the lengths of its sequences; `None` if there may be too many to number.
    pub fn listed(
        params: &AttentionParams,
        pack_gqa: PackGqa,
        config: &WgmmaConfig,
    ) -> Option<Self> {
        let packs = params.heads_kv.checked_mul(pack_gqa.packs())?;
        let last = last(capacity(params, pack_gqa, config.cluster_m())?, packs)?;
        Some(Self {
            cluster_m_blocks: 0,
            packs,
            packs_of_group: pack_gqa.packs(),
            sequences: packs,
            sections: Sections {
                size: match Order::of(params) {
                    Order::BySequence => 0,
                    Order::LongestFirst { .. } => packs,
                },
                ..Sections::zeroed()
            },
            last,
            pack_gqa,
            clusters: 0,
            reserved: 0,
        })
    }

    /// The schedule on a GPU with room for `resident` blocks at once, in clusters of `cluster`.
    pub fn on_gpu(self, resident: u32, cluster: u32) -> Self {
        Self {
            clusters: (resident / cluster).clamp(1, self.last + 1),
            ..self
        }
    }

    /// Tile number `index`, at most [`Schedule::last`], of a dense or counted launch.
    #[inline(always)]
    pub fn get(&self, index: u32) -> TileCoord {
        let (reversed, sequence) = self.sections.get(index, self.sequences);
        let (batch, pack) = divide(sequence, self.packs);
        let (head_kv, head) = self.heads_of(pack);
        TileCoord {
            cluster_m_block: self.cluster_m_blocks - 1 - reversed,
            head,
            head_kv,
            batch,
        }
    }

    /// Tile number `index`, below [`ListHeader::tiles`], of a listed launch, and which entry of the list has its
    /// sequence's rows; `load` gives the coordinate of the entry at an offset, in bytes from the first.
    #[inline(always)]
    pub fn get_listed(
        &self,
        header: &ListHeader,
        index: u32,
        load: impl FnOnce(u64) -> ListedCoord,
    ) -> (TileCoord, u64) {
        let (number, pack) = header.sections.get(index, self.sequences);
        let entry = number as u64 * size_of::<ListedTile>() as u64;
        let listed = load(entry);
        let (cluster_m_block, pack) = if self.is_by_sequence() {
            // A sequence with 3 tiles and 2 packs, listed from entry 5 on, has the numbers 10 .. 16: packs 0 0 0 1 1 1, tiles
            // 2 1 0 2 1 0. `number` = index / packs falls on one of its entries, which says how far the first is.
            let first = number - (listed.cluster_m_blocks - 1 - listed.cluster_m_block);
            let (pack, reversed) = divide(index - first * self.packs, listed.cluster_m_blocks);
            (listed.cluster_m_blocks - 1 - reversed, pack)
        } else {
            (listed.cluster_m_block, pack)
        };
        let (head_kv, head) = self.heads_of(pack);
        let tile = TileCoord {
            cluster_m_block,
            head,
            head_kv,
            batch: listed.batch,
        };
        (tile, entry)
    }

    /// Whether tiles are listed.
    #[inline(always)]
    pub const fn is_listed(&self) -> bool {
        Self::lists(self.cluster_m_blocks)
    }

    /// [`Self::is_listed`], by that field of a schedule.
    #[inline(always)]
    pub(super) const fn lists(cluster_m_blocks: u32) -> bool {
        cluster_m_blocks == 0
    }

    /// Whether a list is in [`Order::BySequence`].
    #[inline(always)]
    fn is_by_sequence(&self) -> bool {
        self.sections.size == 0
    }

    /// The key/value head and the first query head, from the first of its group, of a batch entry's pack.
    #[inline(always)]
    fn heads_of(&self, pack: u32) -> (u32, u32) {
        let (head_kv, pack) = divide(pack, self.packs_of_group);
        (head_kv, pack * self.pack_gqa.heads())
    }
}

/// Number of the last of `cluster_m_blocks · sequences` tiles; `None` if there are none, or too many.
fn last(cluster_m_blocks: u32, sequences: u32) -> Option<u32> {
    let count = cluster_m_blocks.checked_mul(sequences)?;
    (count <= i32::MAX as u32)
        .then(|| count.checked_sub(1))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Band, Corner, MaskParams};
    use crate::config::wgmma::HD128;
    use bytemuck::Zeroable;

    fn params(batch: u32, heads: [u32; 2], seq: u32, band: Band) -> AttentionParams {
        AttentionParams {
            batch,
            heads_q: heads[0],
            heads_kv: heads[1],
            seq_q: seq,
            seq_kv: seq,
            head_dim: 128,
            head_dim_v: 128,
            mask: MaskParams::new(band, Corner::TopLeft),
            ..AttentionParams::zeroed()
        }
    }

    /// For clusters of so many blocks of 128 rows.
    fn one_head_a_tile(params: &AttentionParams, cluster: u32) -> Option<Schedule> {
        let group = params.heads_q / params.heads_kv;
        Schedule::new(params, PackGqa::none(group), &config(cluster))
    }

    fn config(cluster: u32) -> WgmmaConfig {
        WgmmaConfig { cluster, ..HD128 }
    }

    const CAUSAL: Band = Band {
        lower: -Band::OPEN,
        upper: 0,
    };

    #[test]
    fn every_tile_once() {
        for band in [CAUSAL, Band::FULL] {
            // 2 MiB of K and V a head: sections of four heads, which two query heads read each.
            let params = params(5, [16, 8], 4096, band);
            let schedule = one_head_a_tile(&params, 2).unwrap();
            assert_eq!(schedule.last + 1, 5 * 16 * 16);
            let mut seen = [false; 5 * 16 * 16];
            for index in 0..=schedule.last {
                let tile = schedule.get(index);
                assert!(tile.head < 2);
                let sequence = tile.batch * 16 + tile.head_kv * 2 + tile.head;
                let slot = &mut seen[(sequence * 16 + tile.cluster_m_block) as usize];
                assert!(!core::mem::replace(slot, true), "{tile:?} twice");
            }
        }
    }

    #[test]
    fn sections_are_equal_and_fit_the_l2() {
        let params = params(5, [16, 8], 4096, CAUSAL);
        let schedule = one_head_a_tile(&params, 2).unwrap();
        let sections = Sections {
            size: 8,
            tiles: 8 * 16,
            last: 8,
        };
        assert_eq!(schedule.sections, sections);
        // The longest tiles of every head of a section come first.
        let first = (0..8).map(|index| schedule.get(index));
        assert!(first.into_iter().all(|tile| tile.cluster_m_block == 15));
        assert_eq!(schedule.get(8).cluster_m_block, 14);
    }

    #[test]
    fn full_attention_keeps_to_one_head() {
        let params = params(1, [2, 2], 1024, Band::FULL);
        let schedule = one_head_a_tile(&params, 2).unwrap();
        assert!((0..4).all(|index| schedule.get(index).head_kv == 0));
    }

    #[test]
    fn packs_take_the_place_of_heads() {
        // Five heads to a group, in packs of eight: 800 rows, four tiles.
        let params = params(3, [10, 2], 100, CAUSAL);
        let pack_gqa = PackGqa::fewest_tiles(5, [100].into_iter(), 1024);
        assert_eq!(pack_gqa.heads(), 8);
        let schedule = Schedule::new(&params, pack_gqa, &config(2)).unwrap();
        assert_eq!(schedule.last + 1, 3 * 2 * 4);
        let mut seen = [false; 3 * 2 * 4];
        for index in 0..=schedule.last {
            let tile = schedule.get(index);
            assert_eq!(tile.head, 0);
            let slot = (tile.batch * 2 + tile.head_kv) * 4 + tile.cluster_m_block;
            assert!(!core::mem::replace(&mut seen[slot as usize], true));
        }
        // 32 queries: packs of four, the second with one head of its own.
        let pack_gqa = PackGqa::fewest_tiles(5, [32].into_iter(), 128);
        let schedule = Schedule::new(&params, pack_gqa, &config(4)).unwrap();
        let heads = (0..4).map(|index| {
            let tile = schedule.get(index);
            (tile.head_kv, tile.head)
        });
        assert!(heads.eq([(0, 0), (0, 4), (1, 0), (1, 4)]));
        assert_eq!(schedule.last + 1, 3 * 4);
    }

    #[test]
    fn refuses_what_cannot_be_numbered() {
        assert!(one_head_a_tile(&params(1, [1, 1], 0, CAUSAL), 2).is_none());
        assert!(one_head_a_tile(&params(1 << 16, [1 << 10, 1], 1 << 15, CAUSAL), 1).is_none());
        assert!(one_head_a_tile(&params(1 << 20, [1 << 13, 1], 1, CAUSAL), 1).is_none());
        // 2³¹ tiles fit 32 bits, but not with room for numbers past the end; half as many do.
        assert!(one_head_a_tile(&params(1 << 16, [1 << 8, 1], 1 << 14, CAUSAL), 1).is_none());
        assert!(one_head_a_tile(&params(1 << 16, [1 << 8, 1], 1 << 13, CAUSAL), 1).is_some());
    }

    #[test]
    fn the_grid_is_whole_clusters() {
        let schedule = one_head_a_tile(&params(1, [2, 2], 1024, CAUSAL), 2).unwrap();
        assert_eq!(schedule.on_gpu(132, 2).clusters, 8);
        assert_eq!(schedule.on_gpu(7, 2).clusters, 3);
    }
}
