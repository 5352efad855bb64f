//! Writing the gradients of a tile.

use cuda_std::half::Half;
use cuda_std::thread::thread_idx_x;
use cuda_std::{global, shared};

use super::MmaBackwardKernel;
use super::gemm::store_tile;
use super::tile::{Tile, renewed_strides};
use crate::abi::TensorArg;
use crate::backward::side::Side;
use crate::config::mma::MmaConfig;
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset};
use crate::tile::black_box;
use crate::tile::non_finite::shift;
use crate::units::HALF_BYTES;

/// Leaves the warp's part of `factor · sum` in the tile at `smem`, rounded.
///
/// # Safety
/// The tile has room, and nobody else accesses the warp's part of it until a barrier is passed.
#[inline(always)]
pub unsafe fn stage<K: MmaBackwardKernel, const ROWS: usize, const COLS: usize>(
    smem: u32,
    sum: &[[f32; COLS]; ROWS],
    factor: f32,
    warp: u32,
    lane: u32,
) {
    let origin = K::CONFIG.output().origin(warp);
    let value = |i: usize, j: usize| sum[i][j] * factor;
    let packed = |i, j| K::Element::cvt_pair(value(i, j), value(i, j + 1));
    store_tile::<ROWS, COLS>(packed, smem, K::CONFIG.head_dim, origin, lane);
}

/// Writes the tile's rows of a gradient, of `dims` dimensions; rows that the sequence leaves unused are 0.
///
/// # Safety
/// As [`Tile::new`]; the rows are at `smem`, and visible.
#[inline(always)]
pub unsafe fn write<K: MmaBackwardKernel>(
    tile: &Tile<K>,
    tensor: &TensorArg,
    dims: u32,
    smem: u32,
) {
    let head_dim = K::CONFIG.head_dim;
    let tensor = &renewed_strides::<K>(tensor, tile.begin);
    let sequence = tile.sequence();
    let used = K::Side::extent(&sequence).kept;
    let rows_left = tile.rows_written() - tile.begin;
    let row_bytes = tensor.seq_stride * HALF_BYTES as i64;
    let dim_bytes = tensor.dim_stride * HALF_BYTES as i64;
    let head = K::Side::kept_address(&sequence, tensor, tile.head, HALF_BYTES);
    let address = head.wrapping_add_signed(tile.begin as i64 * row_bytes);
    let aligned = (address | row_bytes as u64).is_multiple_of(VEC16_BYTES as u64);
    let is_vec16 = tensor.dim_stride == 1 && aligned;

    let lanes = MmaConfig::copy_lanes(head_dim);
    let thread = black_box(thread_idx_x());
    let (mut row, first_vec16) = (thread / lanes, thread % lanes);
    while row < black_box(rows_left.min(K::CONFIG.block_m as u32)) {
        let row_address = address.wrapping_add_signed(row as i64 * row_bytes);
        let mut vec16 = first_vec16;
        while vec16 * (VEC16_ELEMS as u32) < black_box(dims) {
            let dim = vec16 * VEC16_ELEMS as u32;
            let mut words = [0; 4];
            if tile.begin + row < used {
                words = shared::load4_bits(smem + offset(head_dim, row, vec16));
            }
            if is_vec16 && dim + VEC16_ELEMS as u32 <= dims {
                global::store4_bits(row_address + (dim * HALF_BYTES) as u64, words);
            } else {
                for i in 0..VEC16_ELEMS {
                    let dim = dim + i as u32;
                    if dim < dims {
                        let address = row_address.wrapping_add_signed(dim as i64 * dim_bytes);
                        global::store_u16(address, (words[i / 2] >> shift(i)) as u16);
                    }
                }
            }
            vec16 += lanes;
        }
        row += K::CONFIG.threads() / lanes;
    }
}
