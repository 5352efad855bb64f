//! Normalising the output tile and writing it with its log-sum-exp.

use cuda_std::warp::{WARP_SIZE, lane_id, sync_warp};
use cuda_std::{global, shared};

use super::MmaKernel;
use super::accumulator::Accumulator;
use super::arithmetic::Arithmetic;
use super::non_finite::NonFiniteMask;
use crate::abi::ForwardParams;
use crate::config::mma::MmaConfig;
use crate::layout::fragment::ROW_STEP;
use crate::layout::swizzle::{VEC16_BYTES, offset};
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
            let values = acc_o[i].map(|o| o * norm);
            let columns = K::CONFIG.columns();
            // SAFETY: the warp's rows of the o_smem tile are its own.
            unsafe { K::Element::stage_row(self.o_smem, columns, row, lane, &values) };
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
        let (columns, bytes) = (K::CONFIG.columns(), K::Element::BYTES);
        let vec16_elems = VEC16_BYTES / bytes;
        let dims = self.params.attention.head_dim_v;
        let row_bytes = o.seq_stride * bytes as i64;
        let address = self
            .sequence
            .q_address(o, self.head, bytes)
            .wrapping_add_signed(self.row_begin as i64 * row_bytes);
        let aligned = (address | row_bytes as u64).is_multiple_of(VEC16_BYTES as u64);
        let is_vec16 = o.dim_stride == 1 && aligned;

        let lanes = MmaConfig::copy_lanes(columns);
        let lane = black_box(lane_id());
        let (mut row, vec16) = (lane / lanes, lane % lanes);
        while row < black_box(row_count) {
            let row_address = address.wrapping_add_signed(row as i64 * row_bytes);
            let mut vec16 = vec16;
            while vec16 * vec16_elems < black_box(dims) {
                let dim = vec16 * vec16_elems;
                // SAFETY: the elements exist.
                unsafe {
                    let mut words = shared::load4_bits(self.o_smem + offset(columns, row, vec16));
                    if let Some(non_finite) = &self.non_finite {
                        words = non_finite.apply::<K::Element>(words, self.tile_row + row, vec16);
                    }
                    if is_vec16 && dim + vec16_elems <= dims {
                        global::store4_bits(row_address + (dim * bytes) as u64, words);
                    } else {
                        for i in 0..vec16_elems {
                            if dim + i < dims {
                                let offset = (dim + i) as i64 * o.dim_stride * bytes as i64;
                                let address = row_address.wrapping_add_signed(offset);
                                if bytes == HALF_BYTES {
                                    let element = words[i as usize / 2] >> (i % 2 * 16);
                                    global::store_u16(address, element as u16);
                                } else {
                                    global::store_bits(address, words[i as usize]);
                                }
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
