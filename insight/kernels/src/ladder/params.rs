//! Launch parameters of the ladder's kernels.

use bytemuck::{Pod, Zeroable};

#[cfg(target_arch = "nvptx64")]
use kernels_gpu::tile::grid::divide_long;

/// Parameters of every kernel of the ladder.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct LadderParams {
    /// Device addresses of `[heads][seq][head_dim]`.
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub o: u64,
    /// Device address of S, `[heads][seq][seq]`; 0 where it is never stored.
    pub s: u64,
    /// Device address of P, as S.
    pub p: u64,
    /// Device addresses of m (in units of `q · k`) and l, `[heads][seq]`; 0 where they stay on the chip.
    pub row_max: u64,
    pub row_sum: u64,
    pub heads: u32,
    /// Queries and keys.
    pub seq: u32,
    pub head_dim: u32,
    /// Multiplies `q · k`; above 0.
    pub softmax_scale: f32,
}

/// Element access; all elements are f32.
#[cfg(target_arch = "nvptx64")]
impl LadderParams {
    /// Address of element `column` of row `row` of a matrix with `columns` columns.
    #[inline(always)]
    pub fn at(&self, base: u64, row: u64, columns: u32, column: u32) -> u64 {
        base + (row * columns as u64 + column as u64) * size_of::<f32>() as u64
    }

    /// First row of the head that row `row` belongs to.
    #[inline(always)]
    pub fn head_row(&self, row: u64) -> u64 {
        let (head, _) = divide_long(row, self.seq as u64);
        head * self.seq as u64
    }

    /// Rows of q, k, v and o: one a query of each head.
    #[inline(always)]
    pub fn rows(&self) -> u64 {
        self.heads as u64 * self.seq as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn offsets_are_pinned() {
        assert_eq!(offset_of!(LadderParams, row_sum), 56);
        assert_eq!(offset_of!(LadderParams, softmax_scale), 76);
        assert_eq!(size_of::<LadderParams>(), 80);
    }
}
