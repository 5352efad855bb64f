//! The products of a block, on operands in shared memory.

use cuda_std::ldmatrix::{load_x4, load_x4_transposed};
use cuda_std::shared;

use super::super::element::Element;
use super::super::gemm::{LOAD_COLS, LaneAddress, Operand, multiply};
use crate::layout::fragment::{ROW_STEP, TILE_N};
use crate::layout::swizzle::{VEC16_BYTES, offset, row_bytes, window_bytes};
use crate::units::HALF_BYTES;

/// Rows of a tile as operand A, 16 columns from `16 · step` on.
///
/// # Safety
/// The tile is in shared memory and visible to the warp; all 32 lanes must reach the same call.
#[inline(always)]
unsafe fn rows<const ROWS: usize>(tile: LaneAddress, step: usize) -> Operand<ROWS> {
    let mut operand = [[0; 2]; ROWS];
    for i in 0..ROWS / 2 {
        let a = load_x4(tile.at(i, step));
        operand[2 * i] = [a[0], a[2]];
        operand[2 * i + 1] = [a[1], a[3]];
    }
    operand
}

/// Columns of a tile as the rows of operand A, and its rows from `16 · step` on as A's columns.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn columns<const ROWS: usize>(tile: LaneAddress, step: usize) -> Operand<ROWS> {
    let mut operand = [[0; 2]; ROWS];
    for i in 0..ROWS / 2 {
        let a = load_x4_transposed(tile.at(step, i));
        operand[2 * i] = [a[0], a[2]];
        operand[2 * i + 1] = [a[1], a[3]];
    }
    operand
}

/// A Bᵀ over `steps · 16` columns of both.
///
/// # Safety
/// Both are in shared memory and visible to the warp; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn product_of_rows<E: Element, const ROWS: usize, const COLS: usize>(
    a: LaneAddress,
    b: LaneAddress,
    steps: usize,
) -> [[f32; COLS]; ROWS] {
    let mut acc = [[0.0; COLS]; ROWS];
    for step in 0..steps {
        let a_frag = rows::<ROWS>(a, step);
        for part in 0..COLS / LOAD_COLS {
            let col = part * LOAD_COLS;
            let [b0, b1, b2, b3] = load_x4(b.at(part, step));
            multiply::<E, ROWS, COLS>(&mut acc, col, &a_frag, [b0, b1]);
            multiply::<E, ROWS, COLS>(&mut acc, col + 2, &a_frag, [b2, b3]);
        }
    }
    acc
}

/// `acc += A B` over `steps · 16` columns of A and rows of B.
///
/// # Safety
/// As [`product_of_rows`].
#[inline(always)]
pub unsafe fn add_product<E: Element, const ROWS: usize, const COLS: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    a: LaneAddress,
    b: LaneAddress,
    steps: usize,
) {
    for step in 0..steps {
        let a_frag = rows::<ROWS>(a, step);
        multiply_rows::<E, ROWS, COLS>(acc, &a_frag, b, step);
    }
}

/// `acc += A B`, where `pair` gives A's elements `[i][j]` and `[i][j + 1]` as the lane has them of an accumulator, rounded: its layout is
/// the one that operand A needs.
///
/// # Safety
/// B is in shared memory and visible to the warp; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn add_accumulators<E: Element, const ROWS: usize, const COLS: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    pair: impl Fn(usize, usize) -> u32,
    b: LaneAddress,
    steps: usize,
) {
    for step in 0..steps {
        let mut a_frag = [[0; 2]; ROWS];
        for i in 0..ROWS {
            a_frag[i] = [step * LOAD_COLS, step * LOAD_COLS + 2].map(|j| pair(i, j));
        }
        multiply_rows::<E, ROWS, COLS>(acc, &a_frag, b, step);
    }
}

/// `Aᵀ B` over `steps · 16` rows of both.
///
/// # Safety
/// As [`product_of_rows`].
#[inline(always)]
pub unsafe fn product_of_columns<E: Element, const ROWS: usize, const COLS: usize>(
    a: LaneAddress,
    b: LaneAddress,
    steps: usize,
) -> [[f32; COLS]; ROWS] {
    let mut acc = [[0.0; COLS]; ROWS];
    for step in 0..steps {
        let a_frag = columns::<ROWS>(a, step);
        multiply_rows::<E, ROWS, COLS>(&mut acc, &a_frag, b, step);
    }
    acc
}

/// # Safety
/// As [`product_of_rows`].
#[inline(always)]
unsafe fn multiply_rows<E: Element, const ROWS: usize, const COLS: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    a_frag: &Operand<ROWS>,
    b: LaneAddress,
    step: usize,
) {
    for part in 0..COLS / LOAD_COLS {
        let col = part * LOAD_COLS;
        let [b0, b1, b2, b3] = load_x4_transposed(b.at(step, part));
        multiply::<E, ROWS, COLS>(acc, col, a_frag, [b0, b1]);
        multiply::<E, ROWS, COLS>(acc, col + 2, a_frag, [b2, b3]);
    }
}

/// Stores a warp's part of a result, which begins at row and column `origin`, to the tile at `tile`, whose rows have `cols` columns.
/// `packed` gives elements `[i][j]` and `[i][j + 1]`, rounded.
///
/// # Safety
/// The tile has room, and nobody else accesses the warp's part of it until a barrier is passed.
#[inline(always)]
pub unsafe fn store_tile<const ROWS: usize, const COLS: usize>(
    packed: impl Fn(usize, usize) -> u32,
    tile: u32,
    cols: usize,
    origin: (u32, u32),
    lane: u32,
) {
    let (row, vec16) = (origin.0 + lane / 4, origin.1 / TILE_N as u32);
    let base = tile + offset(cols, row, vec16) + lane % 4 * 2 * HALF_BYTES;
    let window = window_bytes(cols);
    for i in 0..ROWS {
        let row_address = i as u32 * ROW_STEP * row_bytes(cols);
        for pair in 0..COLS / 2 {
            let bytes = pair as u32 * VEC16_BYTES;
            // As in `LaneAddress::at`: the warp's first vec16 has no bit in common with the pair's.
            let moved = (base ^ (bytes % window)) + bytes / window * window;
            shared::store_bits(moved + row_address, packed(i, 2 * pair));
        }
    }
}
