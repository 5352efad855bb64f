//! Normalising the output tile and writing it with its log-sum-exp.

use cuda_std::global;

use super::{LANES, Place, Row};
use crate::abi::ForwardParams;
use crate::tile::row_state::Finalized;
use crate::tile::sequence::Sequence;
use crate::units::F32_BYTES;

/// Consecutive output columns of a thread.
const RUN: usize = 4;

/// Writes the rows of `o` and `lse` this thread holds.
///
/// # Safety
/// `params` describes live allocations; all lanes of a warp must reach the same call.
#[inline(always)]
pub unsafe fn store<const THREADS: u32, const ROWS: usize, const O_COLS: usize>(
    acc_o: &[[f32; O_COLS]; ROWS],
    rows: &[Row; ROWS],
    place: Place<THREADS>,
    params: &ForwardParams,
    sequence: Sequence,
    head: u32,
    m_begin: u32,
) {
    let o = &params.o;
    let head_address = sequence.q_address(o, head, F32_BYTES);
    let lse_address = sequence.lse_address(params, head);
    let row_bytes = o.seq_stride * F32_BYTES as i64;
    let misaligned = (head_address | row_bytes as u64) % (RUN as u32 * F32_BYTES) as u64 != 0;
    let vectors = o.dim_stride == 1 && !misaligned;

    for i in 0..ROWS {
        // SAFETY: all lanes run the same loop.
        let Finalized { norm, lse } = unsafe { rows[i].finalize() };
        let row = m_begin + place.row(i);
        if row >= sequence.seq_q {
            continue;
        }
        let row_address = head_address.wrapping_add_signed(row as i64 * row_bytes);
        for j in 0..O_COLS / RUN {
            let col = place.lane * RUN as u32 + (j * RUN * LANES) as u32;
            let mut run = [0.0; RUN];
            for step in 0..RUN {
                run[step] = acc_o[i][j * RUN + step] * norm;
            }
            if vectors && col + RUN as u32 <= params.attention.head_dim_v {
                // SAFETY: the four columns exist and are aligned.
                unsafe { global::store4(row_address + (col * F32_BYTES) as u64, run) };
            } else {
                for step in 0..RUN {
                    let dim = col + step as u32;
                    if dim < params.attention.head_dim_v {
                        let offset = dim as i64 * o.dim_stride * F32_BYTES as i64;
                        // SAFETY: the column exists.
                        unsafe {
                            global::store(row_address.wrapping_add_signed(offset), run[step])
                        };
                    }
                }
            }
        }
        if place.lane == 0 {
            // SAFETY: lse has an element for every row.
            unsafe { global::store(lse_address + row as u64 * F32_BYTES as u64, lse) };
        }
    }
}
