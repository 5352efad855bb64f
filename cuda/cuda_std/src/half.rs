//! Pairs of 16-bit floats packed in a register, the first in the lower half.
//!
//! PTX ISA, "Data Movement and Conversion Instructions: cvt" (sm_80).

use core::arch::asm;

/// Rounds two f32 to the nearest bf16, ties to even (`cvt.rn.bf16x2.f32`).
#[inline(always)]
pub fn pack_bf16(low: f32, high: f32) -> u32 {
    let packed: u32;
    // SAFETY: pure arithmetic.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack));
    }
    packed
}

/// Rounds two f32 to the nearest f16, ties to even (`cvt.rn.f16x2.f32`).
#[inline(always)]
pub fn pack_f16(low: f32, high: f32) -> u32 {
    let packed: u32;
    // SAFETY: pure arithmetic.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high, in(reg32) low,
            options(pure, nomem, nostack));
    }
    packed
}
