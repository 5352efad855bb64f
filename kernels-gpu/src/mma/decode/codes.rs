//! The products of a step with K and V of e4m3 codes, which are widened in registers.
//!
//! A register of four codes becomes two pairs of 16-bit numbers: the even codes and the odd ones, by shifts, masks and one
//! multiplication. NaN would become 480: it is looked for in the codes, and put into scores and outputs, without a branch. Fragments are laid out so that these pairs are what an instruction wants:
//!
//! | | a register holds | pairs |
//! |---|---|---|
//! | K, loaded by rows | components `d .. d + 4` of a key | `(d, d + 2)` and `(d + 1, d + 3)`; Q's pairs are permuted alike |
//! | V, by `ldmatrix.trans` of 16-bit units | components `d`, `d + 1` of two keys | `d` of both keys and `d + 1` of both: the upper and the lower 8 rows of Vᵀ |

use cuda_std::ldmatrix::load_x4_transposed;
use cuda_std::shared;
use cuda_std::warp::{any, ballot, lane_id};

use super::DecodeKernel;
use super::step::{Products, QFragments, WarpState};
use super::tile::Tile;
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::{ROW_STEP, v_row_vec16};
use crate::layout::swizzle::{VEC16_BYTES, offset};
use crate::mma::Element;
use crate::mma::gemm::{LaneAddress, Operand, multiply};
use crate::tile::black_box;

const S_COLS: usize = DecodeConfig::SCORE_COLS;
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
pub unsafe fn q_fragments<const HALVES: usize, const D_STEPS: usize>(
    stage: u32,
    head_dim: usize,
) -> [Operand<HALVES>; D_STEPS] {
    let lane = black_box(lane_id());
    let mut steps = [[[0; 2]; HALVES]; D_STEPS];
    for step in 0..D_STEPS / 2 {
        // Two instructions' worth: 8 components of 16 bits.
        let vec16 = (step / 2 * LOAD_CODES / 8) as u32 + lane % 4 * 2 + (step % 2) as u32;
        for i in 0..HALVES {
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

/// Adds Q Kᵀ of the 8 keys from row `row` of a slot on, number `keys` of the warp's, to two sums; `first` is the operand of Q that the
/// slot's part begins with.
///
/// # Safety
/// K has arrived and is visible to the warp; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_products<K: DecodeKernel, const HALVES: usize, const D_STEPS: usize>(
    products: &mut Products,
    q: &QFragments<HALVES, D_STEPS>,
    (first, slot): (usize, u32),
    (keys, row): (usize, u32),
) {
    let col = 2 * keys;
    let lane = black_box(lane_id());
    let mut carried = 0;
    for load in 0..K::CONFIG.part_dims() / LOAD_CODES {
        let vec16 = load as u32 * 4 + lane % 4;
        let place = offset(K::CONFIG.row_units(), row + lane / 4, vec16);
        let codes = shared::load4_bits(slot + place);
        for step in 0..LOAD_STEPS {
            let q = q.operand(first + LOAD_STEPS * load + step);
            let k = widened::<K::Element>(codes[step]);
            multiply::<K::Element, 2, S_COLS>(&mut products[step % 2], col, &q, k);
            carried |= carries(codes[step]);
        }
    }
    // Lanes `4 n ..` have read key `n`.
    let lanes = ballot(carried & SIGNS != 0);
    for j in 0..2 {
        let is_nan = has_nan(lanes, lane % 4 * 2 + j as u32);
        for i in 0..HALVES {
            let product = &mut products[0][i][col + j];
            *product = if is_nan { f32::NAN } else { *product };
        }
    }
}

/// Which of a lane's codes of V have been NaN, by vec16: signs of bytes.
pub struct NanCodes<const D_STEPS: usize> {
    carried: [u32; D_STEPS],
}

impl<const D_STEPS: usize> NanCodes<D_STEPS> {
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            carried: [0; D_STEPS],
        }
    }

    /// Makes the output's components NaN that such codes are of.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn apply<const HALVES: usize>(&self, state: &mut WarpState<HALVES, D_STEPS>) {
        let mut carried = 0;
        for step in 0..D_STEPS {
            carried |= self.carried[step];
        }
        if !any(carried & SIGNS != 0) {
            return;
        }
        let lane = black_box(lane_id());
        for step in 0..D_STEPS {
            for i in 0..2 {
                let signs = if i == 0 { EVEN_SIGNS } else { PAIR_SIGNS };
                // Lanes `4 n ..` have read components `2 n` and `2 n + 1`, and have their outputs.
                let lanes = ballot(self.carried[step] & signs != 0);
                let is_nan = has_nan(lanes, lane / 4);
                for half in 0..HALVES {
                    for o in &mut state.acc_o[half][step][i] {
                        *o = if is_nan { f32::NAN } else { *o };
                    }
                }
            }
        }
    }
}

/// Whether one of the four lanes that have read key or unit `number` of 8 is among `lanes`.
#[inline(always)]
fn has_nan(lanes: u32, number: u32) -> bool {
    lanes >> (4 * number) & 0xf != 0
}

/// Oᵀ += Vᵀ Pᵀ of the warp's keys and `steps` vec16s of a slot, the first of which is number `first` of the output; codes that are NaN
/// are noted in `nan`, and count as some number.
///
/// # Safety
/// V has arrived and is visible to the warp; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_output<K: DecodeKernel, const HALVES: usize, const D_STEPS: usize>(
    tile: &Tile<'_>,
    slot: u32,
    (first, steps): (usize, usize),
    p: &[[u32; 2]; HALVES],
    state: &mut WarpState<HALVES, D_STEPS>,
    nan: &mut NanCodes<D_STEPS>,
) {
    let (row, vec16) = v_row_vec16(black_box(lane_id()));
    let v = LaneAddress::new(slot, K::CONFIG.row_units(), (tile.warp_key() + row, vec16));
    for pair in 0..steps / 2 {
        let codes = load_x4_transposed(v.at(0, pair));
        for of_pair in 0..2 {
            let step = first + 2 * pair + of_pair;
            let [low, high] = [codes[2 * of_pair], codes[2 * of_pair + 1]];
            nan.carried[step] |= carries(low) | carries(high);
            let (low, high) = (widened::<K::Weight>(low), widened::<K::Weight>(high));
            let v = [[low[0], high[0]], [low[1], high[1]]];
            for half in 0..HALVES {
                let acc_o = &mut state.acc_o[half][step];
                multiply::<K::Weight, 2, 2>(acc_o, 0, &v, p[half]);
            }
        }
    }
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
