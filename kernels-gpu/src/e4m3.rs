//! The 8-bit float e4m3 (OCP OFP8): a sign, 4 bits of exponent with a bias of 7, 3 of fraction; no infinities, and NaN where all bits
//! but the sign are set. Shared by kernels and the CPU, so that both round alike.

/// The largest number.
pub const MAX: f32 = 448.0;

/// NaN, but for its sign.
pub const NAN: u8 = 0x7f;

/// Bits of f32's fraction behind those of e4m3.
const FRACTION_SHIFT: u32 = f32::MANTISSA_DIGITS - 1 - 3;
/// Difference of the biases of exponents, 127 − 7.
const REBIAS: u32 = 120;
/// The smallest normal number.
const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
/// A number of which neighbours are as far apart as subnormal numbers are: 2⁻⁹.
const SUBNORMAL_STEP: f32 = 16384.0;

/// The number of a code.
#[inline(always)]
pub const fn to_f32(code: u8) -> f32 {
    let magnitude = code & NAN;
    let sign = (code as u32 & 0x80) << 24;
    if magnitude == NAN {
        return f32::NAN;
    }
    let bits = if magnitude < 8 {
        // Eighths of the smallest normal number.
        (magnitude as f32 * (SMALLEST_NORMAL / 8.0)).to_bits()
    } else {
        ((magnitude as u32) << FRACTION_SHIFT) + (REBIAS << (f32::MANTISSA_DIGITS - 1))
    };
    f32::from_bits(bits | sign)
}

/// The code of the nearest number, of two that of the even one; beyond the largest, infinities included, that of the largest.
#[inline(always)]
pub fn of_f32(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = f32::from_bits(value.to_bits() & 0x7fff_ffff);
    if magnitude.is_nan() {
        return NAN | sign;
    }
    let clamped = magnitude.min(MAX);
    let code = if clamped < SMALLEST_NORMAL {
        (clamped + SUBNORMAL_STEP).to_bits() - SUBNORMAL_STEP.to_bits()
    } else {
        let bits = clamped.to_bits();
        let half = (1 << (FRACTION_SHIFT - 1)) - 1 + (bits >> FRACTION_SHIFT & 1);
        ((bits + half) >> FRACTION_SHIFT) - (REBIAS << 3)
    };
    code as u8 | sign
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition.
    fn exact(code: u8) -> f64 {
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let two = |by: i32| 2f64.powi(by);
        let magnitude = match exponent {
            0 => fraction * two(-9),
            _ => (8.0 + fraction) * two(exponent - 10),
        };
        if code & 0x80 != 0 {
            -magnitude
        } else {
            magnitude
        }
    }

    #[test]
    fn all_codes_are_their_numbers() {
        for code in 0..=u8::MAX {
            if code & NAN == NAN {
                assert!(to_f32(code).is_nan());
                assert_eq!(of_f32(f32::NAN) & NAN, NAN);
                continue;
            }
            assert_eq!(f64::from(to_f32(code)), exact(code), "{code:#x}");
            assert_eq!(to_f32(code).is_sign_negative(), code & 0x80 != 0);
            assert_eq!(of_f32(to_f32(code)), code);
        }
        assert_eq!(to_f32(0x7e), MAX);
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_of_two_to_the_even_one() {
        for code in 0..0x7e_u8 {
            let (low, high) = (to_f32(code), to_f32(code + 1));
            let middle = (low + high) / 2.0;
            let even = code + code % 2;
            assert_eq!(of_f32(middle), even, "{middle}");
            assert_eq!(of_f32(f32::from_bits(middle.to_bits() + 1)), code + 1);
            assert_eq!(of_f32(f32::from_bits(middle.to_bits() - 1)), code);
            assert_eq!(of_f32(-middle), even | 0x80);
        }
        for beyond in [449.0, 464.0, 480.0, 1e30, f32::MAX, f32::INFINITY] {
            assert_eq!(of_f32(beyond), 0x7e);
            assert_eq!(of_f32(-beyond), 0xfe);
        }
        assert_eq!(of_f32(f32::from_bits(1)), 0);
    }
}
