//! The order in which clusters take tiles.
//!
//! Tiles are numbered so that taking them in order keeps K and V of the running tiles in L2 and leaves short
//! tiles for the end. Each cluster draws the next number from a counter in global memory, which balances
//! better than any fixed split: tiles of a causal mask differ in length, and SMs in speed.

use bytemuck::{Pod, Zeroable};

use super::gqa::Packing;
use crate::abi::{AttentionParams, Band, PackedRows};
use crate::config::wgmma::ELEMENT_BYTES;

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

/// All tiles of a launch. The host works it out and passes it to the kernel by value.
///
/// Dense: heads are grouped into sections of about equal size; within a section the last rows of every head come
/// first, which under a causal mask are the longest.
///
/// Varlen: the host lists the tiles of one pack that have rows ([`ListedTile`]), since super blocks counted from
/// the longest sequence would mostly be empty, and sequences differ in length as tiles of one do. The list is walked
/// in one of two ways ([`Order`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Schedule {
    /// Tiles of a head; varlen: entries of the list.
    super_blocks: u32,
    /// Packs of a batch entry, each of which takes the place of a query head.
    packs: u32,
    /// Packs that share a key/value head.
    packs_of_group: u32,
    /// `batch · packs`; varlen: `packs`.
    sequences: u32,
    /// Sequences of a section; the last one may have fewer. 0 for [`Order::BySequence`].
    section: u32,
    /// Tiles of a section.
    section_tiles: u32,
    /// Number of the last tile.
    pub last: u32,
    pub packing: Packing,
    /// Clusters of the launch, which take the first tiles without drawing.
    pub clusters: u32,
    /// Device address of the list; 0 in a dense launch.
    pub list: u64,
}

impl Schedule {
    /// The tiles of dense `params` for clusters of `cluster_m` rows; `None` if there are none, or too many to number
    /// with 31 bits.
    pub fn new(params: &AttentionParams, packing: Packing, cluster_m: u32) -> Option<Self> {
        let rows = params.seq_q.checked_mul(packing.heads())?;
        let super_blocks = rows.div_ceil(cluster_m);
        let packs = params.heads_kv.checked_mul(packing.packs())?;
        let sequences = params.batch.checked_mul(packs)?;
        let last = last(super_blocks, sequences)?;
        let section = if uneven(params) {
            let kv_heads = params.batch * params.heads_kv;
            section(kv_heads, head_bytes(params, params.seq_kv)) * packing.packs()
        } else {
            1
        };
        Some(Self {
            super_blocks,
            packs,
            packs_of_group: packing.packs(),
            sequences,
            section,
            section_tiles: section * super_blocks,
            last,
            packing,
            clusters: 0,
            list: 0,
        })
    }

    /// The tiles of varlen `params`, whose list in [`Order::of`] has `entries` entries at device address `list`; `None`
    /// as for [`Schedule::new`].
    pub fn listed(
        params: &AttentionParams,
        packing: Packing,
        total_kv: u32,
        list: u64,
        entries: u32,
    ) -> Option<Self> {
        let sequences = params.heads_kv.checked_mul(packing.packs())?;
        let last = last(entries, sequences)?;
        let section = match Order::of(params) {
            Order::BySequence => 0,
            Order::ByLength { .. } => {
                section(params.heads_kv, head_bytes(params, total_kv)) * packing.packs()
            }
        };
        Some(Self {
            super_blocks: entries,
            packs: sequences,
            packs_of_group: packing.packs(),
            sequences,
            section,
            section_tiles: section * entries,
            last,
            packing,
            clusters: 0,
            list,
        })
    }

    /// For a GPU with room for `resident` blocks at once, in clusters of `cluster`.
    pub fn on_gpu(self, resident: u32, cluster: u32) -> Self {
        Self {
            clusters: (resident / cluster).clamp(1, self.last + 1),
            ..self
        }
    }

    /// Tile number `index`, at most [`Schedule::last`], of a dense launch.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Tile {
        let (reversed, sequence) = self.in_section(index);
        let (batch, pack) = divide(sequence, self.packs);
        let (head_kv, head) = self.heads_of(pack);
        Tile {
            super_block: self.super_blocks - 1 - reversed,
            head,
            head_kv,
            batch,
        }
    }

    /// Tile number `index`, at most [`Schedule::last`], of a varlen launch, and the device address of an entry of the
    /// list that has its sequence's rows; `load` gives the place of the entry at an address.
    #[inline(always)]
    pub fn get_listed(&self, index: u32, load: impl FnOnce(u64) -> ListedPlace) -> (Tile, u64) {
        let by_sequence = self.section == 0;
        let (number, pack) = if by_sequence {
            divide(index, self.packs)
        } else {
            self.in_section(index)
        };
        let entry = self.list + number as u64 * size_of::<ListedTile>() as u64;
        let listed = load(entry);
        let (super_block, pack) = if by_sequence {
            // The numbers of a sequence are those of its entries times the packs: the entry is one of its own, which
            // says where they begin.
            let first = number - (listed.super_blocks - 1 - listed.super_block);
            let (pack, reversed) = divide(index - first * self.packs, listed.super_blocks);
            (listed.super_blocks - 1 - reversed, pack)
        } else {
            (listed.super_block, pack)
        };
        let (head_kv, head) = self.heads_of(pack);
        let tile = Tile {
            super_block,
            head,
            head_kv,
            batch: listed.batch,
        };
        (tile, entry)
    }

    /// The key/value head and the first query head, from the first of its group, of a batch entry's pack.
    #[inline(always)]
    fn heads_of(&self, pack: u32) -> (u32, u32) {
        let (head_kv, pack) = divide(pack, self.packs_of_group);
        (head_kv, pack * self.packing.heads())
    }

    /// Which of a section's super blocks, counted from the first taken, and which of all sequences.
    #[inline(always)]
    fn in_section(&self, index: u32) -> (u32, u32) {
        let (number, in_section) = divide(index, self.section_tiles);
        let first = number * self.section;
        let sequences = self.section.min(self.sequences - first);
        let (taken, sequence) = divide(in_section, sequences);
        (taken, first + sequence)
    }
}

/// One tile of a head of a varlen launch, in the list.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ListedTile {
    pub place: ListedPlace,
    /// Of its sequence.
    pub rows: PackedRows,
}

/// Which tile it is. 16 bytes, which one load fetches.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ListedPlace {
    pub super_block: u32,
    /// Tiles of its sequence.
    pub super_blocks: u32,
    pub batch: u32,
    /// 0.
    pub reserved: u32,
}

/// In which order the host lists the tiles of a varlen launch, and how numbers walk the list. Both keep long
/// tiles first, so that clusters end together, and K and V of the tiles in flight in L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Where the tiles of a sequence are about equally long: sequence by sequence, the longest first, and in
    /// each one head after the other. The tiles in flight then read K and V of few heads, and a sequence's length
    /// is its tiles', so that nothing is given up for L2. Entries of a sequence go from its last tile to its first.
    BySequence,
    /// Where they are not, as under a causal mask: the longest of all sequences first, and each at once for all
    /// heads of a section, whose K and V fit L2. Where those of a single head do not, the list is cut into parts
    /// that do, of whole sequences, the longest first. Here L2 matters more than the order: a part's last tiles are
    /// shorter than the next part's first, which costs at the very end of a launch only, where parts are short;
    /// K and V read from memory for every tile would cost all along.
    ByLength {
        /// Bytes of a row of K and of V.
        row_bytes: u32,
    },
}

impl Order {
    /// The order for varlen `params`.
    pub fn of(params: &AttentionParams) -> Self {
        if uneven(params) {
            Self::ByLength {
                row_bytes: row_bytes(params),
            }
        } else {
            Self::BySequence
        }
    }

    /// Into how many parts, about equal, to cut the list where a head of K and V has `total_kv` rows.
    pub fn parts(self, total_kv: u32) -> u64 {
        match self {
            Self::BySequence => 1,
            Self::ByLength { row_bytes } => (total_kv as u64 * row_bytes as u64)
                .div_ceil(L2_BYTES)
                .max(1),
        }
    }
}

/// Whether any list of tiles of varlen `params` can be numbered with 31 bits.
pub fn can_number_listed(params: &AttentionParams, packing: Packing, cluster_m: u32) -> bool {
    let rows = u64::from(params.lengths.total_q) * u64::from(packing.heads());
    // All tiles but the last of each sequence are whole.
    let most = rows / u64::from(cluster_m) + u64::from(params.batch);
    let packs = params.heads_kv.checked_mul(packing.packs());
    u32::try_from(most)
        .ok()
        .zip(packs)
        .and_then(|(most, packs)| last(most, packs))
        .is_some()
}

/// Number of the last of `super_blocks · sequences` tiles; `None` if there are none, or too many.
fn last(super_blocks: u32, sequences: u32) -> Option<u32> {
    let count = super_blocks.checked_mul(sequences)?;
    (count <= i32::MAX as u32)
        .then(|| count.checked_sub(1))
        .flatten()
}

/// Whether tiles of one head differ much in length: a border on the right but none near on the left.
fn uneven(params: &AttentionParams) -> bool {
    params.mask.band.upper < Band::OPEN && -(params.mask.band.lower as i64) >= params.seq_q as i64
}

/// Bytes of a row of K and of V.
fn row_bytes(params: &AttentionParams) -> u32 {
    (params.head_dim + params.head_dim_v) * ELEMENT_BYTES
}

/// Bytes of `rows` rows of a head of K and V.
fn head_bytes(params: &AttentionParams, rows: u32) -> u64 {
    rows as u64 * row_bytes(params) as u64
}

/// Heads of K and V of a section: equal sections of at most [`L2_BYTES`].
fn section(kv_heads: u32, head_bytes: u64) -> u32 {
    let sections = (kv_heads as u64 * head_bytes).div_ceil(L2_BYTES);
    let sections = sections.clamp(1, kv_heads as u64) as u32;
    kv_heads.div_ceil(sections)
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
    use crate::abi::{Corner, MaskParams};
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

    fn unpacked(params: &AttentionParams, cluster_m: u32) -> Option<Schedule> {
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
        assert_eq!(schedule.on_gpu(132, 2).clusters, 8);
        assert_eq!(schedule.on_gpu(7, 2).clusters, 3);
    }
}
