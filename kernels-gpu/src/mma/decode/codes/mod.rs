//! The products of a step with K and V of e4m3 codes, which become pairs of f16 in registers.
//!
//! f16 holds every code, but neither every bf16 query nor every scale of a value. So rows of Q are taken times powers of two, and a
//! row's reference is the largest of its scores *with* its value's exponent: probabilities times scales are then at most 2¹⁵.
//! Fragments are laid out so that pairs are what an instruction wants:
//!
//! | | a register holds | pairs |
//! |---|---|---|
//! | K, loaded by rows | components `d .. d + 4` of a key | two components each; Q's pairs are permuted alike |
//! | V, by `ldmatrix.trans` of 16-bit units | components `d`, `d + 1` of two keys | `d` of both keys and `d + 1` of both: the upper and the lower 8 rows of Vᵀ |
//!
//! | file | holds |
//! |---|---|
//! | `widen.rs` | codes to pairs |
//! | `nan.rs` | NaN where `widen.rs` loses it |
//! | `query.rs` | rows of Q in f16 |
//! | `scales.rs` | scales of keys and values |

mod nan;
mod query;
mod scales;
mod widen;

use cuda_std::half::F16;
use cuda_std::ldmatrix::load_x4_transposed;
use cuda_std::shared;
use cuda_std::warp::lane_id;

use super::DecodeKernel;
use super::step::{Products, QFragments, WarpState, Weights};
use super::tile::Tile;
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::v_row_vec16;
use crate::layout::swizzle::{VEC16_BYTES, offset, row_bytes};
use crate::mma::gemm::{LaneAddress, multiply};
use crate::tile::black_box;

pub use nan::NanCodes;
pub use query::q_fragments;
pub use scales::{KeyScales, Scales, of_head};

/// Components that a vec16 holds of K or V.
const VEC16_CODES: u32 = VEC16_BYTES;
/// Components that the four lanes of a key load at once.
const LOAD_CODES: usize = 4 * VEC16_CODES as usize;
/// Instructions that a lane's 16 components are for.
const LOAD_STEPS: usize = LOAD_CODES / 16;

/// Adds Q Kᵀ of the 8 keys from row `row` of a slot on, number `keys` of the warp's, to two sums; `first` is the operand of Q that the
/// slot's part begins with.
///
/// # Safety
/// K has arrived and is visible to the warp; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_products<
    K: DecodeKernel,
    const HALVES: usize,
    const D_STEPS: usize,
    const S_COLS: usize,
>(
    products: &mut Products<S_COLS>,
    q: &QFragments<HALVES, D_STEPS>,
    (first, slot): (usize, u32),
    (keys, row): (usize, u32),
) {
    let has_cvt = K::CONFIG.has_cvt;
    let col = 2 * keys;
    let lane = black_box(lane_id());
    let mut carried = 0;
    for load in 0..K::CONFIG.part_dims() / LOAD_CODES {
        let vec16 = load as u32 * 4 + lane % 4;
        let place = offset(K::CONFIG.row_units(), row + lane / 4, vec16);
        let codes = shared::load4_bits(slot + place);
        for step in 0..LOAD_STEPS {
            let q = q.operand(first + LOAD_STEPS * load + step);
            let k = widen::key(has_cvt, codes[step]);
            multiply::<F16, 2, S_COLS>(&mut products[step % 2], col, &q, k);
            carried |= nan::carries(codes[step]);
        }
    }
    if !has_cvt {
        nan::put_into(products, col, carried);
    }
}

/// Oᵀ += Vᵀ Pᵀ of the warp's keys and `steps` vec16s of a slot, the first of which is number `first` of the output; without `cvt`
/// codes that are NaN are noted in `nan`, and count as some number.
///
/// # Safety
/// V has arrived and is visible to the warp; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn add_output<K: DecodeKernel, const HALVES: usize, const D_STEPS: usize>(
    tile: &Tile<'_>,
    slot: u32,
    (first, steps): (usize, usize),
    p: &Weights<HALVES>,
    state: &mut WarpState<HALVES, D_STEPS>,
    nan: &mut NanCodes,
) {
    let has_cvt = K::CONFIG.has_cvt;
    let (row, vec16) = v_row_vec16(black_box(lane_id()));
    let units = K::CONFIG.row_units();
    let v = LaneAddress::new(slot, units, (tile.warp_key() + row, vec16));
    for pair in 0..steps / 2 {
        for keys in 0..K::CONFIG.v_steps() {
            let further = keys as u32 * DecodeConfig::V_KEYS * row_bytes(units);
            let codes = load_x4_transposed(v.at(0, pair) + further);
            for of_pair in 0..2 {
                let step = first + 2 * pair + of_pair;
                let words = [codes[2 * of_pair], codes[2 * of_pair + 1]];
                if !has_cvt {
                    nan.note(step, words);
                }
                let [low, high] = words.map(|word| widen::values(has_cvt, word));
                let v = [[low[0], high[0]], [low[1], high[1]]];
                for half in 0..HALVES {
                    let acc_o = &mut state.acc_o[half][step];
                    multiply::<F16, 2, 2>(acc_o, 0, &v, p[keys][half]);
                }
            }
        }
    }
}
