//! o and lse of a tile's rows.

use cuda_std::half::Half;
use cuda_std::thread::sync_threads;
use cuda_std::warp::{lane_id, reduce_sum};
use cuda_std::{global, shared};

use super::merge::maximum;
use super::tile::Tile;
use super::work::Word;
use super::{DecodeKernel, State};
use crate::config::decode::DecodeConfig;
use crate::tile::row_state::Finalized;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Normalises the rows at `position` of a state over all their keys, and writes them.
///
/// # Safety
/// As [`decode`](super::decode); the whole block calls it, and nobody accesses the maxima.
#[inline(always)]
pub unsafe fn finish<K: DecodeKernel, const HALVES: usize, const O_COLS: usize>(
    tile: &Tile<'_>,
    state: &State<HALVES, O_COLS>,
    position: u32,
) {
    let lane = lane_id();
    for i in 0..HALVES {
        let sum = reduce_sum::<4>(state.rows[i].row_sum);
        if lane.is_multiple_of(4) {
            let of_row = maximum(lane / 4 + i as u32 * 8);
            shared::store(of_row + tile.warp() * F32_BYTES, sum);
        }
    }
    sync_threads();
    for i in 0..HALVES {
        let of_row = maximum(lane / 4 + i as u32 * 8);
        let [a, b, c, d] = shared::load4(of_row);
        let [e, f, g, h] = shared::load4(of_row + 4 * F32_BYTES);
        let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
        if tile.has_row(i, position) {
            write_row::<K, HALVES, O_COLS>(tile, state, i, sum);
        }
    }
}

/// Writes this lane's columns of its row `i`, whose probabilities add up to `sum`.
///
/// # Safety
/// As [`finish`]; there is such a row.
#[inline(always)]
unsafe fn write_row<K: DecodeKernel, const HALVES: usize, const O_COLS: usize>(
    tile: &Tile<'_>,
    state: &State<HALVES, O_COLS>,
    i: usize,
    sum: f32,
) {
    let lane = lane_id();
    let row = tile.row(i);
    let Finalized { norm, lse } = match tile.sink(row) {
        None => state.rows[i].finalize_sum(sum),
        Some(sink) => state.rows[i].finalize_with_sink(sum, sink),
    };
    let forward = &tile.params().forward;
    let batch = tile.get(Word::Batch);
    let (head, q_row) = tile.head_and_q_row(row);
    let o = &forward.o;
    let elements =
        batch as i64 * o.batch_stride + head as i64 * o.head_stride + q_row as i64 * o.seq_stride;
    let address = o.address.wrapping_add_signed(elements * HALF_BYTES as i64);
    // Whether two columns of a round are components that follow each other, and lie in one word.
    let is_pair = K::CONFIG.round_cols().is_multiple_of(2)
        && o.dim_stride == 1
        && address.is_multiple_of(2 * HALF_BYTES as u64);
    let dims = forward.attention.head_dim_v;
    for col in (0..O_COLS).step_by(2) {
        let pair = K::Element::cvt_pair(state.acc_o[i][col] * norm, state.acc_o[i][col + 1] * norm);
        let warp = tile.warp();
        let [dim, next] = [0, 1].map(|i| dim_of::<K>(warp, lane, col as u32 + i));
        let place =
            |dim: u32| address.wrapping_add_signed(dim as i64 * o.dim_stride * HALF_BYTES as i64);
        if is_pair && next < dims {
            global::store_bits(place(dim), pair);
        } else {
            if dim < dims {
                global::store_u16(place(dim), pair as u16);
            }
            if next < dims {
                global::store_u16(place(next), (pair >> 16) as u16);
            }
        }
    }
    if lane.is_multiple_of(4) && tile.warp() == 0 {
        let attention = &forward.attention;
        // [batch, heads_q, seq_q]; of packed queries [heads_q, total_q].
        let (batch, rows) = match attention.lengths.total_q {
            0 => (batch, attention.seq_q),
            total_q => (0, total_q),
        };
        let heads = batch as u64 * attention.heads_q as u64 + head as u64;
        let index = heads * rows as u64 + q_row as u64;
        global::store(forward.lse + index * F32_BYTES as u64, lse);
    }
}

/// The component of o that element `col` of a lane's state is.
#[inline(always)]
fn dim_of<K: DecodeKernel>(warp: u32, lane: u32, col: u32) -> u32 {
    let config = K::CONFIG;
    let cols = config.round_cols() as u32;
    let of_warp = warp * (config.round_dims() / DecodeConfig::WARPS);
    col / cols * config.round_dims() + of_warp + lane % 4 * cols + col % cols
}
