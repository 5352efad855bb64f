//! Copying rows of a strided operand to a swizzled shared-memory tile, zero-filled where the operand ends.

use cuda_std::cp_async::{copy16, copy16_padded};
use cuda_std::thread::thread_idx_x;
use cuda_std::{global, shared};

use crate::config::mma::MmaTile;
use crate::layout::swizzle::{PIECE_BYTES, PIECE_ELEMS, offset, row_bytes, row_pieces};
use crate::tile::{opaque, source};
use crate::units::HALF_BYTES;

/// One head of an operand in global memory.
pub type Source = source::Source<HALF_BYTES>;

impl Source {
    /// Whether every piece of a tile's rows is a piece of the operand's.
    #[inline(always)]
    pub fn has_plain_rows(&self, config: MmaTile) -> bool {
        self.vectors && self.dims == config.head_dim as u32
    }

    /// Starts copying `row_count` rows from `row_begin` to the tile at `tile`, which has `config.head_dim` columns. The
    /// block shares the work: a thread keeps its place in a chunk of pieces and steps over rows and chunks.
    ///
    /// Rows that are not aligned are copied at once, element by element. `plain` is [`Source::has_plain_rows`].
    ///
    /// # Safety
    /// The tile has room, and nobody accesses it until the copies are waited for and a barrier is passed.
    #[inline(always)]
    pub unsafe fn copy(
        &self,
        config: MmaTile,
        tile: u32,
        row_begin: u32,
        row_count: u32,
        plain: bool,
    ) {
        let head_dim = config.head_dim;
        let chunk = MmaTile::copy_chunk(head_dim);
        let chunks = row_pieces(head_dim) as u32 / chunk;
        let rows_per_step = config.threads() / chunk;
        // Not kept in registers from one call to the next.
        let thread = opaque(thread_idx_x());
        let (row, piece) = (thread / chunk, thread % chunk);
        let destination = tile + offset(head_dim, row, piece);
        let source = self
            .address
            .wrapping_add_signed((row_begin + row) as i64 * self.row_bytes);

        if plain && row_begin + row_count <= self.rows {
            let mut source = source + (piece * PIECE_BYTES) as u64;
            for step in 0..row_count / rows_per_step {
                let destination = destination + step * rows_per_step * row_bytes(head_dim);
                for i in 0..chunks {
                    let chunk_bytes = i * chunk * PIECE_BYTES;
                    // SAFETY: forwarded to the caller.
                    unsafe { copy16(destination + chunk_bytes, source + chunk_bytes as u64) };
                }
                source = source.wrapping_add_signed(rows_per_step as i64 * self.row_bytes);
            }
            return;
        }
        let mut step = 0;
        while step < opaque(row_count / rows_per_step * chunks) {
            let (row_step, chunk_step) = (step / chunks * rows_per_step, step % chunks * chunk);
            let source = source.wrapping_add_signed(row_step as i64 * self.row_bytes);
            let destination =
                destination + row_step * row_bytes(head_dim) + chunk_step * PIECE_BYTES;
            let dim = (piece + chunk_step) * PIECE_ELEMS as u32;
            let dims = if row_begin + row + row_step < self.rows {
                self.dims.saturating_sub(dim).min(PIECE_ELEMS as u32)
            } else {
                0
            };
            // SAFETY: forwarded to the caller; what lies outside the operand is not read.
            unsafe {
                if self.vectors {
                    let source = source + (dim * HALF_BYTES) as u64;
                    copy16_padded(destination, source, dims * HALF_BYTES);
                } else {
                    let source = source.wrapping_add_signed(dim as i64 * self.dim_bytes);
                    shared::store4_bits(destination, self.gather(source, dims));
                }
            }
            step += 1;
        }
    }

    /// The first `dims` elements of the piece at `source`, then zeros.
    ///
    /// # Safety
    /// The elements exist.
    #[inline(always)]
    unsafe fn gather(&self, source: u64, dims: u32) -> [u32; 4] {
        let mut words = [0; 4];
        for i in 0..PIECE_ELEMS as u32 {
            if i < dims {
                let address = source.wrapping_add_signed(i as i64 * self.dim_bytes);
                // SAFETY: forwarded to the caller.
                let element = unsafe { global::load_u16(address) };
                words[i as usize / 2] |= (element as u32) << (i % 2 * 16);
            }
        }
        words
    }
}
