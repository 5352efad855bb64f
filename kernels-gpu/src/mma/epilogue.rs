//! Normalising the output tile and writing it with its log-sum-exp.

use cuda_std::half::Half;
use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};
use cuda_std::{global, shared};

use super::MmaKernel;
use super::accumulator::Accumulator;
use super::non_finite::NonFiniteMask;
use crate::abi::ForwardParams;
use crate::config::mma::MmaConfig;
use crate::layout::fragment::{ROW_STEP, TILE_N, row_column};
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset};
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::tile::row_state::Finalized;
use crate::tile::sequence::Sequence;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Where a warp's output rows go.
pub struct Destination<'a, M> {
    pub params: &'a ForwardParams,
    pub modifiers: &'a M,
    pub sequence: Sequence,
    pub head: u32,
    /// First row of the warp.
    pub row_begin: u32,
    /// Shared memory for the warp's rows, which nobody else uses.
    pub o_smem: u32,
    /// Record of the non-finite values that the tile's rows see, if they were looked for.
    pub non_finite: Option<NonFiniteMask>,
    /// First row of the warp in the tile, which the mask is indexed with.
    pub tile_row: u32,
}

impl<M: Modifiers> Destination<'_, M> {
    /// Normalises the warp's rows and writes them and their lse.
    ///
    /// The rows pass through shared memory, as a lane holds 4 bytes here and there of each, and leave in 16-byte
    /// stores.
    ///
    /// # Safety
    /// `self` describes live allocations; all 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn store<K: MmaKernel, const ROWS: usize, const O_COLS: usize>(
        &self,
        acc: &Accumulator<ROWS, O_COLS>,
    ) {
        let Accumulator { rows, acc_o } = acc;
        let lane = black_box(lane_id());
        let lse_address = self.sequence.lse_address(self.params, self.head);
        let rows_left = self.sequence.seq_q.saturating_sub(self.row_begin);
        for i in 0..ROWS {
            let row = lane / 4 + i as u32 * ROW_STEP;
            // SAFETY: all lanes run the same loop.
            let Finalized { norm, lse } = unsafe { rows[i].finalize(self.modifiers, self.head) };
            for col in (0..O_COLS).step_by(2) {
                let pair = K::Element::cvt_pair(acc_o[i][col] * norm, acc_o[i][col + 1] * norm);
                let column = row_column(lane, col as u32);
                let address = self.o_smem
                    + offset(K::CONFIG.head_dim, row, column / TILE_N as u32)
                    + column % TILE_N as u32 * HALF_BYTES;
                // SAFETY: the warp's rows of the o_smem tile are its own.
                unsafe { shared::store_bits(address, pair) };
            }
            if lane.is_multiple_of(4) && row < rows_left {
                let row = self.row_begin + row;
                let address = lse_address + row as u64 * F32_BYTES as u64;
                // SAFETY: lse has an element for every row.
                unsafe { global::store(address, lse) };
            }
        }
        // SAFETY: the rows are written, and the barrier shows them to the warp.
        unsafe {
            sync_warp();
            self.write_rows::<K>(rows_left.min(ROWS as u32 * ROW_STEP));
        }
    }

    /// Writes the first `row_count` rows at `o_smem` to `o`.
    ///
    /// # Safety
    /// As [`Destination::store`].
    #[inline(always)]
    unsafe fn write_rows<K: MmaKernel>(&self, row_count: u32) {
        let o = &self.params.o;
        let head_dim = K::CONFIG.head_dim;
        let dims = self.params.attention.head_dim_v;
        let row_bytes = o.seq_stride * HALF_BYTES as i64;
        let address = self
            .sequence
            .q_address(o, self.head, HALF_BYTES)
            .wrapping_add_signed(self.row_begin as i64 * row_bytes);
        let aligned = (address | row_bytes as u64).is_multiple_of(VEC16_BYTES as u64);
        let is_vec16 = o.dim_stride == 1 && aligned;

        let lanes = MmaConfig::copy_lanes(head_dim);
        let lane = black_box(lane_id());
        let (mut row, vec16) = (lane / lanes, lane % lanes);
        while row < black_box(row_count) {
            let row_address = address.wrapping_add_signed(row as i64 * row_bytes);
            let mut vec16 = vec16;
            while vec16 * (VEC16_ELEMS as u32) < black_box(dims) {
                let dim = vec16 * VEC16_ELEMS as u32;
                // SAFETY: the elements exist.
                unsafe {
                    let mut words = shared::load4_bits(self.o_smem + offset(head_dim, row, vec16));
                    if let Some(non_finite) = &self.non_finite {
                        words = non_finite.apply::<K::Element>(words, self.tile_row + row, vec16);
                    }
                    if is_vec16 && dim + VEC16_ELEMS as u32 <= dims {
                        global::store4_bits(row_address + (dim * HALF_BYTES) as u64, words);
                    } else {
                        for i in 0..VEC16_ELEMS as u32 {
                            if dim + i < dims {
                                let offset = (dim + i) as i64 * o.dim_stride * HALF_BYTES as i64;
                                let element = (words[i as usize / 2] >> (i % 2 * 16)) as u16;
                                global::store_u16(row_address.wrapping_add_signed(offset), element);
                            }
                        }
                    }
                }
                vec16 += lanes;
            }
            row += WARP_SIZE / lanes;
        }
    }
}
