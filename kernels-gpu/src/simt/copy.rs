//! Copying a rectangle of a strided operand to shared memory, zero-filled where the operand ends.

use cuda_std::cp_async::{copy4, copy16};
use cuda_std::thread::thread_idx_x;

use super::F32_BYTES;
use crate::abi::TensorArg;

/// Elements of the widest copy.
const VECTOR: u32 = 4;

/// One head of an operand in global memory: `rows` × `dims`, any strides.
#[derive(Clone, Copy)]
pub struct Source {
    address: u64,
    row_bytes: i64,
    dim_bytes: i64,
    rows: u32,
    dims: u32,
    /// Whether every group of four dimensions is contiguous and 16-byte aligned.
    vectors: bool,
}

impl Source {
    #[inline(always)]
    pub fn new(operand: &TensorArg, batch: u32, head: u32, rows: u32, dims: u32) -> Self {
        let offset = batch as i64 * operand.batch_stride + head as i64 * operand.head_stride;
        let address = operand
            .address
            .wrapping_add_signed(offset * F32_BYTES as i64);
        let row_bytes = operand.seq_stride * F32_BYTES as i64;
        let misaligned = (address | row_bytes as u64) % (VECTOR * F32_BYTES) as u64 != 0;
        Self {
            address,
            row_bytes,
            dim_bytes: operand.dim_stride * F32_BYTES as i64,
            rows,
            dims,
            vectors: operand.dim_stride == 1 && !misaligned,
        }
    }

    /// Starts copying rows `row_begin .. row_begin + row_count` and dimensions `dim_begin .. dim_begin + COLS`
    /// to `shared`, whose rows are `COLS + PAD` elements apart. The block shares the work.
    ///
    /// # Safety
    /// `shared` has room and is 16-byte aligned, `COLS ≤ THREADS`, and nobody accesses it until the copies
    /// are waited for.
    #[inline(always)]
    pub unsafe fn copy<const THREADS: u32, const COLS: usize, const PAD: usize>(
        &self,
        shared: u32,
        row_begin: u32,
        row_count: u32,
        dim_begin: u32,
    ) {
        // SAFETY: forwarded to the caller.
        unsafe {
            if self.vectors {
                self.copy_pieces::<THREADS, COLS, PAD, VECTOR>(
                    shared, row_begin, row_count, dim_begin,
                );
            } else {
                self.copy_pieces::<THREADS, COLS, PAD, 1>(shared, row_begin, row_count, dim_begin);
            }
        }
    }

    /// [`Source::copy`] in pieces of `WIDTH` elements. A thread keeps its column and steps down the rows.
    #[inline(always)]
    unsafe fn copy_pieces<
        const THREADS: u32,
        const COLS: usize,
        const PAD: usize,
        const WIDTH: u32,
    >(
        &self,
        shared: u32,
        row_begin: u32,
        row_count: u32,
        dim_begin: u32,
    ) {
        let pieces_per_row = COLS as u32 / WIDTH;
        let rows_per_step = THREADS / pieces_per_row;
        let thread = thread_idx_x();
        let col = thread % pieces_per_row * WIDTH;
        let mut row = thread / pieces_per_row;

        let dim = dim_begin + col;
        let valid_bytes = self.dims.saturating_sub(dim).min(WIDTH) * F32_BYTES;
        let row_elems = COLS as u32 + PAD as u32;
        let mut destination = shared + (row * row_elems + col) * F32_BYTES;
        let mut source = self
            .address
            .wrapping_add_signed((row_begin + row) as i64 * self.row_bytes)
            .wrapping_add_signed(dim as i64 * self.dim_bytes);
        while row < row_count {
            let valid_bytes = if row_begin + row < self.rows {
                valid_bytes
            } else {
                0
            };
            // SAFETY: forwarded to the caller; out-of-range elements are not read.
            unsafe {
                if WIDTH == VECTOR {
                    copy16(destination, source, valid_bytes);
                } else {
                    copy4(destination, source, valid_bytes);
                }
            }
            row += rows_per_step;
            destination += rows_per_step * row_elems * F32_BYTES;
            source = source.wrapping_add_signed(rows_per_step as i64 * self.row_bytes);
        }
    }
}
