//! How far a result may lie from the exact one, element by element.
//!
//! `|o − o64| ≤ 1.05·u·(Σⱼ pⱼ|vⱼ| + |o64|) + 1e-6`: the first term is the rounding of each
//! probability, the second that of the output. f16 adds `2⁻²⁵·Σ|vⱼ|/l`, half the distance between
//! its subnormals, which small probabilities fall among. A bias of size b, which ALiBi may make as large as
//! the sequence is long, adds `2⁻²³·b` to the relative error of its pⱼ.

use super::row::RowReference;
use crate::DType;

/// Room for the rounding of the f32 arithmetic around the 16-bit operands.
const HEADROOM: f64 = 1.05;
/// Absolute error always allowed.
const FLOOR: f64 = 1e-6;
/// f32 scores of size 20 already carry an error of 2⁻²⁰, which `exp` makes relative.
const F32_UNIT: f64 = 1.0 / (1u64 << 18) as f64;
/// A score is rounded when the bias is added and again when the row's maximum is subtracted, half of 2⁻²³ of
/// its size each. Biases of 6000, far above all other terms, use 0.43 of the bound (f32, tests/extremes.rs).
const BIAS_UNIT: f64 = 1.0 / (1u64 << 23) as f64;
/// Half the distance between subnormal f16 numbers.
const F16_SUBNORMAL: f64 = 1.0 / (1u64 << 25) as f64;

/// Relative error of one rounding.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => F32_UNIT,
        DType::F16 => 1.0 / (1u64 << 11) as f64,
        DType::Bf16 => 1.0 / (1u64 << 8) as f64,
    }
}

/// Largest error allowed of `o[dim]`.
pub(super) fn of_o(dtype: DType, row: &RowReference, dim: usize) -> f64 {
    let rounding = HEADROOM * unit(dtype) * (row.abs_pv[dim] + row.o[dim].abs());
    let subnormal = match dtype {
        DType::F16 => F16_SUBNORMAL * row.abs_v_over_sum[dim],
        DType::F32 | DType::Bf16 => 0.0,
    };
    let bias = BIAS_UNIT * (row.bias_pv[dim] + row.bias * row.o[dim].abs());
    rounding + subnormal + bias + FLOOR
}

/// Largest error allowed of lse, which is f32 whatever the dtype of o: an absolute error of the scores
/// passes to it unchanged.
pub(super) fn of_lse(row: &RowReference) -> f64 {
    F32_UNIT * (1.0 + row.lse.abs()) + BIAS_UNIT * row.bias + FLOOR
}

/// Error over allowed error; above 1 is wrong.
///
/// Where the exact value is NaN or infinite there is no distance: NaN must be NaN, −∞ must be −∞
/// (a row that sees no key), and +∞ must not be finite, for ∞ − ∞ is NaN on the way there.
pub(super) fn ratio(got: f64, exact: f64, allowed: f64) -> f64 {
    let right = if exact.is_nan() {
        got.is_nan()
    } else if exact == f64::NEG_INFINITY {
        got == exact
    } else if exact == f64::INFINITY {
        !got.is_finite()
    } else if !got.is_finite() {
        false
    } else {
        return (got - exact).abs() / allowed;
    };
    if right { 0.0 } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values_have_no_distance() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        for (got, exact, right) in [
            (nan, nan, true),
            (1.0, nan, false),
            (nan, 1.0, false),
            (inf, 1.0, false),
            (-inf, -inf, true),
            (-1e30, -inf, false),
            (nan, -inf, false),
            (nan, inf, true),
            (1e38, inf, false),
        ] {
            assert_eq!(ratio(got, exact, 1.0) <= 1.0, right, "{got} for {exact}");
        }
        assert_eq!(ratio(1.5, 1.0, 0.25), 2.0);
    }
}
