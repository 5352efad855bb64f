//! The products of a step with K and V of e4m3 codes, which are widened in registers.
//!
//! A register of four codes becomes two pairs of 16-bit numbers: the even codes and the odd ones, by shifts, masks and one
//! multiplication. NaN would become 480: it is looked for in the codes, and put into scores and outputs, without a branch. Fragments are laid out so that these pairs are what an instruction wants:
//!
//! | | a register holds | pairs |
//! |---|---|---|
//! | K, loaded by rows | components `d .. d + 4` of a key | `(d, d + 2)` and `(d + 1, d + 3)`; Q's pairs are permuted alike |
//! | V, by `ldmatrix.trans` of 16-bit units | components `d`, `d + 1` of two keys | `d` of both keys and `d + 1` of both |

use cuda_std::ldmatrix::load_x4_transposed;
use cuda_std::shared;
use cuda_std::warp::{ballot, lane_id};

use super::tile::Tile;
use super::{DecodeKernel, State};
use crate::layout::fragment::ROW_STEP;
use crate::layout::swizzle::{VEC16_BYTES, offset, row_bytes};
use crate::mma::Element;
use crate::mma::gemm::{Operand, multiply};
use crate::tile::black_box;

/// Components that a vec16 holds of K or V.
const VEC16_CODES: u32 = VEC16_BYTES;
/// Components that the four lanes of a key load at once.
const LOAD_CODES: usize = 4 * VEC16_CODES as usize;
/// Instructions that a lane's 16 components are for.
const LOAD_STEPS: usize = LOAD_CODES / 16;

/// Lower 7 bits of each code, and its sign.
const MAGNITUDES: u32 = 0x7f7f_7f7f;
const SIGNS: u32 = 0x8080_8080;
/// 1 in each code: carries into the sign of a magnitude that is all ones, which is NaN.
const ONES: u32 = 0x0101_0101;
/// Signs of a pair of 16-bit numbers, and of codes in their lower bytes.
const PAIR_SIGNS: u32 = 0x8000_8000;
const EVEN_SIGNS: u32 = 0x0080_0080;
/// Fragments of the rows of Q in shared memory at `stage`, with components in the order in which [`scores`] has K's.
///
/// # Safety
/// The rows are visible; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn q_fragments<const K_STEPS: usize>(
    stage: u32,
    head_dim: usize,
) -> [Operand<2>; K_STEPS] {
    let lane = black_box(lane_id());
    let mut steps = [[[0; 2]; 2]; K_STEPS];
    for step in 0..K_STEPS / 2 {
        // Two instructions' worth: 8 components of 16 bits.
        let vec16 = (step / 2 * LOAD_CODES / 8) as u32 + lane % 4 * 2 + (step % 2) as u32;
        for i in 0..2 {
            let row = lane / 4 + i as u32 * ROW_STEP;
            let [a, b, c, d] = shared::load4_bits(stage + offset(head_dim, row, vec16));
            steps[2 * step][i] = evens_and_odds(a, b);
            steps[2 * step + 1][i] = evens_and_odds(c, d);
        }
    }
    steps
}

/// Components 0 and 2, and 1 and 3, of two pairs.
#[inline(always)]
fn evens_and_odds(first: u32, second: u32) -> [u32; 2] {
    [
        first & 0xffff | second << 16,
        first >> 16 | second & 0xffff_0000,
    ]
}

/// Adds Q Kᵀ of the 8 keys from row `row` of a slot on, in two sums.
///
/// # Safety
/// K has arrived and is visible to the warp; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn scores<K: DecodeKernel, const K_STEPS: usize>(
    acc: &mut [[[f32; 2]; 2]; 2],
    q: &[Operand<2>; K_STEPS],
    k_slot: u32,
    row: u32,
) {
    let lane = black_box(lane_id());
    let mut carried = 0;
    for load in 0..K_STEPS / LOAD_STEPS {
        let vec16 = load as u32 * 4 + lane % 4;
        let place = offset(K::CONFIG.row_units(), row + lane / 4, vec16);
        let codes = shared::load4_bits(k_slot + place);
        for step in 0..LOAD_STEPS {
            let q = &q[LOAD_STEPS * load + step];
            let k = widened::<K::Element>(codes[step]);
            multiply::<K::Element, 2, 2>(&mut acc[step % 2], 0, q, k);
            carried |= carries(codes[step]);
        }
    }
    // Lanes `4 n ..` have read key `n`.
    let lanes = ballot(carried & SIGNS != 0);
    for j in 0..2 {
        let is_nan = has_nan(lanes, lane % 4 * 2 + j as u32);
        for i in 0..2 {
            acc[0][i][j] = if is_nan { f32::NAN } else { acc[0][i][j] };
        }
    }
}

/// Which of a lane's codes of V have been NaN, by vec16 of its warp: signs of bytes.
pub struct NanCodes<const O_COLS: usize> {
    carried: [u32; O_COLS],
}

impl<const O_COLS: usize> NanCodes<O_COLS> {
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            carried: [0; O_COLS],
        }
    }

    /// Makes the output's columns NaN that such codes are of.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn apply(&self, state: &mut State<O_COLS>) {
        let lane = black_box(lane_id());
        for tile in 0..O_COLS / 2 {
            let signs = if tile % 2 == 0 {
                EVEN_SIGNS
            } else {
                PAIR_SIGNS
            };
            // Lanes `4 n ..` have read column `n`.
            let lanes = ballot(self.carried[tile / 2] & signs != 0);
            for j in 0..2 {
                let is_nan = has_nan(lanes, lane % 4 * 2 + j as u32);
                for i in 0..2 {
                    let o = &mut state.acc_o[i][2 * tile + j];
                    *o = if is_nan { f32::NAN } else { *o };
                }
            }
        }
    }
}

/// Whether one of the four lanes that have read key or column `number` of 8 is among `lanes`.
#[inline(always)]
fn has_nan(lanes: u32, number: u32) -> bool {
    lanes >> (4 * number) & 0xf != 0
}

/// O += P V of the warp's columns and the 32 keys from `first` on, whose probabilities are `p`; codes that are NaN are noted
/// in `nan`, and count as some number.
///
/// # Safety
/// V is visible; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_output<K: DecodeKernel, const O_COLS: usize>(
    tile: &Tile<'_>,
    v_slot: u32,
    first: u32,
    p: &[Operand<2>; 2],
    state: &mut State<O_COLS>,
    nan: &mut NanCodes<O_COLS>,
) {
    let units = K::CONFIG.row_units();
    let lane = black_box(lane_id());
    let rows = v_slot + first * row_bytes(units);
    // A warp of a head_dim of 64 has every other component of a vec16.
    let is_shared = O_COLS == 2;
    let vec16s = if is_shared { 1 } else { O_COLS / 4 };
    for part in 0..vec16s {
        let vec16 = if is_shared {
            tile.warp() / 2
        } else {
            tile.warp() * vec16s as u32 + part as u32
        };
        let mut codes = load_x4_transposed(rows + offset(units, lane, vec16));
        let mut pairs = [[0; 2]; 4];
        for i in 0..4 {
            if is_shared {
                codes[i] >>= tile.warp() % 2 * 8;
            }
            pairs[i] = widened::<K::Weight>(codes[i]);
            nan.carried[part] |= carries(codes[i]);
        }
        for odd in 0..if is_shared { 1 } else { 2 } {
            let col = 4 * part + 2 * odd;
            for half in 0..2 {
                let v = [pairs[2 * half][odd], pairs[2 * half + 1][odd]];
                multiply::<K::Weight, 2, O_COLS>(&mut state.acc_o, col, &p[half], v);
            }
        }
    }
}

/// The components of o that elements `col` and `col + 1` of a lane with `o_cols` are.
#[inline(always)]
pub fn dims_of(warp: u32, lane: u32, col: u32, o_cols: u32) -> [u32; 2] {
    let pair = lane % 4 * 4;
    let first = if o_cols == 2 {
        warp / 2 * VEC16_CODES + pair + warp % 2
    } else {
        warp * (o_cols * 4) + col / 4 * VEC16_CODES + pair + col / 2 % 2
    };
    [first, first + 2]
}

/// A word of four codes whose signs say which of them are NaN: those whose other bits are all ones; its other bits mean nothing.
#[inline(always)]
fn carries(word: u32) -> u32 {
    (word & MAGNITUDES) + ONES
}

/// A word of four codes as pairs of its even and of its odd ones, NaN as some number: exponent and fraction are moved to their
/// places, and the difference of the biases is multiplied in, exactly, also where a code is subnormal.
#[inline(always)]
fn widened<E: Element>(word: u32) -> [u32; 2] {
    let even = (word << E::CODE_SHIFT) & E::CODE_BITS | (word << 8) & PAIR_SIGNS;
    let odd = (word >> (8 - E::CODE_SHIFT)) & E::CODE_BITS | word & PAIR_SIGNS;
    [even, odd].map(|pair| E::mul_pair(pair, E::CODE_REBIAS))
}
