//! The order of tiles that keeps K and V in L2: heads are taken in sections whose K and V fit there, and within a section
//! the longest tiles of all heads come first. The last section has more heads, whose short tiles fill what is left of a launch.

use bytemuck::{Pod, Zeroable};

use super::grid::divide;
use crate::abi::{AttentionParams, Band};
use crate::units::F32_BYTES;

/// Bytes of K and V that the tiles in flight may share: the part of the 50 MB L2 that Q and O leave.
pub const L2_BYTES: u64 = 32 << 20;

/// Bytes of K and V of a section but for the last. Tiles in flight are of two sections, and of an H100's L2 each half holds what
/// its half of the multiprocessors reads: less than [`L2_BYTES`].
pub const SECTION_BYTES: u64 = 8 << 20;

/// Blocks of the last section, at most: four for each of a Hopper's 132 multiprocessors, so that those with short tiles even out those
/// with long ones.
const LAST_BLOCKS: u32 = 4 * 132;

/// Heads of the last section, at most: tiles of short sequences take little longer than their K and V take to read, and are themselves short.
const LAST_SEQUENCES: u32 = 64;

/// Whether tiles of one head differ much in length: the band has a right border, but no near left one.
#[inline(always)]
pub fn uneven(params: &AttentionParams) -> bool {
    params.mask.band.upper < Band::OPEN && -(params.mask.band.lower as i64) >= params.seq_q as i64
}

/// Bytes of a row of K and of V, of elements of `element_bytes`.
#[inline(always)]
pub fn row_bytes(params: &AttentionParams, element_bytes: u32) -> u32 {
    (params.head_dim + params.head_dim_v) * element_bytes
}

/// Bytes of `rows` rows of a head of K and V.
#[inline(always)]
pub fn head_bytes(rows: u32, row_bytes: u32) -> u64 {
    rows as u64 * row_bytes as u64
}

/// Heads of K and V whose `head_bytes` fit `bytes`, at least one: equal parts of all `kv_heads`.
#[inline(always)]
fn fitting(bytes: u64, kv_heads: u32, head_bytes: u64) -> u32 {
    // `div_ceil` asks for a remainder.
    #[allow(clippy::manual_div_ceil)]
    let parts = (kv_heads as u64 * head_bytes + (bytes - 1)) / bytes;
    // Not by `clamp`, which has a panic branch.
    let parts = parts.min(kv_heads as u64).max(1) as u32;
    kv_heads.div_ceil(parts)
}

/// How the sequences of a launch, which are heads or packs of heads, are shared out among sections.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Sections {
    /// Sequences of a section but for the last one, which has those that are left.
    pub size: u32,
    /// Tiles of such a section.
    pub tiles: u32,
    /// Number of the last section.
    pub last: u32,
}

impl Sections {
    /// One section of all `sequences`, of `tiles` tiles each.
    #[inline(always)]
    pub const fn one(sequences: u32, tiles: u32) -> Self {
        Self {
            size: sequences,
            tiles: sequences * tiles,
            last: 0,
        }
    }

    /// A section each for `sequences`, of which there are some, of `tiles` tiles each.
    #[inline(always)]
    pub const fn one_each(sequences: u32, tiles: u32) -> Self {
        Self {
            size: 1,
            tiles,
            last: sequences - 1,
        }
    }

    /// Sections of [`SECTION_BYTES`] and a last one of [`L2_BYTES`] at most, for `kv_heads` heads of K and V, of which there are some,
    /// of `head_bytes` each. Each is read by `group` sequences of `tiles` tiles, of which there are some, too, for `cluster` blocks each.
    #[inline(always)]
    pub fn new(kv_heads: u32, head_bytes: u64, group: u32, tiles: u32, cluster: u32) -> Self {
        let sequences = kv_heads * group;
        let most = fitting(L2_BYTES, kv_heads, head_bytes) * group;
        let of_section = fitting(SECTION_BYTES, kv_heads, head_bytes) * group;
        let two = most.min(2);
        // Two, where they fit: blocks that go through a long head's keys side by side then have tiles of the same length.
        let size = if of_section < two { two } else { of_section };
        // Rounded up, without `div_ceil`, which has a panic branch.
        let of_last_blocks = divide(LAST_BLOCKS - 1, tiles * cluster).0 + 1;
        let of_last = of_last_blocks.min(LAST_SEQUENCES).min(most);
        let (nearest, _) = divide(sequences - of_last + size / 2, size);
        let (greatest, _) = divide(sequences - 1, size);
        Self {
            size,
            tiles: size * tiles,
            last: nearest.min(greatest),
        }
    }

    /// The tile with number `index`, of `sequences`: how many tiles its sequence has before it, and the sequence.
    #[inline(always)]
    pub fn get(self, index: u32, sequences: u32) -> (u32, u32) {
        let (number, _) = divide(index, self.tiles);
        let number = number.min(self.last);
        let first = number * self.size;
        let size = if number == self.last {
            sequences - first
        } else {
            self.size
        };
        let (taken, sequence) = divide(index - number * self.tiles, size);
        (taken, first + sequence)
    }
}

/// Sections of all batch entries' query heads, of `tiles` tiles each; `None` where tiles of a head are about equally long,
/// whose heads are taken one after the other. f32 takes longer to multiply than to read again: all its heads are one section, whose
/// shortest tiles end the launch.
#[inline(always)]
pub fn sections_of_queries(
    params: &AttentionParams,
    element_bytes: u32,
    tiles: u32,
) -> Option<Sections> {
    if !uneven(params) {
        return None;
    }
    if element_bytes == F32_BYTES {
        return Some(Sections::one(params.batch * params.heads_q, tiles));
    }
    let head_bytes = head_bytes(params.seq_kv, row_bytes(params, element_bytes));
    let (group, _) = divide(params.heads_q, params.heads_kv);
    let kv_heads = params.batch * params.heads_kv;
    Some(Sections::new(kv_heads, head_bytes, group, tiles, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Corner, MaskParams};
    use crate::units::HALF_BYTES;
    use bytemuck::Zeroable;

    const CAUSAL: Band = Band {
        lower: -Band::OPEN,
        upper: 0,
    };

    #[test]
    fn as_many_heads_as_fit() {
        assert_eq!(fitting(8, 10, 2), 4);
        assert_eq!(fitting(8, 9, 2), 3);
        assert_eq!(fitting(8, 3, 2), 3);
        assert_eq!(fitting(8, 3, 16), 1);
        assert_eq!(fitting(8, 3, 0), 3);
    }

    #[test]
    fn sections_fit_the_l2_and_the_last_one_evens_out() {
        const KIB: u64 = 1 << 10;
        // Heads of a section, and of the last one.
        let heads = |kv_heads, head_bytes, group, tiles| {
            let sections = Sections::new(kv_heads, head_bytes, group, tiles, 1);
            let before = sections.last * sections.size;
            (sections.size, kv_heads * group - before)
        };
        // Short sequences: 64.
        assert_eq!(heads(512, 256 * KIB, 1, 4), (32, 64));
        // Longer ones: 528 blocks of 43 a head are 13 heads, in whole sections 12.
        assert_eq!(heads(64, 2048 * KIB, 1, 43), (4, 12));
        let of_clusters = Sections::new(64, 2048 * KIB, 1, 22, 2);
        assert_eq!(of_clusters.last, 52 / 4);
        // 528 blocks would be eight heads; four fill 32 MiB. Two are a section, though one fills it.
        assert_eq!(heads(16, 8192 * KIB, 1, 70), (2, 4));
        // A head more than fills it.
        assert_eq!(heads(16, 65_536 * KIB, 1, 1000), (1, 1));
        assert_eq!(heads(16, 65_536 * KIB, 4, 1000), (4, 4));
        // No more sections than there are, and no fewer than one.
        assert_eq!(heads(25, 512 * KIB, 1, 2000), (13, 12));
        assert_eq!(heads(3, 1, 2, 1), (6, 6));
    }

    #[test]
    fn heads_of_all_entries_share_sections() {
        let mut params = AttentionParams {
            batch: 5,
            heads_q: 16,
            heads_kv: 8,
            seq_q: 4096,
            seq_kv: 4096,
            head_dim: 128,
            head_dim_v: 128,
            mask: MaskParams::new(CAUSAL, Corner::TopLeft),
            ..AttentionParams::zeroed()
        };
        // 2 MiB of K and V a head: sections of four heads, which two query heads read each, and a last one of eight.
        let sections = |params: &_, bytes| sections_of_queries(params, bytes, 32);
        let of_halves = Sections {
            size: 8,
            tiles: 8 * 32,
            last: 8,
        };
        assert_eq!(sections(&params, HALF_BYTES), Some(of_halves));
        assert_eq!(sections(&params, F32_BYTES), Some(Sections::one(80, 32)));
        params.mask = MaskParams::new(Band::FULL, Corner::TopLeft);
        assert_eq!(sections(&params, HALF_BYTES), None);
    }

    #[test]
    fn the_last_section_has_the_sequences_that_are_left() {
        let order = |sections: Sections| -> [_; 6] {
            core::array::from_fn(|index| sections.get(index as u32, 3))
        };
        let fewer = order(Sections {
            size: 2,
            tiles: 4,
            last: 1,
        });
        assert_eq!(fewer, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]);
        let more = order(Sections {
            size: 1,
            tiles: 2,
            last: 1,
        });
        assert_eq!(more, [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (1, 2)]);
        let one_each = order(Sections::one_each(3, 2));
        assert_eq!(one_each, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
        let one = order(Sections::one(3, 2));
        assert_eq!(one, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
    }
}
