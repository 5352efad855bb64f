//! The order in which clusters take tiles.
//!
//! Tiles are numbered so that taking them in order keeps K and V of the running tiles in L2 and leaves short
//! tiles for the end. Each cluster draws the next number from a counter in global memory, which balances
//! better than any fixed split: tiles of a causal mask differ in length, and SMs in speed.

use bytemuck::{Pod, Zeroable};

use crate::abi::{Band, ForwardParams, PackedRows};

/// Bytes of K and V that the tiles in flight may share: what stays in the 50 MB L2 beside Q and O.
const L2_BYTES: u64 = 32 << 20;

/// One cluster's tile: rows `super_block · cluster_m ..` of a query head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    pub super_block: u32,
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
/// Varlen: the host lists the tiles of one head that have rows ([`ListedTile`]), since super blocks counted from
/// the longest sequence would mostly be empty, and sequences differ in length as tiles of one do. The list is walked
/// in one of two ways ([`Order`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Schedule {
    /// Tiles of a head; varlen: entries of the list.
    super_blocks: u32,
    heads: u32,
    /// Query heads that share a key/value head.
    group: u32,
    /// `batch · heads_q`; varlen: `heads_q`.
    sequences: u32,
    /// Sequences of a section; the last one may have fewer. 0 for [`Order::BySequence`].
    section: u32,
    /// Tiles of a section.
    section_tiles: u32,
    /// Number of the last tile.
    pub last: u32,
    /// Clusters of the launch, which take the first tiles without drawing.
    pub clusters: u32,
    /// Device address of the list; 0 in a dense launch.
    pub list: u64,
}

impl Schedule {
    /// The tiles of dense `params` for clusters of `cluster_m` rows; `None` if there are none, or too many to number
    /// with 31 bits.
    pub fn new(params: &ForwardParams, cluster_m: u32) -> Option<Self> {
        let super_blocks = params.seq_q.div_ceil(cluster_m);
        let sequences = params.batch.checked_mul(params.heads_q)?;
        let last = last(super_blocks, sequences)?;
        let section = if uneven(params) {
            let kv_heads = params.batch * params.heads_kv;
            section(kv_heads, head_bytes(params, params.seq_kv)) * group(params)
        } else {
            1
        };
        Some(Self {
            super_blocks,
            heads: params.heads_q,
            group: group(params),
            sequences,
            section,
            section_tiles: section * super_blocks,
            last,
            clusters: 0,
            list: 0,
        })
    }

    /// The tiles of varlen `params`, whose list in [`Order::of`] has `entries` entries at device address `list`; `None`
    /// as for [`Schedule::new`].
    pub fn listed(params: &ForwardParams, total_kv: u32, list: u64, entries: u32) -> Option<Self> {
        let sequences = params.heads_q;
        let last = last(entries, sequences)?;
        let section = match Order::of(params) {
            Order::BySequence => 0,
            Order::ByLength { .. } => {
                section(params.heads_kv, head_bytes(params, total_kv)) * group(params)
            }
        };
        Some(Self {
            super_blocks: entries,
            heads: params.heads_q,
            group: group(params),
            sequences,
            section,
            section_tiles: section * entries,
            last,
            clusters: 0,
            list,
        })
    }

    /// For a GPU with room for `resident` blocks at once, in clusters of `cluster`.
    pub fn on_gpu(self, resident: u32, cluster: u32) -> Self {
        Self {
            clusters: (resident / cluster).min(self.last + 1),
            ..self
        }
    }

    /// Tile number `index`, at most [`Schedule::last`], of a dense launch.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Tile {
        let (reversed, sequence) = self.in_section(index);
        let (batch, head) = divide(sequence, self.heads);
        Tile {
            super_block: self.super_blocks - 1 - reversed,
            head,
            head_kv: divide(head, self.group).0,
            batch,
        }
    }

    /// Tile number `index`, at most [`Schedule::last`], of a varlen launch, and the device address of an entry of the
    /// list that has its sequence's rows; `load` gives the place of the entry at an address.
    #[inline(always)]
    pub fn get_listed(&self, index: u32, load: impl FnOnce(u64) -> ListedPlace) -> (Tile, u64) {
        let by_sequence = self.section == 0;
        let (number, head) = if by_sequence {
            divide(index, self.heads)
        } else {
            self.in_section(index)
        };
        let entry = self.list + number as u64 * size_of::<ListedTile>() as u64;
        let listed = load(entry);
        let (super_block, head) = if by_sequence {
            // The numbers of a sequence are those of its entries times the heads: the entry is one of its own, which
            // says where they begin.
            let first = number - (listed.super_blocks - 1 - listed.super_block);
            let (head, reversed) = divide(index - first * self.heads, listed.super_blocks);
            (listed.super_blocks - 1 - reversed, head)
        } else {
            (listed.super_block, head)
        };
        let tile = Tile {
            super_block,
            head,
            head_kv: divide(head, self.group).0,
            batch: listed.batch,
        };
        (tile, entry)
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
    pub fn of(params: &ForwardParams) -> Self {
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
pub fn can_number_listed(params: &ForwardParams, cluster_m: u32) -> bool {
    // All tiles but the last of each sequence are whole.
    let most = (params.total_q / cluster_m).saturating_add(params.batch);
    last(most, params.heads_q).is_some()
}

/// Number of the last of `super_blocks · sequences` tiles; `None` if there are none, or too many.
fn last(super_blocks: u32, sequences: u32) -> Option<u32> {
    let count = super_blocks.checked_mul(sequences)?;
    (count <= i32::MAX as u32)
        .then(|| count.checked_sub(1))
        .flatten()
}

/// Whether tiles of one head differ much in length: a border on the right but none near on the left.
fn uneven(params: &ForwardParams) -> bool {
    params.band.upper < Band::OPEN && -(params.band.lower as i64) >= params.seq_q as i64
}

/// Query heads that share a key/value head.
fn group(params: &ForwardParams) -> u32 {
    params.heads_q / params.heads_kv
}

/// Bytes of a row of K and of V.
fn row_bytes(params: &ForwardParams) -> u32 {
    (params.head_dim + params.head_dim_v) * 2
}

/// Bytes of `rows` rows of a head of K and V.
fn head_bytes(params: &ForwardParams, rows: u32) -> u64 {
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

    const CAUSAL: Band = Band {
        lower: -Band::OPEN,
        upper: 0,
    };

    #[test]
    fn every_tile_once() {
        for band in [CAUSAL, Band::FULL] {
            // 2 MiB of K and V a head: three sections of 14, 14 and 12 heads.
            let params = params(5, [16, 8], 4096, band);
            let schedule = Schedule::new(&params, 256).unwrap();
            assert_eq!(schedule.last + 1, 5 * 16 * 16);
            let mut seen = [false; 5 * 16 * 16];
            for index in 0..=schedule.last {
                let tile = schedule.get(index);
                assert_eq!(tile.head_kv, tile.head / 2);
                let sequence = tile.batch * 16 + tile.head;
                let slot = &mut seen[(sequence * 16 + tile.super_block) as usize];
                assert!(!core::mem::replace(slot, true), "{tile:?} twice");
            }
        }
    }

    #[test]
    fn sections_are_equal_and_fit_the_l2() {
        let params = params(5, [16, 8], 4096, CAUSAL);
        let schedule = Schedule::new(&params, 256).unwrap();
        assert_eq!(schedule.section, 14 * 2);
        // The longest tiles of every head of a section come first.
        let first = (0..28).map(|index| schedule.get(index));
        assert!(first.into_iter().all(|tile| tile.super_block == 15));
        assert_eq!(schedule.get(28).super_block, 14);
    }

    #[test]
    fn full_attention_keeps_to_one_head() {
        let params = params(1, [2, 2], 1024, Band::FULL);
        let schedule = Schedule::new(&params, 256).unwrap();
        assert!((0..4).all(|index| schedule.get(index).head == 0));
    }

    #[test]
    fn refuses_what_cannot_be_numbered() {
        assert!(Schedule::new(&params(1, [1, 1], 0, CAUSAL), 256).is_none());
        assert!(Schedule::new(&params(1 << 16, [1 << 10, 1], 1 << 15, CAUSAL), 128).is_none());
        assert!(Schedule::new(&params(1 << 20, [1 << 13, 1], 1, CAUSAL), 128).is_none());
        // 2³¹ tiles fit 32 bits, but not with room for draws past the end; half as many do.
        assert!(Schedule::new(&params(1 << 16, [1 << 8, 1], 1 << 14, CAUSAL), 128).is_none());
        assert!(Schedule::new(&params(1 << 16, [1 << 8, 1], 1 << 13, CAUSAL), 128).is_some());
    }

    #[test]
    fn the_grid_is_whole_clusters() {
        let schedule = Schedule::new(&params(1, [2, 2], 1024, CAUSAL), 256).unwrap();
        assert_eq!(schedule.on_gpu(132, 2).clusters, 8);
        assert_eq!(schedule.on_gpu(7, 2).clusters, 3);
    }
}
