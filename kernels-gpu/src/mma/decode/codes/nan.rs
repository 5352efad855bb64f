//! NaN among e4m3 codes that are widened by shifts, which make 480 of it: it is looked for in the codes, and put into scores and
//! outputs, without a branch in the loop over keys. Where codes are converted by `cvt` there is nothing to do.

use cuda_std::warp::{any, ballot, lane_id};

use super::super::step::{Products, WarpState};
use crate::tile::black_box;

/// Lower 7 bits of each code, and its sign.
const MAGNITUDES: u32 = 0x7f7f_7f7f;
const SIGNS: u32 = 0x8080_8080;
/// 1 in each code: carries into the sign of a magnitude that is all ones, which is NaN.
const ONES: u32 = 0x0101_0101;
/// Signs of the lower bytes of each half, and of the upper ones.
const EVEN_SIGNS: u32 = 0x0080_0080;
const ODD_SIGNS: u32 = 0x8000_8000;

/// A word of four codes whose signs say which of them are NaN: those whose other bits are all ones; its other bits mean nothing.
#[inline(always)]
pub fn carries(codes: u32) -> u32 {
    (codes & MAGNITUDES) + ONES
}

/// Makes those of a lane's products NaN, which are of columns from `col` on, whose key has such a code among those that `carried` is of.
///
/// # Safety
/// All 32 lanes reach the same call; lanes `4 n ..` have read key `n` of 8.
#[inline(always)]
pub unsafe fn put_into<const S_COLS: usize>(
    products: &mut Products<S_COLS>,
    col: usize,
    carried: u32,
) {
    let lane = black_box(lane_id());
    let lanes = ballot(carried & SIGNS != 0);
    for j in 0..2 {
        let is_nan = has_nan(lanes, lane % 4 * 2 + j as u32);
        for row in &mut products[0] {
            row[col + j] = if is_nan { f32::NAN } else { row[col + j] };
        }
    }
}

/// Which of a lane's codes of V have been NaN: bit `7 − n` of each byte for vec16 `n` of the eight that a word is for.
pub struct NanCodes {
    carried: [u32; WORDS],
}

/// Vec16s that a word is for, and words for those of the largest head_dim.
const STEPS_OF_WORD: usize = 8;
const WORDS: usize = 2;

impl NanCodes {
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            carried: [0; WORDS],
        }
    }

    /// Takes in words of vec16 `step`.
    #[inline(always)]
    pub fn note(&mut self, step: usize, words: [u32; 2]) {
        let signs = (carries(words[0]) | carries(words[1])) & SIGNS;
        self.carried[step / STEPS_OF_WORD] |= signs >> (step % STEPS_OF_WORD);
    }

    /// Makes the output's components NaN that such codes are of.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn apply<const HALVES: usize, const D_STEPS: usize>(
        &self,
        state: &mut WarpState<HALVES, D_STEPS>,
    ) {
        if !any(self.carried[0] | self.carried[1] != 0) {
            return;
        }
        let lane = black_box(lane_id());
        for step in 0..D_STEPS {
            let carried = self.carried[step / STEPS_OF_WORD] << (step % STEPS_OF_WORD);
            for i in 0..2 {
                let signs = if i == 0 { EVEN_SIGNS } else { ODD_SIGNS };
                // Lanes `4 n ..` have read components `2 n` and `2 n + 1`, and have their outputs.
                let lanes = ballot(carried & signs != 0);
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
