//! Error bounds: how far a result may lie from the exact one, element by element.
//!
//! `|o − o64| ≤ 1.05·u·(Σⱼ pⱼ|vⱼ| + |o64|) + Σⱼ pⱼeⱼ|vⱼ − o64| + 1e-6`: the first term is the rounding of each
//! probability and that of the output. f16 adds `2⁻²⁵·Σ|vⱼ|/l`, half the distance between its subnormals, which small
//! probabilities fall among. lse, which is f32, may be off by `2⁻¹⁸·(1 + |lse64|) + Σⱼ pⱼeⱼ + 1e-6`.
//!
//! `eⱼ = 2⁻²³·bⱼ + max(2⁻²³·(3·mⱼ + tⱼ·|sⱼ|) − 2⁻¹⁸, 0)` is the error allowed of a score beyond what the other terms
//! allow for; both sums are the effect of such errors on the softmax, to first order. bⱼ is the size of ALiBi's bias, which may be
//! as large as the sequence is long. `mⱼ = |softmax_scale|·Σᵢ |qᵢkⱼᵢ|`, times a softcap's derivative: a score is a sum,
//! and rounding its terms and partial sums costs in proportion to the sizes added up, however little remains of them.
//! 2⁻¹⁸ of that is in the other terms: 3·mⱼ is up to mⱼ = 10.7, and 128 dimensions of N(0, 1) give 7.2.
//!
//! The 3 is for terms of random signs. Tensor cores align a group of products and the accumulator to the largest exponent,
//! truncate them, and truncate their sum to f32: 16 products and 25 bits below that exponent on Hopper, 8 and 24 on
//! Ampere (Khattak, Mikaitis 2025, *Accurate Models of NVIDIA Tensor Cores*). Of a million sums of 16 to 256 products of
//! two N(0, 1), the worst by these models is off by 2.1 and 4.0 · 2⁻²³·mⱼ, and the worst of f32 FMAs in order by 2.9; their
//! standard deviations are 0.4 and less.
//!
//! Where terms have one sign, as of a key that is a multiple of its query, every truncation takes from the sum: by the models
//! 8 and 17 · 2⁻²³ of it in the mean at a head_dim of 208 (8.1 was seen on an H200), 10 and 21 at 256, at worst 15 and 32. It is what
//! `tⱼ = head_dim/8` allows for, with sⱼ the scaled product itself, of 16-bit operands. f32 FMAs round to the nearest, so that their
//! errors have signs: each is up to half of 2⁻²³ of the sum so far, 0.29 in standard deviation, and sums so far grow to sⱼ, so that
//! together they are 0.29·√(head_dim/3), of which `tⱼ = √head_dim` is six (3.1 · 2⁻²³ of a product of 39 was seen at 256). A bias may
//! cancel that product, and leave a small lse with its error.

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
/// Roundings of a sum of products per size of its terms, in the same unit.
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

/// Roundings of the sum of `terms` products of operands of `dtype`, in the same unit: the sum is `sum`, and the sizes of its products
/// add up to `sizes`.
pub(super) fn of_products(dtype: DType, terms: usize, sum: f64, sizes: f64) -> f64 {
    /// Products that every tensor core adds together at least.
    const TOGETHER: f64 = 8.0;
    let terms = terms as f64;
    let of_one_sign = match dtype {
        DType::F32 => terms.sqrt(),
        DType::F16 | DType::Bf16 | DType::E4m3 => terms / TOGETHER,
    };
    PRODUCTS * sizes + of_one_sign * sum.abs()
}

/// The module's `eⱼ`: error allowed of a score beyond [`F32_UNIT`], if its sum of products has so many `roundings` and its bias has
/// size `bias`.
pub(super) fn of_score(roundings: f64, bias: f64) -> f64 {
    (SCORE_UNIT * roundings - F32_UNIT).max(0.0) + SCORE_UNIT * bias
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
    use crate::round;
    use rand::{RngExt, SeedableRng};
    use rand_distr::StandardNormal;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn only_scores_of_large_products_or_a_bias_are_granted_more() {
        // The products of 128 dimensions of N(0, 1), and 60 times as much.
        let error = |sizes, bias| of_score(of_products(DType::F32, 128, 1.0, sizes), bias);
        assert_eq!(error(6.8, 0.0), 0.0);
        let (roundings, granted) = (1296.0 + f64::sqrt(128.0), 32.0);
        assert!((error(432.0, 0.0) - (roundings - granted) * SCORE_UNIT).abs() < 1e-18);
        assert_eq!(error(6.8, 32.0), F32_UNIT);
    }

    #[test]
    fn sums_of_one_sign_are_granted_more() {
        let roundings = |dtype| of_products(dtype, 256, -14.0, 14.0);
        assert_eq!(roundings(DType::F32), (3.0 + 16.0) * 14.0);
        assert_eq!(roundings(DType::F16), (3.0 + 32.0) * 14.0);
    }

    #[test]
    fn rounded_sums_of_one_sign_are_within_their_roundings() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for terms in [16, 64, 256] {
            let (mut worst, mut worst_of_sizes) = (0.0, 0.0);
            for _ in 0..3000 {
                let squares = (0..terms).map(|_| rng.sample::<f32, _>(StandardNormal).powi(2));
                let (rounded, exact) = squares.fold((0.0f32, 0.0f64), |(rounded, exact), x| {
                    (rounded + x, exact + f64::from(x))
                });
                let error = (f64::from(rounded) - exact).abs() / SCORE_UNIT;
                worst = f64::max(worst, error / of_products(DType::F32, terms, exact, exact));
                worst_of_sizes = f64::max(worst_of_sizes, error / (PRODUCTS * exact));
            }
            println!(
                "{terms} squares: worst of the bound {worst:.2}, of its first term {worst_of_sizes:.2}"
            );
            assert!(worst < 0.6, "{terms}: {worst}");
            // What the random signs' term allows alone is not enough.
            assert!(
                terms < 256 || worst_of_sizes > 1.0,
                "{terms}: {worst_of_sizes}"
            );
        }
    }

    /// A sum of products as tensor cores form it, by the models that the module names: `together` products and the sum so far
    /// are truncated `bits` bits below the largest exponent.
    fn truncated_sum(products: &[f64], together: usize, bits: i32) -> f64 {
        let truncate = |x: f64, step: f64| (x / step).trunc() * step;
        let step_below = |x: f64, bits: i32| (x.abs().log2().floor() - f64::from(bits)).exp2();
        products.chunks(together).fold(0.0, |sum: f64, group| {
            let terms = || group.iter().copied().chain([sum]);
            let largest = terms().fold(0.0, |largest, term| f64::max(largest, term.abs()));
            let aligned = terms().map(|term| truncate(term, step_below(largest, bits)));
            let sum: f64 = aligned.sum();
            truncate(sum, step_below(sum, 23))
        })
    }

    #[test]
    fn truncated_sums_of_one_sign_are_within_their_roundings() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(0);
        for terms in [16, 64, 128, 208, 256] {
            let (mut mean, mut worst) = ([0.0; 2], [0.0; 2]);
            const SUMS: usize = 1000;
            for _ in 0..SUMS {
                // Of a key that is its query times a factor, as planted ones are.
                let products: Vec<f64> = (0..terms)
                    .map(|_| {
                        let q = round(DType::F16, rng.sample(StandardNormal));
                        f64::from(q) * f64::from(round(DType::F16, 0.7 * q))
                    })
                    .collect();
                let sum: f64 = products.iter().sum();
                let allowed = of_products(DType::F16, terms, sum, sum) * SCORE_UNIT;
                for (model, (together, bits)) in [(16, 25), (8, 24)].into_iter().enumerate() {
                    let error = sum - truncated_sum(&products, together, bits);
                    worst[model] = f64::max(worst[model], error.abs() / allowed);
                    mean[model] += error / sum / SCORE_UNIT / SUMS as f64;
                }
            }
            println!("{terms} products: mean {mean:.1?}, worst of the bound {worst:.2?}");
            assert!(worst[0] < 1.0 && worst[1] < 1.0, "{terms}: {worst:?}");
            // What the random signs' term allows alone is not enough.
            assert!(terms < 128 || mean[1] > PRODUCTS, "{terms}: {mean:?}");
        }
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
