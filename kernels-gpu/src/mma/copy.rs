//! Copying rows of a strided operand to a swizzled shared-memory tile, zero-filled where the operand ends.

use cuda_std::cp_async::{copy16, copy16_padded};
use cuda_std::thread::thread_idx_x;
use cuda_std::{global, shared};

use crate::config::mma::MmaConfig;
use crate::layout::swizzle::{VEC16_BYTES, offset, row_bytes, row_vec16s};
use crate::tile::black_box;
use crate::tile::source::Source;
use crate::units::HALF_BYTES;

/// Rows of shared memory, and how many threads fill them.
#[derive(Clone, Copy)]
pub struct RowShape {
    /// Elements.
    pub head_dim: usize,
    pub threads: u32,
}

impl From<MmaConfig> for RowShape {
    #[inline(always)]
    fn from(config: MmaConfig) -> Self {
        Self {
            head_dim: config.head_dim,
            threads: config.threads(),
        }
    }
}

impl Source {
    /// Elements of a vec16.
    #[inline(always)]
    fn vec16_elems(&self) -> u32 {
        VEC16_BYTES / self.elem_bytes
    }

    /// Whether every vec16 of a tile's rows is a vec16 of the operand's.
    #[inline(always)]
    pub fn has_plain_rows(&self, shape: RowShape) -> bool {
        self.is_vec16 && self.dims == shape.head_dim as u32
    }

    /// Starts copying `row_count` rows from `row_begin` to the tile at `tile_smem`, which has `shape.head_dim` columns. The
    /// block shares the work: lanes that are neighbours copy a line, or half of one, and step over rows and lines.
    ///
    /// Rows that are not aligned are copied at once, element by element. `plain` is [`Source::has_plain_rows`].
    ///
    /// # Safety
    /// The tile has room, and nobody accesses it until the copies are waited for and a barrier is passed.
    #[inline(always)]
    pub unsafe fn copy_rows(
        &self,
        shape: RowShape,
        tile_smem: u32,
        row_begin: u32,
        row_count: u32,
        plain: bool,
    ) {
        let columns = shape.head_dim * (self.elem_bytes / HALF_BYTES) as usize;
        let lanes = MmaConfig::copy_lanes(columns);
        let line_parts = row_vec16s(columns) as u32 / lanes;
        let rows_per_step = shape.threads / lanes;
        // Not kept in registers from one call to the next.
        let thread = black_box(thread_idx_x());
        let (row, vec16) = (thread / lanes, thread % lanes);
        let destination = tile_smem + offset(columns, row, vec16);
        let source = self
            .address
            .wrapping_add_signed((row_begin + row) as i64 * self.row_bytes);

        if plain && row_begin + row_count <= self.rows {
            let mut source = source + (vec16 * VEC16_BYTES) as u64;
            for step in 0..row_count / rows_per_step {
                let destination = destination + step * rows_per_step * row_bytes(columns);
                for i in 0..line_parts {
                    let part_bytes = i * lanes * VEC16_BYTES;
                    copy16(destination + part_bytes, source + part_bytes as u64);
                }
                source = source.wrapping_add_signed(rows_per_step as i64 * self.row_bytes);
            }
            return;
        }
        let mut step = 0;
        while step < black_box(row_count / rows_per_step * line_parts) {
            let (row_step, vec16_step) =
                (step / line_parts * rows_per_step, step % line_parts * lanes);
            let source = source.wrapping_add_signed(row_step as i64 * self.row_bytes);
            let destination =
                destination + row_step * row_bytes(columns) + vec16_step * VEC16_BYTES;
            let dim = (vec16 + vec16_step) * self.vec16_elems();
            let dims = if row_begin + row + row_step < self.rows {
                self.dims.saturating_sub(dim).min(self.vec16_elems())
            } else {
                0
            };
            // SAFETY: what lies outside the operand is not read.
            unsafe {
                if self.is_vec16 {
                    let source = source + (dim * self.elem_bytes) as u64;
                    copy16_padded(destination, source, dims * self.elem_bytes);
                } else {
                    let source = source.wrapping_add_signed(dim as i64 * self.dim_bytes);
                    shared::store4_bits(destination, self.gather(source, dims));
                }
            }
            step += 1;
        }
    }

    /// The first `dims` elements of the vec16 at `source`, then zeros.
    ///
    /// # Safety
    /// The elements exist.
    #[inline(always)]
    unsafe fn gather(&self, source: u64, dims: u32) -> [u32; 4] {
        let mut words = [0; 4];
        for i in 0..self.vec16_elems() {
            if i < dims {
                let address = source.wrapping_add_signed(i as i64 * self.dim_bytes);
                if self.elem_bytes == HALF_BYTES {
                    let element = global::load_u16(address);
                    words[i as usize / 2] |= (element as u32) << (i % 2 * 16);
                } else {
                    words[i as usize] = global::load_bits(address);
                }
            }
        }
        words
    }
}
