//! Normalising the output tile and writing it with its log-sum-exp.

use cuda_std::global;

use super::context::TileContext;
use super::{LANES, Row, ThreadLayout};
use crate::abi::TensorArg;
use crate::modifiers::Modifiers;
use crate::tile::grid::BlockCoord;
use crate::tile::row_state::Finalized;
use crate::units::F32_BYTES;

/// Consecutive output columns of a thread.
const RUN: usize = 4;

/// Writes the rows of `o` and `lse` this thread holds.
///
/// # Safety
/// `params` describes live allocations; all lanes of a warp must reach the same call.
#[inline(always)]
pub unsafe fn store<M: Modifiers, const ROWS: usize, const O_COLS: usize>(
    acc_o: &[[f32; O_COLS]; ROWS],
    rows: &[Row; ROWS],
    layout: ThreadLayout,
    tile: &TileContext<M>,
) {
    let TileContext {
        params,
        modifiers,
        coord: BlockCoord { head, .. },
        m_begin,
    } = *tile;
    let sequence = tile.sequence();
    let o = &params.o;
    let head_address = sequence.q_address(o, head, F32_BYTES);
    let lse_address = sequence.lse_address(params, head);
    let row_bytes = o.seq_stride * F32_BYTES as i64;
    for i in 0..ROWS {
        // SAFETY: all lanes run the same loop.
        let Finalized { norm, lse } = unsafe { rows[i].finalize(modifiers, head) };
        let row = m_begin + layout.row(i);
        if row >= sequence.seq_q {
            continue;
        }
        let mut values = [0.0; O_COLS];
        for (value, acc) in values.iter_mut().zip(&acc_o[i]) {
            *value = acc * norm;
        }
        let to = RowOfTensor {
            tensor: o,
            address: head_address.wrapping_add_signed(row as i64 * row_bytes),
            dims: params.attention.head_dim_v,
        };
        store_row(&to, layout, &values);
        if layout.lane == 0 {
            // SAFETY: lse has an element for every row.
            unsafe { global::store(lse_address + row as u64 * F32_BYTES as u64, lse) };
        }
    }
}

/// One row of a head of a tensor.
pub struct RowOfTensor<'a> {
    pub tensor: &'a TensorArg,
    /// Address of its first component.
    pub address: u64,
    /// Number of its components.
    pub dims: u32,
}

/// Writes a thread's columns of a row: runs of [`RUN`], as [`pv`](super::gemm::pv) leaves them.
///
/// # Safety
/// The row lies in a live allocation, and is its lanes' own.
#[inline(always)]
pub unsafe fn store_row<const COLS: usize>(
    to: &RowOfTensor<'_>,
    layout: ThreadLayout,
    values: &[f32; COLS],
) {
    store_runs::<LANES, COLS>(to, layout.lane, values);
}

/// Writes the columns of lane `lane` of the `LANES` that share a row.
///
/// # Safety
/// The row lies in a live allocation, and is those lanes' own.
#[inline(always)]
pub unsafe fn store_runs<const LANES: usize, const COLS: usize>(
    to: &RowOfTensor<'_>,
    lane: u32,
    values: &[f32; COLS],
) {
    let &RowOfTensor {
        tensor,
        address,
        dims,
    } = to;
    let is_aligned = address.is_multiple_of((RUN as u32 * F32_BYTES) as u64);
    let is_vec16 = tensor.dim_stride == 1 && is_aligned;
    for j in 0..COLS / RUN {
        let col = lane * RUN as u32 + (j * RUN * LANES) as u32;
        let run: [f32; RUN] = core::array::from_fn(|step| values[j * RUN + step]);
        if is_vec16 && col + RUN as u32 <= dims {
            // SAFETY: the four columns exist and are aligned.
            unsafe { global::store4(address + (col * F32_BYTES) as u64, run) };
        } else {
            for step in 0..RUN {
                let dim = col + step as u32;
                if dim < dims {
                    let offset = dim as i64 * tensor.dim_stride * F32_BYTES as i64;
                    // SAFETY: the column exists.
                    unsafe { global::store(address.wrapping_add_signed(offset), run[step]) };
                }
            }
        }
    }
}
