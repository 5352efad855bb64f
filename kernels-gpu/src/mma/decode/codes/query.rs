//! Rows of Q in f16, for products with codes.

use cuda_std::half::{F16, Half};
use cuda_std::shared;
use cuda_std::warp::{lane_id, reduce_max};

use super::super::DecodeKernel;
use super::{LOAD_CODES, widen};
use crate::layout::fragment::ROW_STEP;
use crate::layout::swizzle::offset;
use crate::math::max;
use crate::mma::gemm::Operand;
use crate::tile::black_box;
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT};

/// Exponent of a row's largest element in f16: elements down to 2⁻²⁹ of it keep all bits, and what becomes 0 is below 2⁻³⁸ of it.
const LARGEST_EXPONENT: u32 = 14;
/// The least exponent field of a row's largest element that a normal power of two brings there and back.
const LEAST_FIELD: u32 = LARGEST_EXPONENT + 1;

/// Fragments of the rows of Q in shared memory at `stage`, with components in the order in which [`widen::key`] has K's, and what
/// products with them are to be multiplied with: rows of this lane's scores, each times a power of two unless Q is f16 already.
///
/// # Safety
/// The rows are visible; all 32 lanes reach the same call.
#[inline(always)]
pub unsafe fn q_fragments<K: DecodeKernel, const HALVES: usize, const D_STEPS: usize>(
    stage: u32,
) -> ([Operand<HALVES>; D_STEPS], [f32; HALVES]) {
    let config = K::CONFIG;
    let mut steps = [[[0; 2]; HALVES]; D_STEPS];
    let mut factors = [1.0; HALVES];
    for i in 0..HALVES {
        let mut to_f16 = 1.0;
        if needs_powers::<K>() {
            [to_f16, factors[i]] = powers::<K>(stage, i);
        }
        for step in 0..D_STEPS / 2 {
            let mut pairs = eight::<K>(stage, i, step);
            if needs_powers::<K>() {
                for pair in &mut pairs {
                    let [low, high] = K::Element::widen_pair(*pair);
                    *pair = F16::cvt_pair(low * to_f16, high * to_f16);
                }
            }
            let [a, b, c, d] = pairs;
            steps[2 * step][i] = widen::query(config.has_cvt, [a, b]);
            steps[2 * step + 1][i] = widen::query(config.has_cvt, [c, d]);
        }
    }
    (steps, factors)
}

/// Whether elements of Q may be too large or too small for f16.
const fn needs_powers<K: DecodeKernel>() -> bool {
    K::Element::LARGEST_EXPONENT.is_none()
}

/// Eight of a lane's components of its row of half `i`, which are for instructions `2 * step` and `2 * step + 1`.
///
/// # Safety
/// The rows are visible.
#[inline(always)]
unsafe fn eight<K: DecodeKernel>(stage: u32, i: usize, step: usize) -> [u32; 4] {
    let lane = black_box(lane_id());
    let row = lane / 4 + i as u32 * ROW_STEP;
    let vec16 = (step / 2 * LOAD_CODES / 8) as u32 + lane % 4 * 2 + (step % 2) as u32;
    shared::load4_bits(stage + offset(K::CONFIG.head_dim, row, vec16))
}

/// The power of two that brings the largest element of a row, which four lanes have, to [`LARGEST_EXPONENT`], and that which brings
/// it back.
///
/// # Safety
/// As [`q_fragments`].
#[inline(always)]
unsafe fn powers<K: DecodeKernel>(stage: u32, i: usize) -> [f32; 2] {
    let mut largest = 0.0;
    for step in 0..K::CONFIG.head_dim / 32 {
        for pair in eight::<K>(stage, i, step) {
            let [low, high] = K::Element::widen_pair(pair);
            largest = max(max(largest, low.abs()), high.abs());
        }
    }
    let field = (reduce_max::<4>(largest).to_bits() >> EXPONENT_SHIFT).max(LEAST_FIELD);
    let fields = [
        2 * EXPONENT_BIAS + LARGEST_EXPONENT - field,
        field - LARGEST_EXPONENT,
    ];
    fields.map(|field| f32::from_bits(field << EXPONENT_SHIFT))
}
