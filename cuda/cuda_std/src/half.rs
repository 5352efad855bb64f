//! 16-bit floating-point types and packing two of them into a register.

use core::arch::asm;

/// A 16-bit element type of a matrix.
pub trait Half: Copy {
    /// Rounds two numbers to nearest even; `low` takes the low half (`cvt.rn.bf16x2.f32`, `cvt.rn.f16x2.f32`).
    fn pack(low: f32, high: f32) -> u32;
}

/// bfloat16: 8 exponent bits, 7 fraction bits.
#[derive(Clone, Copy)]
pub struct Bf16;

/// IEEE binary16: 5 exponent bits, 10 fraction bits.
#[derive(Clone, Copy)]
pub struct F16;

impl Half for Bf16 {
    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        let packed: u32;
        // SAFETY: pure arithmetic.
        unsafe {
            asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high, in(reg32) low,
                options(pure, nomem, nostack));
        }
        packed
    }
}

impl Half for F16 {
    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        let packed: u32;
        // SAFETY: pure arithmetic.
        unsafe {
            asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high, in(reg32) low,
                options(pure, nomem, nostack));
        }
        packed
    }
}
