//! [`FloatOp`]s on one element of a format, with modifiers.

use super::exact;
use super::round::{F32, Format, round};
use crate::ir::{FloatMods, FloatOp, Round};

/// Subnormal → zero of the same sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE {
        0f32.copysign(x)
    } else {
        x
    }
}

/// `min`/`max` of PTX: a NaN operand is ignored unless `propagate`; −0 < +0.
#[inline(always)]
pub(crate) fn min_max(a: f64, b: f64, max: bool, propagate: bool) -> f64 {
    if a.is_nan() || b.is_nan() {
        return match (a.is_nan() && b.is_nan()) || propagate {
            true => f64::NAN,
            false if a.is_nan() => b,
            false => a,
        };
    }
    if a == b {
        // Only signed zeros differ.
        return if a.is_sign_negative() == max { b } else { a };
    }
    if (a < b) == max { b } else { a }
}

/// `.relu`: a negative value becomes +0; NaN stays.
pub(crate) fn relu(x: f64) -> f64 {
    if x.is_nan() || x > 0.0 { x } else { 0.0 }
}

/// The operation on f64 operands, rounded to odd where that is not exact.
///
/// Approximate functions are computed to f64 accuracy: within PTX's documented error, and closer to
/// the true value than hardware.
fn compute(f: FloatOp, a: f64, b: f64, c: f64) -> f64 {
    match f {
        FloatOp::Add => exact::add(a, b),
        FloatOp::Sub => exact::add(a, -b),
        FloatOp::Mul => exact::mul(a, b),
        FloatOp::Fma => exact::fma(a, b, c),
        FloatOp::Div => exact::div(a, b),
        FloatOp::DivApprox => a / b,
        FloatOp::Min => min_max(a, b, false, false),
        FloatOp::Max => min_max(a, b, true, false),
        FloatOp::MinNan => min_max(a, b, false, true),
        FloatOp::MaxNan => min_max(a, b, true, true),
        FloatOp::Neg => -a,
        FloatOp::Abs => a.abs(),
        FloatOp::Copysign => b.copysign(a),
        FloatOp::Rcp => exact::div(1.0, a),
        FloatOp::RcpApprox => 1.0 / a,
        FloatOp::Sqrt => exact::sqrt(a),
        FloatOp::SqrtApprox => a.sqrt(),
        FloatOp::RsqrtApprox => 1.0 / a.sqrt(),
        FloatOp::Ex2Approx => a.exp2(),
        FloatOp::Lg2Approx => a.log2(),
        FloatOp::SinApprox => a.sin(),
        FloatOp::CosApprox => a.cos(),
        FloatOp::TanhApprox => a.tanh(),
    }
}

/// Sign-bit operations, which never round nor canonicalise a NaN.
fn sign_op(f: FloatOp) -> bool {
    matches!(f, FloatOp::Neg | FloatOp::Abs | FloatOp::Copysign)
}

/// One operation on operands already widened to f32; the result's bits in `format`.
pub(crate) fn float_op(f: FloatOp, m: FloatMods, format: Format, a: f32, b: f32, c: f32) -> u32 {
    let input = |x: f32| f64::from(if m.ftz { flush(x) } else { x });
    let mut value = compute(f, input(a), input(b), input(c));
    if m.sat {
        // NaN becomes +0 (PTX ISA: `.sat` clamps to [0.0, 1.0], NaN results are flushed to +0.0f).
        value = if value > 0.0 { value.min(1.0) } else { 0.0 };
    }
    if m.relu {
        value = relu(value);
    }
    let bits = round(value, format, m.round);
    if m.ftz && format == F32 {
        return flush(f32::from_bits(bits)).to_bits();
    }
    if m.ftz {
        // f16: exponent field zero and significand not.
        let magnitude = bits & 0x7fff;
        return if magnitude < 0x400 {
            bits & 0x8000
        } else {
            bits
        };
    }
    bits
}

/// f32 with modifiers: [`float_op`] with bit-exact sign operations.
pub(crate) fn f32_op(f: FloatOp, m: FloatMods, a: f32, b: f32, c: f32) -> u32 {
    if sign_op(f) {
        let value = match f {
            FloatOp::Neg => -a,
            FloatOp::Abs => a.abs(),
            _ => b.copysign(a),
        };
        return if m.ftz { flush(value) } else { value }.to_bits();
    }
    float_op(f, m, F32, a, b, c)
}

/// A 16-bit operation on bit patterns.
pub(crate) fn half_op(f: FloatOp, m: FloatMods, bf16: bool, a: u32, b: u32, c: u32) -> u32 {
    use super::half::{bf16_to_f32, f16_to_f32};
    use super::round::{BF16, F16};
    match f {
        FloatOp::Neg => return a & 0xffff ^ 0x8000,
        FloatOp::Abs => return a & 0x7fff,
        _ => {}
    }
    let widen = if bf16 { bf16_to_f32 } else { f16_to_f32 };
    let input = |x: u32| {
        let x = x & 0xffff;
        // f16 `.ftz`: the input's exponent field is zero.
        widen(if m.ftz && !bf16 && x & 0x7c00 == 0 {
            x & 0x8000
        } else {
            x
        })
    };
    let inner = FloatMods {
        ftz: m.ftz && !bf16,
        ..m
    };
    let format = if bf16 { BF16 } else { F16 };
    float_op(f, inner, format, input(a), input(b), input(c))
}

/// Round to an integral value.
pub(crate) fn integral(x: f64, mode: Round) -> f64 {
    match mode {
        Round::Nearest => x.round_ties_even(),
        Round::NearestAway => x.round(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nearest_operations_match_the_machine(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
            let (x, y, z) = (f32::from_bits(a), f32::from_bits(b), f32::from_bits(c));
            for (f, want) in [
                (FloatOp::Add, x + y),
                (FloatOp::Mul, x * y),
                (FloatOp::Div, x / y),
                (FloatOp::Fma, x.mul_add(y, z)),
                (FloatOp::Sqrt, x.sqrt()),
            ] {
                let got = f32::from_bits(float_op(f, FloatMods::PLAIN, F32, x, y, z));
                prop_assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{:?} {} {} {}: {} {}", f, x, y, z, got, want);
            }
        }
    }

    #[test]
    fn zeros_and_nans_in_min_max() {
        assert!(min_max(-0.0, 0.0, true, false).is_sign_positive());
        assert!(min_max(0.0, -0.0, false, false).is_sign_negative());
        assert_eq!(min_max(f64::NAN, 1.0, true, false), 1.0);
        assert!(min_max(f64::NAN, 1.0, true, true).is_nan());
    }

    #[test]
    fn f16_fma_rounds_once() {
        // 1 + 2^-11 + 2^-25: a separate multiply would lose the last term and tie to even.
        let m = FloatMods::PLAIN;
        let (a, b, c) = (0x0001, 0x3800, 0x3c00); // 2^-24, 0.5, 1.0
        assert_eq!(half_op(FloatOp::Fma, m, false, a, b, c), 0x3c00);
        let plus = half_op(
            FloatOp::Fma,
            FloatMods {
                round: Round::Up,
                ..m
            },
            false,
            a,
            b,
            c,
        );
        assert_eq!(plus, 0x3c01);
    }
}
