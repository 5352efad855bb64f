//! Copying a rectangle of a strided operand to shared memory, zero-filled where the operand ends.

use cuda_std::cp_async::{copy4, copy16_padded};
use cuda_std::thread::thread_idx_x;

use crate::tile::{opaque, source};
use crate::units::F32_BYTES;

/// Elements of the widest copy.
const VECTOR: u32 = 4;

/// One head of an operand in global memory.
pub type Source = source::Source<F32_BYTES>;

impl Source {
    /// Starts copying rows `row_begin .. row_begin + row_count` and dimensions `dim_begin .. dim_begin + COLS`
    /// to `shared`, whose rows are `COLS + PAD` elements apart. The block shares the work: a thread keeps
    /// four columns and steps down the rows.
    ///
    /// # Safety
    /// `shared` has room and is 16-byte aligned, `COLS` is at most `4 · THREADS`, and nobody accesses the
    /// destination until the copies are waited for.
    #[inline(always)]
    pub unsafe fn copy<const THREADS: u32, const COLS: usize, const PAD: usize>(
        &self,
        shared: u32,
        row_begin: u32,
        row_count: u32,
        dim_begin: u32,
    ) {
        let pieces_per_row = COLS as u32 / VECTOR;
        let rows_per_step = THREADS / pieces_per_row;
        let row_elems = (COLS + PAD) as u32;
        let thread = opaque(thread_idx_x());
        let col = thread % pieces_per_row * VECTOR;
        let dim = dim_begin + col;
        let valid_dims = self.dims.saturating_sub(dim).min(VECTOR);

        let mut row = first_row(thread, pieces_per_row);
        let mut destination = shared + (row * row_elems + col) * F32_BYTES;
        let mut source = self
            .address
            .wrapping_add_signed((row_begin + row) as i64 * self.row_bytes)
            .wrapping_add_signed(dim as i64 * self.dim_bytes);
        let row_count = opaque(row_count);
        while row < row_count {
            let valid_dims = if row_begin + row < self.rows {
                valid_dims
            } else {
                0
            };
            // SAFETY: forwarded to the caller; out-of-range elements are not read.
            unsafe {
                if self.vectors {
                    copy16_padded(destination, source, valid_dims * F32_BYTES);
                } else {
                    for i in 0..VECTOR {
                        let valid_bytes = if i < valid_dims { F32_BYTES } else { 0 };
                        let offset = i as i64 * self.dim_bytes;
                        copy4(
                            destination + i * F32_BYTES,
                            source.wrapping_add_signed(offset),
                            valid_bytes,
                        );
                    }
                }
            }
            row += rows_per_step;
            destination += rows_per_step * row_elems * F32_BYTES;
            source = source.wrapping_add_signed(rows_per_step as i64 * self.row_bytes);
        }
    }
}

/// Pieces that the banks take at once.
const PIECES_AT_ONCE: u32 = 8;

/// The first row that `thread` copies a piece of, the same for all that share the row.
///
/// Where two rows are written at once, of four pieces each and 20 elements apart, they are four rows apart and fall in
/// different halves of the banks; neighbours would overlap.
#[inline(always)]
fn first_row(thread: u32, pieces_per_row: u32) -> u32 {
    let index = thread / pieces_per_row;
    if pieces_per_row == PIECES_AT_ONCE / 2 {
        index & !7 | (index & 1) << 2 | index >> 1 & 3
    } else {
        index
    }
}
