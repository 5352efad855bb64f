//! Copying a rectangle of a strided operand to shared memory, zero-filled where the operand ends.

use cuda_std::cp_async::{copy4, copy16, copy16_padded};

use super::Workers;
use crate::tile::black_box;
use crate::tile::source::Source;
use crate::units::F32_BYTES;

/// Elements of the widest copy.
const VECTOR: u32 = 4;

/// A rectangle in shared memory: rows of `cols` elements, `cols + pad` elements apart.
#[derive(Clone, Copy)]
pub struct SmemRect {
    /// 16-byte aligned.
    pub address: u32,
    pub cols: usize,
    pub pad: usize,
}

impl Source {
    /// Whether rectangles of `cols` columns are made of whole 16 bytes that exist, where their rows do.
    #[inline(always)]
    pub fn has_columns(&self, cols: usize) -> bool {
        self.is_vec16 && self.dims.is_multiple_of(cols as u32)
    }

    /// Starts copying rows `row_begin .. row_begin + row_count` and dimensions `dim_begin .. dim_begin + to.cols` to
    /// `to`. `workers` share the work: each keeps four columns and steps down the rows.
    ///
    /// # Safety
    /// `to` has room for the rows, its columns are at most four a thread, and nobody accesses it until the copies are
    /// waited for.
    #[inline(always)]
    pub unsafe fn copy(
        &self,
        workers: Workers,
        to: SmemRect,
        row_begin: u32,
        row_count: u32,
        dim_begin: u32,
    ) {
        let Part {
            mut row,
            col,
            mut source,
            mut destination,
            rows_per_step,
            source_step,
            destination_step,
        } = Part::new(
            Inner::new(self),
            self.dim_bytes,
            workers,
            to,
            [row_begin, dim_begin],
        );
        let valid_dims = self.dims.saturating_sub(dim_begin + col).min(VECTOR);
        let row_count = black_box(row_count);
        let rows_left = self.rows.saturating_sub(row_begin);
        // Two loops, as one for both kinds would spend five times the instructions on either.
        if self.is_vec16 {
            while row < row_count {
                let is_row = row < rows_left;
                let valid_dims = if is_row { valid_dims } else { 0 };
                // SAFETY: out-of-range elements are not read.
                unsafe { copy16_padded(destination, source, valid_dims * F32_BYTES) };
                row += rows_per_step;
                destination += destination_step;
                source = source.wrapping_add_signed(source_step);
            }
            return;
        }
        while row < row_count {
            let is_row = row < rows_left;
            let valid_dims = if is_row { valid_dims } else { 0 };
            for i in 0..VECTOR {
                let valid_bytes = if i < valid_dims { F32_BYTES } else { 0 };
                let offset = i as i64 * self.dim_bytes;
                let source = source.wrapping_add_signed(offset);
                // SAFETY: out-of-range elements are not read.
                unsafe { copy4(destination + i * F32_BYTES, source, valid_bytes) };
            }
            row += rows_per_step;
            destination += destination_step;
            source = source.wrapping_add_signed(source_step);
        }
    }
}

/// What a worker copies of a rectangle: four columns of every so many rows.
struct Part {
    /// Its first row and column, from those of the rectangle.
    row: u32,
    col: u32,
    /// Where it begins, in global and in shared memory, and the bytes from a row to the next.
    source: u64,
    destination: u32,
    rows_per_step: u32,
    source_step: i64,
    destination_step: u32,
}

impl Part {
    #[inline(always)]
    fn new(
        from: Inner,
        dim_bytes: i64,
        workers: Workers,
        to: SmemRect,
        [row_begin, dim_begin]: [u32; 2],
    ) -> Self {
        let vec16s_per_row = to.cols as u32 / VECTOR;
        let rows_per_step = workers.count / vec16s_per_row;
        let row_bytes = (to.cols + to.pad) as u32 * F32_BYTES;
        let col = workers.thread % vec16s_per_row * VECTOR;
        let row = first_row(workers.thread, vec16s_per_row);
        Self {
            row,
            col,
            source: from
                .address
                .wrapping_add_signed((row_begin + row) as i64 * from.row_bytes)
                .wrapping_add_signed((dim_begin + col) as i64 * dim_bytes),
            destination: to.address + row * row_bytes + col * F32_BYTES,
            rows_per_step,
            source_step: rows_per_step as i64 * from.row_bytes,
            destination_step: rows_per_step * row_bytes,
        }
    }
}

/// An operand of which rectangles are copied that end inside it, so that no row or dimension needs a test.
#[derive(Clone, Copy)]
pub struct Inner {
    address: u64,
    row_bytes: i64,
}

impl Inner {
    #[inline(always)]
    pub fn new(source: &Source) -> Self {
        Self {
            address: source.address,
            row_bytes: source.row_bytes,
        }
    }

    /// Starts copying rows `row_begin .. row_begin + row_count` and dimensions `dim_begin .. dim_begin + to.cols` to
    /// `to`. `row_count` is a number known at compile time, once inlined.
    ///
    /// # Safety
    /// As [`Source::copy`]; [`Source::has_columns`], and the rows exist.
    #[inline(always)]
    pub unsafe fn copy(
        &self,
        workers: Workers,
        to: SmemRect,
        row_begin: u32,
        row_count: u32,
        dim_begin: u32,
    ) {
        let part = Part::new(*self, F32_BYTES as i64, workers, to, [row_begin, dim_begin]);
        let mut source = part.source;
        for step in 0..row_count / part.rows_per_step {
            copy16(part.destination + step * part.destination_step, source);
            source = source.wrapping_add_signed(part.source_step);
        }
    }
}

/// Vec16s that the banks take at once.
const VEC16S_AT_ONCE: u32 = 8;

/// The first row that `thread` copies a vec16 of, the same for all that share the row.
///
/// Where two rows are written at once, of four vec16s each and 20 elements apart, they are four rows apart and fall in
/// different halves of the banks; neighbours would overlap.
#[inline(always)]
fn first_row(thread: u32, vec16s_per_row: u32) -> u32 {
    let index = thread / vec16s_per_row;
    if vec16s_per_row == VEC16S_AT_ONCE / 2 {
        // Bits 0, 1, 2 of the index become bits 2, 0, 1 of the row: rows 0 4 1 5 2 6 3 7.
        let (half, pair) = (index % 2, index / 2 % 4);
        index / 8 * 8 + half * 4 + pair
    } else {
        index
    }
}
