//! 16-bit formats → f32 / f64, and the fast f32 → bf16.

/// f16 bits → f32.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u32) -> f32 {
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    // Scale by 2^112 to rebias; infinities and NaNs overflow the scaled exponent and are restored.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let value = if magnitude >= 0x7c00 {
        0x7f80_0000 | magnitude << 13
    } else {
        scaled.to_bits()
    };
    f32::from_bits(sign | value)
}

/// bf16 bits → f32.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// f32 → bf16 bits, nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
    if x.is_nan() { 0x7fff } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_converts_like_half() {
        for bits in 0..=u16::MAX {
            let (a, b) = (f16_to_f32(bits.into()), half::f16::from_bits(bits).to_f32());
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
            let (a, b) = (
                bf16_to_f32(bits.into()),
                half::bf16::from_bits(bits).to_f32(),
            );
            assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
        }
    }

    #[test]
    fn bf16_rounding_agrees_with_half() {
        for i in 0..1_000_000u32 {
            let x = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            let want = if x.is_nan() {
                0x7fff
            } else {
                half::bf16::from_f32(x).to_bits().into()
            };
            assert_eq!(f32_to_bf16(x), want, "{x:e}");
        }
    }
}
