//! The order of tiles that keeps K and V in L2: heads are taken in sections whose K and V fit there, and within a section
//! the longest tiles of all heads come first.

use super::grid::divide;
use crate::abi::{AttentionParams, Band};
use crate::units::F32_BYTES;

/// Bytes of K and V that the tiles in flight may share: the part of the 50 MB L2 that Q and O leave.
pub const L2_BYTES: u64 = 32 << 20;

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

/// Heads of K and V of a section: equal sections of at most [`L2_BYTES`].
#[inline(always)]
pub fn section(kv_heads: u32, head_bytes: u64) -> u32 {
    let sections = (kv_heads as u64 * head_bytes).div_ceil(L2_BYTES);
    // Not by `clamp`, which has a panic branch.
    let sections = sections.min(kv_heads as u64).max(1) as u32;
    kv_heads.div_ceil(sections)
}

/// As [`section`], of all batch entries' query heads that read those; `None` where tiles of a head are about equally long, whose
/// heads are taken one after the other. f32 takes longer to multiply than to read again: all its heads are one section, whose
/// shortest tiles end the launch.
#[inline(always)]
pub fn section_of_queries(params: &AttentionParams, element_bytes: u32) -> Option<u32> {
    if !uneven(params) {
        return None;
    }
    if element_bytes == F32_BYTES {
        return Some(params.batch * params.heads_q);
    }
    let head_bytes = head_bytes(params.seq_kv, row_bytes(params, element_bytes));
    let (group, _) = divide(params.heads_q, params.heads_kv);
    Some(section(params.batch * params.heads_kv, head_bytes) * group)
}

/// The tile with number `index` where `sequences` are taken in sections of `section`, with `section_tiles` tiles together, of which
/// the last may have fewer: how many tiles its sequence has before it, and the sequence.
#[inline(always)]
pub fn in_section(index: u32, sequences: u32, section: u32, section_tiles: u32) -> (u32, u32) {
    let (number, of_section) = divide(index, section_tiles);
    let first = number * section;
    let (taken, sequence) = divide(of_section, section.min(sequences - first));
    (taken, first + sequence)
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
    fn sections_are_equal_and_fit_the_l2() {
        let head = L2_BYTES / 4;
        assert_eq!(section(10, head), 4);
        assert_eq!(section(9, head), 3);
        assert_eq!(section(3, head), 3);
        assert_eq!(section(3, 2 * L2_BYTES), 1);
        assert_eq!(section(3, 0), 3);
    }

    #[test]
    fn sections_of_queries() {
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
        // 2 MiB of K and V a head: three sections of 14, 14 and 12 heads, which two query heads read each.
        assert_eq!(section_of_queries(&params, HALF_BYTES), Some(28));
        assert_eq!(section_of_queries(&params, F32_BYTES), Some(80));
        params.mask = MaskParams::new(Band::FULL, Corner::TopLeft);
        assert_eq!(section_of_queries(&params, HALF_BYTES), None);
    }

    #[test]
    fn the_last_section_may_have_fewer_sequences() {
        let order: [_; 6] = core::array::from_fn(|index| in_section(index as u32, 3, 2, 4));
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)]);
    }
}
