//! Writing the gradients of a tile.

use super::super::ThreadLayout;
use super::super::epilogue::{RowOfTensor, store_row};
use super::tile::Tile;
use crate::abi::TensorArg;
use crate::backward::side::Side;
use crate::modifiers::Modifiers;
use crate::units::F32_BYTES;

/// Writes the rows of the gradients that this thread holds.
///
/// # Safety
/// As [`Tile::sequence`].
#[inline(always)]
pub unsafe fn store<S: Side, M: Modifiers, const ROWS: usize, const COLS: usize>(
    tile: &Tile<S, M>,
    layout: ThreadLayout,
    first: &[[f32; COLS]; ROWS],
    second: &[[f32; COLS]; ROWS],
) {
    let params = tile.params;
    let attention = &params.attention;
    let scale = attention.score.softmax_scale;
    let of_dropout = tile.modifiers.dropout_scale();
    if S::HAS_SECOND {
        store_sum(tile, layout, &params.dk, attention.head_dim, first, scale);
        store_sum(
            tile,
            layout,
            &params.dv,
            attention.head_dim_v,
            second,
            of_dropout,
        );
    } else {
        store_sum(tile, layout, &params.dq, attention.head_dim, first, scale);
    }
}

/// Writes one gradient, times `factor`; rows that the sequence leaves unused are 0.
///
/// # Safety
/// As [`Tile::sequence`].
#[inline(always)]
pub unsafe fn store_sum<S: Side, M: Modifiers, const ROWS: usize, const COLS: usize>(
    tile: &Tile<S, M>,
    layout: ThreadLayout,
    tensor: &TensorArg,
    dims: u32,
    sum: &[[f32; COLS]; ROWS],
    factor: f32,
) {
    let sequence = tile.sequence();
    let used = S::extent(&sequence).kept;
    let written = tile.rows_written();
    let head_address = S::kept_address(&sequence, tensor, tile.coord.head, F32_BYTES);
    for i in 0..ROWS {
        let row = tile.begin + layout.row(i);
        if row >= written {
            continue;
        }
        let mut values = [0.0; COLS];
        if row < used {
            for (value, sum) in values.iter_mut().zip(&sum[i]) {
                *value = sum * factor;
            }
        }
        let row_bytes = tensor.seq_stride * F32_BYTES as i64;
        let to = RowOfTensor {
            tensor,
            address: head_address.wrapping_add_signed(row as i64 * row_bytes),
            dims,
        };
        store_row(&to, layout, &values);
    }
}
