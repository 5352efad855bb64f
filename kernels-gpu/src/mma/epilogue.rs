//! Normalising the output tile and writing it with its log-sum-exp.

use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};
use cuda_std::{global, shared};

use super::Row;
use super::element::Element;
use super::guard::Notes;
use crate::abi::ForwardParams;
use crate::config::mma::MmaTile;
use crate::layout::fragment::{ROW_STEP, TILE_N, row_column};
use crate::layout::swizzle::{PIECE_BYTES, PIECE_ELEMS, offset};
use crate::tile::opaque;
use crate::tile::row_state::Finalized;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Where a warp's output rows go.
pub struct Destination<'a> {
    pub params: &'a ForwardParams,
    pub sequence: Sequence,
    pub head: u32,
    /// First row of the warp.
    pub row_begin: u32,
    /// Shared memory for the warp's rows, which nobody else uses.
    pub staging: u32,
    /// What is known about non-finite values that the tile's rows see, if that was looked for.
    pub notes: Option<Notes>,
    /// First row of the warp in the tile, for which the notes are.
    pub tile_row: u32,
}

impl Destination<'_> {
    /// Normalises the warp's rows and writes them and their lse.
    ///
    /// The rows pass through shared memory, as a lane holds 4 bytes here and there of each, and leave in 16-byte
    /// stores.
    ///
    /// # Safety
    /// `self` describes live allocations; all 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn store<E: Element, const ROWS: usize, const O_COLS: usize>(
        &self,
        acc_o: &[[f32; O_COLS]; ROWS],
        rows: &[Row; ROWS],
        config: MmaTile,
    ) {
        let lane = opaque(lane_id());
        let lse_address = self.sequence.lse_address(self.params, self.head);
        let rows_left = self.sequence.seq_q.saturating_sub(self.row_begin);
        for i in 0..ROWS {
            let row = lane / 4 + i as u32 * ROW_STEP;
            // SAFETY: all lanes run the same loop.
            let Finalized { norm, lse } = unsafe { rows[i].finalize() };
            for col in (0..O_COLS).step_by(2) {
                let pair = E::pack(acc_o[i][col] * norm, acc_o[i][col + 1] * norm);
                let column = row_column(lane, col as u32);
                let address = self.staging
                    + offset(config.head_dim, row, column / TILE_N as u32)
                    + column % TILE_N as u32 * HALF_BYTES;
                // SAFETY: the warp's rows of the staging tile are its own.
                unsafe { shared::store_bits(address, pair) };
            }
            if lane.is_multiple_of(4) && row < rows_left {
                let row = self.row_begin + row;
                let address = lse_address + row as u64 * F32_BYTES as u64;
                // SAFETY: lse has an element for every row.
                unsafe { global::store(address, lse) };
            }
        }
        // SAFETY: forwarded to the caller; the rows are written, and the barrier shows them to the warp.
        unsafe {
            sync_warp();
            self.write_rows::<E>(rows_left.min(ROWS as u32 * ROW_STEP), config);
        }
    }

    /// Writes the first `row_count` staged rows to `o`.
    ///
    /// # Safety
    /// As [`Destination::store`].
    #[inline(always)]
    unsafe fn write_rows<E: Element>(&self, row_count: u32, config: MmaTile) {
        let o = &self.params.o;
        let head_dim = config.head_dim;
        let dims = self.params.attention.head_dim_v;
        let row_bytes = o.seq_stride * HALF_BYTES as i64;
        let address = self
            .sequence
            .q_address(o, self.head, HALF_BYTES)
            .wrapping_add_signed(self.row_begin as i64 * row_bytes);
        let aligned = (address | row_bytes as u64).is_multiple_of(PIECE_BYTES as u64);
        let vectors = o.dim_stride == 1 && aligned;

        let chunk = MmaTile::copy_chunk(head_dim);
        let lane = opaque(lane_id());
        let (mut row, piece) = (lane / chunk, lane % chunk);
        while row < opaque(row_count) {
            let row_address = address.wrapping_add_signed(row as i64 * row_bytes);
            let mut piece = piece;
            while piece * (PIECE_ELEMS as u32) < opaque(dims) {
                let dim = piece * PIECE_ELEMS as u32;
                // SAFETY: forwarded to the caller; the elements exist.
                unsafe {
                    let mut words = shared::load4_bits(self.staging + offset(head_dim, row, piece));
                    if let Some(notes) = &self.notes {
                        words = notes.apply::<E>(words, self.tile_row + row, piece);
                    }
                    if vectors && dim + PIECE_ELEMS as u32 <= dims {
                        global::store4_bits(row_address + (dim * HALF_BYTES) as u64, words);
                    } else {
                        for i in 0..PIECE_ELEMS as u32 {
                            if dim + i < dims {
                                let offset = (dim + i) as i64 * o.dim_stride * HALF_BYTES as i64;
                                let element = (words[i as usize / 2] >> (i % 2 * 16)) as u16;
                                global::store_u16(row_address.wrapping_add_signed(offset), element);
                            }
                        }
                    }
                }
                piece += chunk;
            }
            row += WARP_SIZE / chunk;
        }
    }
}
