//! f64 → a narrower binary format, in any rounding mode.

use crate::ir::Round;

/// A binary interchange format, or tf32 in its 32-bit container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Stored significand bits.
    mantissa: u32,
    exponent: u32,
    /// Zero bits below the significand in the container.
    pad: u32,
}

pub(crate) const F16: Format = Format {
    mantissa: 10,
    exponent: 5,
    pad: 0,
};
pub(crate) const BF16: Format = Format {
    mantissa: 7,
    exponent: 8,
    pad: 0,
};
pub(crate) const TF32: Format = Format {
    mantissa: 10,
    exponent: 8,
    pad: 13,
};
pub(crate) const F32: Format = Format {
    mantissa: 23,
    exponent: 8,
    pad: 0,
};

impl Format {
    /// The canonical quiet NaN PTX produces: 0x7fff for 16-bit formats, 0x7fffffff for 32 bits
    /// (PTX ISA §9.7.3, §9.7.4).
    pub(crate) const fn nan(self) -> u32 {
        (1 << (self.mantissa + self.exponent + self.pad)) - 1
    }

    fn infinity(self) -> u32 {
        ((1 << self.exponent) - 1) << self.mantissa
    }
}

/// The bits of an f32, of any NaN those of the canonical one.
#[inline(always)]
pub(crate) fn canonical_nan(x: f32) -> u32 {
    if x.is_nan() { F32.nan() } else { x.to_bits() }
}

/// Rounds `x` to `format`; `x` may be a round-to-odd result. Returns the container's bits.
pub(crate) fn round(x: f64, format: Format, mode: Round) -> u32 {
    let sign = u32::from(x.is_sign_negative()) << (format.mantissa + format.exponent);
    let finish = |magnitude: u32| (sign | magnitude) << format.pad;
    if x.is_nan() {
        return format.nan();
    }
    if x.is_infinite() {
        return finish(format.infinity());
    }
    if x == 0.0 {
        return finish(0);
    }
    let bias = (1i64 << (format.exponent - 1)) - 1;
    let bits = x.abs().to_bits();
    let exponent64 = (bits >> 52) as i64;
    // f64 subnormals are far below every target's range: they only need to stay non-zero.
    let (exponent, significand) = if exponent64 == 0 {
        (-1022, bits & ((1 << 52) - 1) | 1)
    } else {
        (exponent64 - 1023, bits & ((1 << 52) - 1) | 1 << 52)
    };
    let min_exponent = 1 - bias;
    // Bits of the 53-bit significand that fall below the target's last place.
    let normal_drop = 52 - i64::from(format.mantissa);
    let drop = normal_drop + (min_exponent - exponent).max(0);
    let (kept, rest, half) = if drop > 62 {
        (0, significand, u64::MAX)
    } else {
        (
            significand >> drop,
            significand & ((1 << drop) - 1),
            1u64 << (drop - 1),
        )
    };
    let negative = sign != 0;
    let up = match mode {
        Round::Nearest => rest > half || (rest == half && kept & 1 == 1),
        Round::NearestAway => rest >= half,
        Round::Zero => false,
        Round::Down => negative && rest != 0,
        Round::Up => !negative && rest != 0,
    };
    let kept = kept + u64::from(up);
    // A normal result has its hidden bit set; a carry moves into the exponent by itself.
    let biased = if exponent >= min_exponent {
        (exponent + bias - 1) as u64
    } else {
        0
    };
    let magnitude = (biased << format.mantissa) + kept;
    if magnitude >= u64::from(format.infinity()) {
        let to_infinity = match mode {
            Round::Nearest | Round::NearestAway => true,
            Round::Zero => false,
            Round::Down => negative,
            Round::Up => !negative,
        };
        return finish(format.infinity() - u32::from(!to_infinity));
    }
    finish(magnitude as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn f32_nearest_is_the_hardware_conversion(bits in any::<u64>()) {
            let x = f64::from_bits(bits);
            let ours = round(x, F32, Round::Nearest);
            let theirs = (x as f32).to_bits();
            prop_assert!(ours == theirs || x.is_nan());
        }

        #[test]
        fn f16_and_bf16_nearest_agree_with_half(bits in any::<u32>()) {
            let x = f32::from_bits(bits);
            if !x.is_nan() {
                prop_assert_eq!(round(f64::from(x), F16, Round::Nearest), u32::from(half::f16::from_f32(x).to_bits()));
                prop_assert_eq!(round(f64::from(x), BF16, Round::Nearest), u32::from(half::bf16::from_f32(x).to_bits()));
            }
        }

        #[test]
        fn directed_modes_bracket(x in -1e6f64..1e6) {
            let down = f32::from_bits(round(x, F32, Round::Down));
            let up = f32::from_bits(round(x, F32, Round::Up));
            let zero = f32::from_bits(round(x, F32, Round::Zero));
            prop_assert!(f64::from(down) <= x && x <= f64::from(up));
            prop_assert_eq!(zero, if x < 0.0 { up } else { down });
        }
    }

    #[test]
    fn ties_and_overflow() {
        assert_eq!(round(1.0 + 2f64.powi(-8), BF16, Round::Nearest), 0x3f80);
        assert_eq!(round(1.0 + 2f64.powi(-8), BF16, Round::NearestAway), 0x3f81);
        assert_eq!(round(1e6, F16, Round::Nearest), 0x7c00);
        assert_eq!(round(1e6, F16, Round::Zero), 0x7bff);
        assert_eq!(round(2f64.powi(-200), F16, Round::Up), 1);
        assert_eq!(
            round(1.0 + 2f64.powi(-11), TF32, Round::NearestAway),
            0x3f80_2000
        );
    }
}
