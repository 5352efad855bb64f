//! Infinities and NaN in the operands that gradients are sums of.
//!
//! P and dS are 0 of pairs that are masked out, whatever was multiplied to get there. But the sums dA += dS a and dB += P b
//! multiply whole blocks: a row of `a` or `b` that is not finite makes NaN of a 0. As in forward
//! ([`crate::tile::non_finite`]), the fast path does not look. Where it leaves a gradient that is not finite, the tile is
//! computed again, *carefully* and one sum after the other: once a block's P or dS is known, what is not finite in `b` or `a`
//! is replaced by 0, and the elements of the gradient that it reaches are marked, a bit each, to become NaN in the end. The
//! marks lie where the other of P and dS would.
//!
//! A block's part of dq (dS K) has a K that is kept: where that leaves a sum that is not finite, the kernel that rounds dq
//! computes the row again ([`crate::backward::careful`]).

use cuda_std::shared;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{lane_id, warp_id};

use super::MmaBackwardKernel;
use super::pairs::sees;
use super::tile::{Smem, Step, Tile};
use crate::layout::fragment::{ROW_STEP, row_column};
use crate::layout::swizzle::{VEC16_ELEMS, offset, row_vec16s};
use crate::tile::black_box;
use crate::tile::non_finite::{ELEMENT_MASK, is_non_finite, shift};

/// Bits of a word.
const WORD_BITS: u32 = u32::BITS;

/// Calls `found` with the row and column of each element of a tile of `rows` rows that is not finite, and replaces it by 0.
/// The block shares the work; this is thread `thread` of it.
///
/// # Safety
/// The tile has arrived and is visible; nobody else accesses it until a barrier is passed.
#[inline(always)]
unsafe fn each_non_finite<K: MmaBackwardKernel>(
    smem: u32,
    rows: u32,
    thread: u32,
    mut found: impl FnMut(u32, u32),
) {
    let head_dim = K::CONFIG.head_dim;
    let vec16s = row_vec16s(head_dim) as u32;
    let mut index = thread;
    while index < black_box(rows * vec16s) {
        let (row, vec16) = (index / vec16s, index % vec16s);
        let address = smem + offset(head_dim, row, vec16);
        let mut words = shared::load4_bits(address);
        for i in 0..VEC16_ELEMS {
            let word = &mut words[i / 2];
            if is_non_finite::<K::Element>(*word >> shift(i) & ELEMENT_MASK) {
                *word &= !(ELEMENT_MASK << shift(i));
                found(row, vec16 * VEC16_ELEMS as u32 + i as u32);
            }
        }
        shared::store4_bits(address, words);
        index += K::CONFIG.threads();
    }
}

/// Marks of the elements of a gradient that must not stay finite.
#[derive(Clone, Copy)]
pub struct Marks {
    smem: u32,
}

impl Marks {
    /// Those at shared address `smem`.
    #[inline(always)]
    pub fn new(smem: u32) -> Self {
        Self { smem }
    }

    /// Erases all marks, as a whole block.
    ///
    /// # Safety
    /// Nobody else accesses them until a barrier is passed.
    #[inline(always)]
    pub unsafe fn clear<K: MmaBackwardKernel>(&self) {
        let mut index = thread_idx_x();
        while index < black_box(K::CONFIG.marks_bytes() / size_of::<u32>() as u32) {
            shared::store_bits(self.smem + index * size_of::<u32>() as u32, 0);
            index += K::CONFIG.threads();
        }
    }

    /// The address of the word that element `col` of row `row` is in, and its bit.
    #[inline(always)]
    fn place<K: MmaBackwardKernel>(&self, row: u32, col: u32) -> (u32, u32) {
        let index = row * K::CONFIG.head_dim as u32 + col;
        let word = index / WORD_BITS * size_of::<u32>() as u32;
        (self.smem + word, index % WORD_BITS)
    }

    /// Replaces what is not finite in the block of a passing operand at `smem`, and marks what it reached.
    ///
    /// # Safety
    /// As [`each_non_finite`] and [`Tile::new`].
    #[inline(always)]
    pub unsafe fn sanitize<K: MmaBackwardKernel>(&self, tile: &Tile<K>, step: Step, smem: u32) {
        let extent = tile.extent();
        let rows = K::CONFIG.block_n as u32;
        each_non_finite::<K>(smem, rows, step.renew(thread_idx_x()), |passing, col| {
            let mut row = 0;
            while row < black_box(K::CONFIG.block_m as u32) {
                if sees(tile, step, &extent, tile.begin + row, step.begin + passing) {
                    let (word, bit) = self.place::<K>(row, col);
                    shared::atomic_or(word, 1 << bit);
                }
                row += 1;
            }
        });
    }

    /// Makes what is marked of the warp's part of a gradient NaN.
    ///
    /// # Safety
    /// All marks are set and visible.
    #[inline(always)]
    pub unsafe fn apply<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
        &self,
        sum: &mut [[f32; COLS]; ROWS],
    ) {
        let lane = black_box(lane_id());
        let (row, col) = K::CONFIG.output().origin(warp_id());
        for i in 0..ROWS {
            let row = row + lane / 4 + i as u32 * ROW_STEP;
            for j in 0..COLS {
                let col = col + row_column(lane, j as u32);
                let (word, bit) = self.place::<K>(row, col);
                let is_marked = shared::load_bits(word) >> bit & 1 != 0;
                sum[i][j] = if is_marked { f32::NAN } else { sum[i][j] };
            }
        }
    }
}
