//! Where a thread's fragment elements lie in its warpgroup's 64 rows (`cuda_std::wgmma`).

use cuda_std::thread::thread_idx_x;
use cuda_std::warp::WARP_SIZE;

use crate::config::wgmma::{PANEL_ROW_BYTES, WARP_ROWS, WARPGROUP};
use crate::tile::opaque;

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

    /// The same place, for addresses that are to be worked out where they are used, not kept in registers.
    #[inline(always)]
    pub fn anew(&self) -> Self {
        Self {
            lane: opaque(self.lane),
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
        self.warp * WARP_ROWS + self.lane / 4
    }

    /// First of the thread's columns in every eight.
    #[inline(always)]
    pub fn col(&self) -> u32 {
        self.lane % 4 * 2
    }

    /// Offset in a swizzled panel of the 16 bytes whose address this lane gives to `ldmatrix` and
    /// `stmatrix` for 16 columns that start at 16-byte chunk `chunk`.
    ///
    /// Matrices 0 and 1 are the upper and lower eight rows of the left eight columns, 2 and 3 of the right:
    /// the order of an A fragment's registers.
    #[inline(always)]
    pub fn matrix_row(&self, chunk: u32) -> u32 {
        let row = self.warp * WARP_ROWS + self.lane % WARP_ROWS;
        swizzled(row, chunk + self.lane / WARP_ROWS)
    }
}

/// 16-byte chunks of a panel's row, and elements of a chunk.
pub const CHUNKS: u32 = PANEL_ROW_BYTES / 16;
pub const CHUNK_ELEMS: u32 = 8;

/// Offset in a panel of 16-byte chunk `chunk` of a row: the 128-byte swizzle xors it with the row modulo 8.
#[inline(always)]
pub fn swizzled(row: u32, chunk: u32) -> u32 {
    row * PANEL_ROW_BYTES + (chunk ^ (row % 8)) * 16
}
