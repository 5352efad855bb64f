//! Where a thread's fragment elements lie in its warpgroup's 64 rows (`cuda_std::wgmma`).

use cuda_std::thread::thread_idx_x;
use cuda_std::warp::WARP_SIZE;

use crate::config::wgmma::{ATOM_ROW_BYTES, ATOM_ROWS, WARP_ROWS, WARPGROUP};
use crate::layout::swizzle::{self, VEC16_BYTES};
use crate::tile::black_box;
use crate::tile::quad::QUAD;

/// A consumer thread's place in its warpgroup.
#[derive(Clone, Copy)]
pub struct Lanes {
    pub lane: u32,
    /// Warp in the warpgroup; it holds rows `16 · warp ..`.
    pub warp: u32,
}

impl Lanes {
    #[inline(always)]
    pub fn new() -> Self {
        let thread = thread_idx_x() % WARPGROUP;
        Self {
            lane: thread % WARP_SIZE,
            warp: thread / WARP_SIZE,
        }
    }

    /// The same place, hidden from the optimiser: addresses are computed where they are used, not kept in registers.
    #[inline(always)]
    pub fn reload(&self) -> Self {
        Self {
            lane: black_box(self.lane),
            warp: self.warp,
        }
    }

    /// Whether this is the first thread of the warpgroup.
    #[inline(always)]
    pub fn is_first(&self) -> bool {
        self.lane == 0 && self.warp == 0
    }

    /// First of the thread's two rows; the other is [`ROW_STEP`](crate::layout::fragment::ROW_STEP) below.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        self.warp * WARP_ROWS + self.lane / QUAD
    }

    /// First of the thread's columns in every eight.
    #[inline(always)]
    pub fn col(&self) -> u32 {
        self.lane % QUAD * 2
    }

    /// Offset in a swizzled atom column of the 16 bytes whose address this lane gives to `ldmatrix` and `stmatrix` for 16
    /// columns, the vec16s `vec16` and `vec16 + 1`.
    ///
    /// Matrices 0 and 1 are the upper and lower eight rows of the left eight columns, 2 and 3 of the right:
    /// the order of an A fragment's registers.
    ///
    /// ```text
    ///                vec16      vec16 + 1      for example lane 21
    /// rows  0 .. 8   matrix 0   matrix 2       gives the address of row 21 % 16 = 5, vec16 + 21 / 16 = vec16 + 1;
    /// rows  8 .. 16  matrix 1   matrix 3       gets of each matrix row 21 / 4 = 5, columns 2 · (21 % 4) = 2 and 3.
    /// lanes          0 .. 16    16 .. 32
    /// ```
    #[inline(always)]
    pub fn matrix_row(&self, vec16: u32) -> u32 {
        let row = self.warp * WARP_ROWS + self.lane % WARP_ROWS;
        swizzled(row, vec16 + self.lane / WARP_ROWS)
    }
}

/// Vec16s of a row of an atom.
pub const ATOM_VEC16S: u32 = ATOM_ROW_BYTES / VEC16_BYTES;
/// Elements of a vec16.
pub const VEC16_ELEMS: u32 = swizzle::VEC16_ELEMS as u32;

/// Offset in an atom column of vec16 `vec16` of a row: the 128-byte swizzle xors it with the row modulo 8
/// ([`crate::layout::swizzle`] draws it).
#[inline(always)]
pub fn swizzled(row: u32, vec16: u32) -> u32 {
    row * ATOM_ROW_BYTES + (vec16 ^ (row % ATOM_ROWS)) * VEC16_BYTES
}
