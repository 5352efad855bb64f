//! Pairs of 16-bit floats packed in a register, the first in the lower half.
//!
//! PTX ISA, "Data Movement and Conversion Instructions: cvt" (sm_80).

use core::arch::asm;

/// The sign bit of a 16-bit element.
pub const SIGN: u32 = 0x8000;

/// A 16-bit element type of a matrix.
pub trait Half: Copy {
    /// Bits of +∞; larger magnitudes are NaN.
    const INFINITY: u32;
    /// Exponent of the largest number, where f32 has larger ones: what is finite in f32 may then round to ∞.
    const LARGEST_EXPONENT: Option<f32>;

    /// Rounds two numbers to nearest even; `low` takes the low half.
    ///
    /// # PTX
    /// `cvt.rn.*x2.f32`.
    fn cvt_pair(low: f32, high: f32) -> u32;

    /// The two numbers of a pair, low half first.
    fn widen_pair(pair: u32) -> [f32; 2];
}

/// bfloat16: 8 exponent bits, 7 fraction bits.
#[derive(Clone, Copy)]
pub struct Bf16;

/// IEEE binary16: 5 exponent bits, 10 fraction bits.
#[derive(Clone, Copy)]
pub struct F16;

impl Half for Bf16 {
    const INFINITY: u32 = 0x7f80;
    const LARGEST_EXPONENT: Option<f32> = None;

    #[inline(always)]
    fn widen_pair(pair: u32) -> [f32; 2] {
        [
            f32::from_bits(pair << 16),
            f32::from_bits(pair & 0xffff_0000),
        ]
    }

    #[inline(always)]
    fn cvt_pair(low: f32, high: f32) -> u32 {
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
    const INFINITY: u32 = 0x7c00;
    const LARGEST_EXPONENT: Option<f32> = Some(15.0);

    #[inline(always)]
    fn widen_pair(pair: u32) -> [f32; 2] {
        let [low, high]: [f32; 2];
        // SAFETY: pure arithmetic.
        unsafe {
            asm!("{{ .reg .b16 low, high; mov.b32 {{low, high}}, {}; cvt.f32.f16 {}, low; cvt.f32.f16 {}, high; }}",
                in(reg32) pair, out(reg32) low, out(reg32) high, options(pure, nomem, nostack));
        }
        [low, high]
    }

    #[inline(always)]
    fn cvt_pair(low: f32, high: f32) -> u32 {
        let packed: u32;
        // SAFETY: pure arithmetic.
        unsafe {
            asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) packed, in(reg32) high, in(reg32) low,
                options(pure, nomem, nostack));
        }
        packed
    }
}

impl F16 {
    /// The products of two pairs, number by number, rounded to nearest even; subnormal numbers stay what they are.
    ///
    /// # PTX
    /// `mul.rn.f16x2`.
    #[inline(always)]
    pub fn mul_pair(a: u32, b: u32) -> u32 {
        let product: u32;
        // SAFETY: pure arithmetic.
        unsafe {
            asm!("mul.rn.f16x2 {}, {}, {};", out(reg32) product, in(reg32) a, in(reg32) b,
                options(pure, nomem, nostack));
        }
        product
    }

    /// Four codes of e4m3, lowest byte first, as two pairs; NaN becomes NaN. For GPUs of compute capability 8.9 or newer.
    ///
    /// # PTX
    /// `cvt.rn.f16x2.e4m3x2` (sm_89).
    #[inline(always)]
    pub fn pairs_of_e4m3(codes: u32) -> [u32; 2] {
        let [low, high]: [u32; 2];
        // SAFETY: pure arithmetic.
        unsafe {
            asm!("{{ .reg .b16 low, high; mov.b32 {{low, high}}, {}; cvt.rn.f16x2.e4m3x2 {}, low; cvt.rn.f16x2.e4m3x2 {}, high; }}",
                in(reg32) codes, out(reg32) low, out(reg32) high, options(pure, nomem, nostack));
        }
        [low, high]
    }
}
