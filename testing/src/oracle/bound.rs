//! Error bounds: how far a result may lie from the exact one, element by element.
//!
//! `|o − o64| ≤ 1.05·u·(Σⱼ pⱼ|vⱼ| + |o64|) + Σⱼ pⱼeⱼ|vⱼ − o64| + 1e-6`: the first term is the rounding of each
//! probability and that of the output. f16 adds `2⁻²⁵·Σ|vⱼ|/l`, half the distance between its subnormals, which small
//! probabilities fall among. lse, which is f32, may be off by `2⁻¹⁸·(1 + |lse64|) + Σⱼ pⱼeⱼ + 1e-6`.
//!
//! `eⱼ = 2⁻²³·bⱼ + max(3·2⁻²³·mⱼ − 2⁻¹⁸, 0)` is the error allowed of a score beyond what the other terms allow for;
//! both sums are the effect of such errors on the softmax, to first order. bⱼ is the size of ALiBi's bias, which may be
//! as large as the sequence is long. `mⱼ = |softmax_scale|·Σᵢ |qᵢkⱼᵢ|`, times a softcap's derivative: a score is a sum,
//! and rounding its terms and partial sums costs in proportion to the sizes added up, however little remains of them.
//! 2⁻¹⁸ of that is in the other terms: up to mⱼ = 10.7 nothing is added, and 128 dimensions of N(0, 1) give 7.2.
//!
//! The 3 is for terms of random signs. Tensor cores align a group of products and the accumulator to the largest exponent,
//! truncate them, and truncate their sum to f32: 16 products and 25 bits below that exponent on Hopper, 8 and 24 on
//! Ampere (Khattak, Mikaitis 2025, *Accurate Models of NVIDIA Tensor Cores*). Of a million sums of 16 to 256 products of
//! two N(0, 1), the worst by these models is off by 2.1 and 4.0 · 2⁻²³·mⱼ, and the worst of f32 FMAs in order by 2.9; their
//! standard deviations are 0.4 and less. Terms sorted by sign could make it 6.

use super::row::RowReference;
use ferroflash::DType;

/// Room for the rounding of the f32 arithmetic around the 16-bit operands.
pub(super) const HEADROOM: f64 = 1.05;
/// Absolute error always allowed.
const FLOOR: f64 = 1e-6;
/// f32 scores of size 20 already carry an error of 2⁻²⁰, which `exp` makes relative.
const F32_UNIT: f64 = 1.0 / (1u64 << 18) as f64;
/// Roundings of a score, per unit of its terms: half of 2⁻²³ when the bias is added and again when the row's reference
/// is subtracted. Biases of 6000, far above all other terms, use 0.44 of the bound (f32,
/// tests/tests/backends/extremes.rs).
pub(super) const SCORE_UNIT: f64 = 1.0 / (1u64 << 23) as f64;
/// Roundings of a sum of products, in the same unit.
pub(super) const PRODUCTS: f64 = 3.0;
/// Roundings of a score modification of the caller's own and of its derivative, in the same unit: a hyperbolic tangent may be off
/// by 2⁻²⁰ of it.
pub(super) const OWN_ROUNDINGS: f64 = 16.0;
/// Half the distance between subnormal f16 numbers.
pub(super) const F16_SUBNORMAL: f64 = 1.0 / (1u64 << 25) as f64;

/// Relative error of one rounding.
pub(super) fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => F32_UNIT,
        DType::F16 => 1.0 / (1u64 << 11) as f64,
        DType::Bf16 => 1.0 / (1u64 << 8) as f64,
        DType::E4m3 => 1.0 / 16.0,
    }
}

/// The module's `eⱼ`: error allowed of a score beyond [`F32_UNIT`], if the sizes of its products add up to `products`
/// nats and its bias has size `bias`.
pub(super) fn of_score(products: f64, bias: f64) -> f64 {
    let sum = (SCORE_UNIT * PRODUCTS * products - F32_UNIT).max(0.0);
    sum + SCORE_UNIT * bias
}

/// Largest error allowed of `o[dim]`.
pub(super) fn of_o(dtype: DType, row: &RowReference, dim: usize) -> f64 {
    let rounding = HEADROOM * unit(dtype) * (row.abs_pv[dim] + row.o[dim].abs());
    let subnormal = match dtype {
        DType::F16 => F16_SUBNORMAL * row.abs_v_over_sum[dim],
        DType::F32 | DType::Bf16 | DType::E4m3 => 0.0,
    };
    rounding + subnormal + row.score_errors_v[dim] + FLOOR
}

/// Largest error allowed of lse, which is f32 whatever the dtype of o: an absolute error of the scores
/// passes to it unchanged.
pub(super) fn of_lse(row: &RowReference) -> f64 {
    F32_UNIT * (1.0 + row.lse.abs()) + row.score_errors + FLOOR
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
    fn only_scores_of_large_products_or_a_bias_are_granted_more() {
        // The products of 128 dimensions of N(0, 1), and 60 times as much.
        assert_eq!(of_score(7.2, 0.0), 0.0);
        assert!((of_score(432.0, 0.0) - (1296.0 / 32.0 - 1.0) * F32_UNIT).abs() < 1e-18);
        assert_eq!(of_score(7.2, 32.0), F32_UNIT);
    }

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
