//! 16-bit formats → f32, and the fast way back to the nearest.

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

/// f32 → f16 bits, nearest even; NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u32 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let sign = x.to_bits() >> 16 & 0x8000;
    // The exponent is less by 112 in f16; a carry moves into it by itself.
    let rounded = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1));
    let normal = rounded.wrapping_sub(112 << 23) >> 13;
    // A unit of 0.5's last place is f16's smallest number: the sum rounds to a whole number of them.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits();
    let value = if magnitude < 0x3880_0000 {
        small
    } else if magnitude < 0x4780_0000 {
        normal
    } else {
        0x7c00
    };
    if x.is_nan() { 0x7fff } else { sign | value }
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
    fn rounding_agrees_with_half() {
        let borders = [
            0x3300_0000,
            0x3300_0001,
            0x387f_efff,
            0x387f_f000,
            0x3880_0000,
            0x477f_efff,
            0x477f_f000,
            0x4780_0000,
            0x7f80_0000,
        ];
        let spread = (0..1_000_000u32).map(|i| i.wrapping_mul(0x9e37_79b9));
        for bits in spread.chain(borders) {
            let x = f32::from_bits(bits);
            let nan_or = |bits: u16| if x.is_nan() { 0x7fff } else { bits.into() };
            assert_eq!(
                f32_to_bf16(x),
                nan_or(half::bf16::from_f32(x).to_bits()),
                "{x:e}"
            );
            assert_eq!(
                f32_to_f16(x),
                nan_or(half::f16::from_f32(x).to_bits()),
                "{x:e}"
            );
        }
    }
}
