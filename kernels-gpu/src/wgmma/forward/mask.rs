//! Masking out scores that a row does not see: each border by itself, as most masked blocks have one.

use super::lanes::Lanes;
use crate::layout::fragment::ROW_STEP;
use crate::tile::block_range::visible_keys;
use crate::tile::sequence::Sequence;
use crate::wgmma::pack_gqa::PackGqa;

/// Column of a fragment's register, from the thread's first.
#[inline(always)]
pub fn col(register: usize) -> i32 {
    (register / 4 * 8 + register % 2) as i32
}

/// How far below the thread's first row a fragment's register lies.
#[inline(always)]
pub fn below(register: usize) -> i32 {
    (register / 2 % 2) as i32 * ROW_STEP as i32
}

/// The keys of a block as the queries of a thread's two rows see them.
pub struct BlockMask<'a> {
    pub lanes: Lanes,
    /// First of the thread's two rows.
    pub row: u32,
    pub pack_gqa: PackGqa,
    pub key_begin: u32,
    pub sequence: &'a Sequence,
}

impl BlockMask<'_> {
    /// Sets the scores of keys beyond the last visible one to −∞.
    #[inline(always)]
    pub fn mask_right<const S_REGS: usize>(&self, scores: &mut [f32; S_REGS]) {
        let last = [self.visible(0).1, self.visible(ROW_STEP).1];
        apply_mask(scores, |col, row| col > last[row]);
    }

    /// Sets the scores of keys before the first visible one to −∞.
    #[inline(always)]
    pub fn mask_left<const S_REGS: usize>(&self, scores: &mut [f32; S_REGS]) {
        let first = [self.visible(0).0, self.visible(ROW_STEP).0];
        apply_mask(scores, |col, row| col < first[row]);
    }

    /// First and last visible key of the row `below` the first, from the thread's first column.
    #[inline(always)]
    fn visible(&self, below: u32) -> (i32, i32) {
        let Sequence { band, seq_kv, .. } = *self.sequence;
        let origin = (self.key_begin + self.lanes.col()) as i32;
        let query = self.pack_gqa.query(self.row + below);
        let (first, last) = visible_keys(query as i32, band, seq_kv);
        (first - origin, last - origin)
    }
}

/// Sets to −∞ where `masked_out(column from the thread's first, row 0 or 1)`.
#[inline(always)]
fn apply_mask<const S_REGS: usize>(
    scores: &mut [f32; S_REGS],
    masked_out: impl Fn(i32, usize) -> bool,
) {
    let mut register = 0;
    while register < S_REGS {
        if masked_out(col(register), register / 2 % 2) {
            scores[register] = f32::NEG_INFINITY;
        }
        register += 1;
    }
}
