//! The order in which clusters take tiles.
//!
//! Tiles are numbered so that taking them in order keeps K and V of the running tiles in L2 and leaves short
//! tiles for the end. Each cluster draws the next number from a counter in global memory, which balances
//! better than any fixed split: tiles of a causal mask differ in length, and SMs in speed.

use bytemuck::{Pod, Zeroable};

use super::gqa::Packing;
use crate::abi::{Band, ForwardParams};

/// Bytes of K and V that the tiles in flight may share: what stays in the 50 MB L2 beside Q and O.
const L2_BYTES: u64 = 32 << 20;

/// One cluster's tile: rows `super_block · cluster_m ..` of a pack of query heads ([`Packing`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub super_block: u32,
    /// The pack's first query head, from the first of its group.
    pub head: u32,
    /// The key/value head it reads.
    pub head_kv: u32,
    pub batch: u32,
}

/// All tiles of a launch.
///
/// Heads are grouped into sections of about equal size; within a section the last rows of every head come
/// first, which under a causal mask are the longest. The host works it out and passes it to the kernel by value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Schedule {
    super_blocks: u32,
    /// Packs of a batch entry, each of which takes the place of a query head.
    packs: u32,
    /// Packs that share a key/value head.
    packs_of_group: u32,
    /// `batch · packs`.
    sequences: u32,
    /// Sequences of a section; the last one may have fewer.
    section: u32,
    /// Number of the last tile.
    pub last: u32,
    pub packing: Packing,
}

impl Schedule {
    /// The tiles of `params` for clusters of `cluster_m` rows; `None` if there are none, or too many to number
    /// with 31 bits.
    pub fn new(params: &ForwardParams, packing: Packing, cluster_m: u32) -> Option<Self> {
        let rows = params.seq_q.checked_mul(packing.heads())?;
        let super_blocks = rows.div_ceil(cluster_m);
        let packs = params.heads_kv.checked_mul(packing.packs())?;
        let sequences = params.batch.checked_mul(packs)?;
        let count = super_blocks.checked_mul(sequences)?;
        if count == 0 || count > i32::MAX as u32 {
            return None;
        }
        let section = if uneven(params) {
            section(params, sequences)
        } else {
            1
        };
        Some(Self {
            super_blocks,
            packs,
            packs_of_group: packing.packs(),
            sequences,
            section,
            last: count - 1,
            packing,
        })
    }

    /// Blocks to launch on a GPU with room for `resident` at once, in clusters of `cluster`.
    pub fn grid(&self, resident: u32, cluster: u32) -> u32 {
        (resident / cluster).min(self.last + 1) * cluster
    }

    /// Tile number `index`, at most [`Schedule::last`].
    #[inline(always)]
    pub fn get(&self, index: u32) -> Tile {
        let (number, in_section) = divide(index, self.section * self.super_blocks);
        let first = number * self.section;
        let sequences = self.section.min(self.sequences - first);
        let (reversed, sequence) = divide(in_section, sequences);
        let (batch, pack) = divide(first + sequence, self.packs);
        let (head_kv, pack) = divide(pack, self.packs_of_group);
        Tile {
            super_block: self.super_blocks - 1 - reversed,
            head: pack * self.packing.heads(),
            head_kv,
            batch,
        }
    }
}

/// Whether tiles of one head differ much in length: a border on the right but none near on the left.
fn uneven(params: &ForwardParams) -> bool {
    params.band.upper < Band::OPEN && -(params.band.lower as i64) >= params.seq_q as i64
}

/// Sequences of a section: equal sections of at most [`L2_BYTES`] of K and V, whole groups of packs.
fn section(params: &ForwardParams, sequences: u32) -> u32 {
    let kv_heads = params.batch * params.heads_kv;
    let head_bytes = params.seq_kv as u64 * (params.head_dim + params.head_dim_v) as u64 * 2;
    let sections = (kv_heads as u64 * head_bytes).div_ceil(L2_BYTES);
    let sections = sections.clamp(1, kv_heads as u64) as u32;
    kv_heads.div_ceil(sections) * (sequences / kv_heads)
}

/// Quotient and remainder by a positive number.
#[inline(always)]
fn divide(dividend: u32, divisor: u32) -> (u32, u32) {
    // SAFETY: there is a tile, so no extent is zero. Without this the division carries a panic branch.
    unsafe { core::hint::assert_unchecked(divisor != 0) };
    (dividend / divisor, dividend % divisor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    fn params(batch: u32, heads: [u32; 2], seq: u32, band: Band) -> ForwardParams {
        ForwardParams {
            batch,
            heads_q: heads[0],
            heads_kv: heads[1],
            seq_q: seq,
            seq_kv: seq,
            head_dim: 128,
            head_dim_v: 128,
            band,
            ..ForwardParams::zeroed()
        }
    }

    fn unpacked(params: &ForwardParams, cluster_m: u32) -> Option<Schedule> {
        let group = params.heads_q / params.heads_kv;
        Schedule::new(params, Packing::none(group), cluster_m)
    }

    const CAUSAL: Band = Band {
        lower: -Band::OPEN,
        upper: 0,
    };

    #[test]
    fn every_tile_once() {
        for band in [CAUSAL, Band::FULL] {
            // 2 MiB of K and V a head: three sections of 14, 14 and 12 heads.
            let params = params(5, [16, 8], 4096, band);
            let schedule = unpacked(&params, 256).unwrap();
            assert_eq!(schedule.last + 1, 5 * 16 * 16);
            let mut seen = [false; 5 * 16 * 16];
            for index in 0..=schedule.last {
                let tile = schedule.get(index);
                assert!(tile.head < 2);
                let sequence = tile.batch * 16 + tile.head_kv * 2 + tile.head;
                let slot = &mut seen[(sequence * 16 + tile.super_block) as usize];
                assert!(!core::mem::replace(slot, true), "{tile:?} twice");
            }
        }
    }

    #[test]
    fn sections_are_equal_and_fit_the_l2() {
        let params = params(5, [16, 8], 4096, CAUSAL);
        let schedule = unpacked(&params, 256).unwrap();
        assert_eq!(schedule.section, 14 * 2);
        // The longest tiles of every head of a section come first.
        let first = (0..28).map(|index| schedule.get(index));
        assert!(first.into_iter().all(|tile| tile.super_block == 15));
        assert_eq!(schedule.get(28).super_block, 14);
    }

    #[test]
    fn full_attention_keeps_to_one_head() {
        let params = params(1, [2, 2], 1024, Band::FULL);
        let schedule = unpacked(&params, 256).unwrap();
        assert!((0..4).all(|index| schedule.get(index).head_kv == 0));
    }

    #[test]
    fn packs_take_the_place_of_heads() {
        // Five heads to a group, in packs of eight: 800 rows, four tiles.
        let params = params(3, [10, 2], 100, CAUSAL);
        let packing = Packing::fewest_tiles(5, [100].into_iter(), 1024);
        assert_eq!(packing.heads(), 8);
        let schedule = Schedule::new(&params, packing, 256).unwrap();
        assert_eq!(schedule.last + 1, 3 * 2 * 4);
        let mut seen = [false; 3 * 2 * 4];
        for index in 0..=schedule.last {
            let tile = schedule.get(index);
            assert_eq!(tile.head, 0);
            let slot = (tile.batch * 2 + tile.head_kv) * 4 + tile.super_block;
            assert!(!core::mem::replace(&mut seen[slot as usize], true));
        }
        // 32 queries: packs of four, the second with one head of its own.
        let packing = Packing::fewest_tiles(5, [32].into_iter(), 128);
        let schedule = Schedule::new(&params, packing, 512).unwrap();
        let heads = (0..4).map(|index| {
            let tile = schedule.get(index);
            (tile.head_kv, tile.head)
        });
        assert!(heads.eq([(0, 0), (0, 4), (1, 0), (1, 4)]));
        assert_eq!(schedule.last + 1, 3 * 4);
    }

    #[test]
    fn refuses_what_cannot_be_numbered() {
        assert!(unpacked(&params(1, [1, 1], 0, CAUSAL), 256).is_none());
        assert!(unpacked(&params(1 << 16, [1 << 10, 1], 1 << 15, CAUSAL), 128).is_none());
        assert!(unpacked(&params(1 << 20, [1 << 13, 1], 1, CAUSAL), 128).is_none());
        // 2³¹ tiles fit 32 bits, but not with room for draws past the end; half as many do.
        assert!(unpacked(&params(1 << 16, [1 << 8, 1], 1 << 14, CAUSAL), 128).is_none());
        assert!(unpacked(&params(1 << 16, [1 << 8, 1], 1 << 13, CAUSAL), 128).is_some());
    }

    #[test]
    fn the_grid_is_whole_clusters() {
        let schedule = unpacked(&params(1, [2, 2], 1024, CAUSAL), 256).unwrap();
        assert_eq!(schedule.grid(132, 2), 16);
        assert_eq!(schedule.grid(7, 2), 6);
    }
}
