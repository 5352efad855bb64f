//! Matrix elements as f32, and accumulators.
//!
//! **Accumulation order.** Products of f16, bf16 and tf32 elements are exact in f64. A matrix
//! instruction adds its products to the accumulator in f64, in order of k, and rounds once to the
//! accumulator's format (nearest even). Hardware aligns the products of a few k at a time to the
//! largest exponent and truncates, so it differs from this by at most about one part in 2²² of
//! |c| + Σ|a·b|.

use crate::ir::MmaTy;
use crate::num::half::{bf16_to_f32, f16_to_f32};
use crate::num::round::{F16, round};

/// Element `index` of a register that packs two 16-bit values, or holds one tf32.
#[inline(always)]
pub(crate) fn element(ty: MmaTy, register: u32, index: usize) -> f32 {
    match ty {
        MmaTy::F16 => f16_to_f32(register >> (16 * index) & 0xffff),
        MmaTy::Bf16 => bf16_to_f32(register >> (16 * index) & 0xffff),
        // The tensor core reads the upper 19 bits of a tf32 operand.
        MmaTy::Tf32 => f32::from_bits(register & 0xffff_e000),
        MmaTy::F32 => f32::from_bits(register),
    }
}

/// f64 → f32 accumulator bits; NaN is canonical.
#[inline(always)]
pub(crate) fn to_f32(x: f64) -> u32 {
    if x.is_nan() {
        0x7fff_ffff
    } else {
        (x as f32).to_bits()
    }
}

/// Two f64 → packed f16 accumulators.
pub(crate) fn to_f16x2(low: f64, high: f64) -> u32 {
    use crate::ir::Round::Nearest;
    round(low, F16, Nearest) | round(high, F16, Nearest) << 16
}
