//! The two matrix products of a key block, on fragments fed by `ldmatrix`.
//!
//! A lane keeps its part of a score or output tile by rows, `[row][column]`: the warp's rows `lane / 4 + 8i`, and of
//! each the columns [`row_column`](crate::layout::fragment::row_column).

use core::marker::PhantomData;

use cuda_std::ldmatrix::{load_x4, load_x4_transposed};

use super::MmaKernel;
use super::arithmetic::Arithmetic;
use super::element::Element;
use crate::layout::fragment::{TILE_K, a_row_vec16, k_row_vec16, v_row_vec16};
use crate::layout::swizzle::{VEC16_BYTES, offset, row_bytes, window_bytes};
use crate::tile::black_box;

/// Score or output columns that one `ldmatrix.x4` of K or V is for, as elements of a lane's row.
pub const LOAD_COLS: usize = 4;

/// The addresses a lane names when its warp loads 16 rows × 2 vec16s of a shared-memory tile.
#[derive(Clone, Copy)]
pub struct LaneAddress {
    /// Of row block 0, vec16 pair 0.
    base: u32,
    /// Bytes within which the swizzle moves vec16s; they are aligned to it.
    window: u32,
    /// Bytes of 16 rows.
    block_bytes: u32,
}

impl LaneAddress {
    /// The lane names vec16 `vec16` of row `row`, for row block 0 and vec16 pair 0. Pairs that are named later must differ from
    /// the first in bits that are 0 in it.
    #[inline(always)]
    pub fn new(tile: u32, columns: usize, (row, vec16): (u32, u32)) -> Self {
        Self {
            base: tile + offset(columns, row, vec16),
            window: window_bytes(columns),
            block_bytes: TILE_K as u32 * row_bytes(columns),
        }
    }

    /// For Q, as operand A.
    #[inline(always)]
    pub fn q(tile: u32, columns: usize, lane: u32) -> Self {
        Self::new(tile, columns, a_row_vec16(lane))
    }

    /// For K, as operand B.
    #[inline(always)]
    pub fn k(tile: u32, columns: usize, lane: u32) -> Self {
        Self::new(tile, columns, k_row_vec16(lane))
    }

    /// For V, as operand B.
    #[inline(always)]
    pub fn v(tile: u32, columns: usize, lane: u32) -> Self {
        Self::new(tile, columns, v_row_vec16(lane))
    }

    /// Rows `16·block ..`, vec16s `2·step ..`: an xor that few steps differ in, and a constant.
    #[inline(always)]
    pub fn at(&self, block: usize, step: usize) -> u32 {
        let step_bytes = 2 * step as u32 * VEC16_BYTES;
        // The swizzle's xor splits: 2·step has no bit in common with the lane's vec16, 0 or 1.
        let moved = self.base ^ (step_bytes % self.window);
        moved + step_bytes / self.window * self.window + block as u32 * self.block_bytes
    }

    /// The same, such that what is computed from it is computed again.
    #[inline(always)]
    pub fn renewed(self) -> Self {
        Self {
            base: black_box(self.base),
            ..self
        }
    }

    /// The same place `bytes` further in its vec16.
    #[inline(always)]
    pub fn plus(self, bytes: u32) -> Self {
        Self {
            base: self.base + bytes,
            ..self
        }
    }

    /// Of rows `8·block ..`, the lane's row, which is even, and the one after it; in half `half` of the windows of eight vec16s.
    #[inline(always)]
    pub fn rows_of_eight(&self, block: usize, half: usize) -> [u32; 2] {
        let half_bytes = self.window / 2;
        let moved = self.base ^ (half as u32 % 2 * half_bytes);
        let at = half as u32 / 2 * self.window + block as u32 * (self.block_bytes / 2);
        // The next row's mask differs in its lowest bit.
        let next = (moved ^ VEC16_BYTES) + self.block_bytes / TILE_K as u32;
        [moved + at, next + at]
    }
}

/// Registers of operand A by rows: of row `i`, the pair in the left and the pair in the right half of the tile.
pub type Operand<const ROWS: usize> = [Registers; ROWS];

/// Two registers: of a row of operand A, or a lane's part of operand B.
pub type Registers = [u32; 2];

/// Fragments of Q: kept in registers, or loaded again for each block of keys.
pub struct QFragments<K, const ROWS: usize, const K_STEPS: usize> {
    registers: [Operand<ROWS>; K_STEPS],
    kernel: PhantomData<K>,
}

impl<K: MmaKernel, const ROWS: usize, const K_STEPS: usize> QFragments<K, ROWS, K_STEPS> {
    /// Nothing is read yet.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            registers: [[[0; 2]; ROWS]; K_STEPS],
            kernel: PhantomData,
        }
    }

    /// Loads the registers, if that is where the fragments are kept.
    ///
    /// # Safety
    /// `address` is that of the warp's rows, which are in shared memory and visible to the warp; all 32 lanes must reach
    /// the same call.
    #[inline(always)]
    pub unsafe fn fill(&mut self, address: LaneAddress) {
        if K::CONFIG.q_in_registers {
            for step in 0..K_STEPS {
                self.registers[step] = Self::load(address, step);
            }
        }
    }

    /// # Safety
    /// As [`QFragments::fill`].
    #[inline(always)]
    unsafe fn load(address: LaneAddress, step: usize) -> Operand<ROWS> {
        let mut operand = [[0; 2]; ROWS];
        let address = address.renewed();
        for tile in 0..ROWS / 2 {
            let a = load_x4(address.at(tile, step));
            operand[2 * tile] = [a[0], a[2]];
            operand[2 * tile + 1] = [a[1], a[3]];
        }
        operand
    }

    /// # Safety
    /// As [`QFragments::fill`].
    #[inline(always)]
    unsafe fn get(&self, address: LaneAddress, step: usize) -> Operand<ROWS> {
        if K::CONFIG.q_in_registers {
            self.registers[step]
        } else {
            Self::load(address, step)
        }
    }
}

/// Adds A·B to the accumulator tiles of 8 columns that start at element `col` of a lane's rows.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn multiply<E: Element, const ROWS: usize, const COLS: usize>(
    acc: &mut [[f32; COLS]; ROWS],
    col: usize,
    a: &Operand<ROWS>,
    b: Registers,
) {
    for upper in 0..ROWS / 2 {
        let (upper, lower) = (2 * upper, 2 * upper + 1);
        let c = [
            acc[upper][col],
            acc[upper][col + 1],
            acc[lower][col],
            acc[lower][col + 1],
        ];
        let a = [a[upper][0], a[lower][0], a[upper][1], a[lower][1]];
        let c = E::multiply_add(a, b, c);
        acc[upper][col] = c[0];
        acc[upper][col + 1] = c[1];
        acc[lower][col] = c[2];
        acc[lower][col + 1] = c[3];
    }
}

/// Q Kᵀ.
///
/// # Safety
/// Q and K are in shared memory and visible to the warp; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn qk<K: MmaKernel, const ROWS: usize, const COLS: usize, const K_STEPS: usize>(
    q: &QFragments<K, ROWS, K_STEPS>,
    q_address: LaneAddress,
    k: LaneAddress,
) -> [[f32; COLS]; ROWS] {
    let mut acc_s = [[0.0; COLS]; ROWS];
    let chain = if K::Element::CHAIN < K_STEPS {
        K::Element::CHAIN
    } else {
        K_STEPS
    };
    for begin in (0..K_STEPS).step_by(chain) {
        let mut sums = [[0.0; COLS]; ROWS];
        for step in begin..begin + chain {
            let q_frag = K::Element::fragment(&q.get(q_address, step));
            for keys in 0..COLS / LOAD_COLS {
                let b = load_x4(k.at(keys, step));
                K::Element::multiply(&mut sums, keys * LOAD_COLS, &q_frag, b);
            }
        }
        if begin == 0 {
            acc_s = sums;
        } else {
            for (sum, more) in acc_s.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                *sum += more;
            }
        }
    }
    acc_s
}

/// Probabilities of 16 keys, number `step` of the block, as operand A: the layout of accumulators is the one it needs.
#[inline(always)]
fn p_operand<E: Element, const ROWS: usize, const COLS: usize>(
    p: &[[f32; COLS]; ROWS],
    step: usize,
) -> Operand<ROWS> {
    let col = step * LOAD_COLS;
    let mut operand = [[0; 2]; ROWS];
    for i in 0..ROWS {
        operand[i] = [
            E::cvt_pair(p[i][col], p[i][col + 1]),
            E::cvt_pair(p[i][col + 2], p[i][col + 3]),
        ];
    }
    operand
}

/// O += P V, where P is finished while it is being multiplied.
///
/// `finish` gets every element of P once, with the numbers of its row and column: those of the first 16 keys at the start, those of
/// the next 16 between the instructions that multiply the first, and so on, so that its work hides under the tensor
/// core's.
///
/// # Safety
/// V is in shared memory and visible to the warp; all 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn pv<E: Element, const ROWS: usize, const S_COLS: usize, const O_COLS: usize>(
    acc_o: &mut [[f32; O_COLS]; ROWS],
    p: &mut [[f32; S_COLS]; ROWS],
    v: LaneAddress,
    mut finish: impl FnMut(&mut f32, usize, usize),
) {
    let steps = S_COLS / LOAD_COLS;
    let parts = O_COLS / LOAD_COLS;
    for i in 0..ROWS {
        for j in 0..LOAD_COLS {
            finish(&mut p[i][j], i, j);
        }
    }
    for step in 0..steps {
        let p_frag = p_operand::<E, ROWS, S_COLS>(p, step);
        for part in 0..parts {
            let col = part * LOAD_COLS;
            let [b0, b1, b2, b3] = load_x4_transposed(v.at(step, part));
            multiply::<E, ROWS, O_COLS>(acc_o, col, &p_frag, [b0, b1]);
            multiply::<E, ROWS, O_COLS>(acc_o, col + 2, &p_frag, [b2, b3]);
            if step + 1 < steps {
                let elements = ROWS * LOAD_COLS;
                for index in part * elements / parts..(part + 1) * elements / parts {
                    let (i, j) = (index % ROWS, index / ROWS);
                    let j = (step + 1) * LOAD_COLS + j;
                    finish(&mut p[i][j], i, j);
                }
            }
        }
    }
}
