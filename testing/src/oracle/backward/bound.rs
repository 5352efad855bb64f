//! How far a gradient may lie from the exact one, element by element.
//!
//! With o and lse as given, p a probability, `dz = p·(dp − delta)` and dx = dz times a softcap's derivative,
//!
//! ```text
//! |dv − dv64| ≤ 1.05·u·(Σᵢ p|d_o| + |dv|) + Σᵢ e·p|d_o| + R·Σᵢ p|d_o| + 1e-6·max|d_o|
//! |dk − dk64| ≤ 1.05·u·(scale·Σᵢ|dx||q| + |dk|) + scale·Σᵢ E|q| + R·scale·Σᵢ|dx||q| + 1e-6·max|d_o|
//! ```
//!
//! and dq as dk, over keys. The first term is the rounding of P or dS to the inputs' dtype and that of the result. `e` is
//! what a score's error makes of a probability: `2⁻¹⁸ + max(2⁻²³·(3·m + head_dim/8·|s|) − 2⁻¹⁸, 0) + 2⁻²²·|lse| + 2⁻²³·|bias|`, with m
//! and s as in the forward pass's bound. `E = e·|dz| + p·3·2⁻²³·(Σ_c |d_o·v| + Σ_c |d_o·o| + |d_lse|)`, and more for a softcap. The unit u multiplies
//! |dz| and not p·(|dp| + |delta|): who rounds dp to 16 bits, or has a delta off by one percent, is found.
//! `R = terms/16·2⁻²⁴`: tensor cores truncate each partial sum.
//!
//! The gradient by a slope of ALiBi is a sum in f32 of dz, which nobody rounds, times distances, a pair's `t`:
//!
//! ```text
//! |d_slope − d_slope64| ≤ Σᵢⱼ E·t + R'·Σᵢⱼ |dz|·t + 1e-6·max|d_o|        R' = (128 + rows/64)·2⁻²⁴
//! ```
//!
//! with the rows of q, and of k and v, that take part. Sums are formed of blocks of pairs and then of such sums: no value passes
//! through more additions than that. The gradient by a bias is bounded alike, with t = 1, and four rows a query: it is added up by
//! blocks of 16 queries.
//!
//! In f16 a probability and a dS fall among subnormal numbers: half their distance is allowed for each, in dS scaled by
//! the exponent of the largest |d_o|, which a kernel takes out of dS before it rounds.

use super::super::bound::{F16_SUBNORMAL, HEADROOM, PRODUCTS, SCORE_UNIT, unit};
use super::super::score::ScoreWithSlope;
use ferroflash::DType;

/// Relative error always allowed of a probability.
const P_UNIT: f64 = 1.0 / (1u64 << 18) as f64;
/// Roundings of lse, per unit: of its product with log2 e, and of the exponent it is subtracted in.
const LSE_UNIT: f64 = 1.0 / (1u64 << 22) as f64;
/// Part of the largest |d_o| that a gradient may always be off by.
const FLOOR: f64 = 1e-6;
/// How far tanh may be off, in parts of it.
const TANH_UNIT: f64 = 1.0 / (1u64 << 20) as f64;

/// Rounding errors of the inputs' dtype.
pub(super) struct Precision {
    /// Relative error of one rounding.
    unit: f64,
    /// Absolute errors of a rounded probability and a rounded dS.
    p_floor: f64,
    dx_floor: f64,
    /// And of a rounded result.
    result_floor: f64,
}

impl Precision {
    /// That of `dtype` where the largest |d_o| of the head is `largest_d_o`.
    pub fn of(dtype: DType, largest_d_o: f64) -> Self {
        let is_f16 = matches!(dtype, DType::F16);
        let subnormal = if is_f16 { F16_SUBNORMAL } else { 0.0 };
        // The power of two that is next above.
        let exponent = if largest_d_o > 0.0 {
            largest_d_o.log2().ceil()
        } else {
            0.0
        };
        Self {
            unit: unit(dtype),
            p_floor: subnormal,
            dx_floor: subnormal * exponent.exp2(),
            result_floor: subnormal,
        }
    }
}

/// Contribution of one query and one key to the gradients. Of a score modification of the caller's own, dz is the gradient by what
/// the score was before it.
pub(super) struct Pair {
    pub p: f64,
    /// The loss's gradient by the score, and how far it may be off.
    pub dz: f64,
    pub dz_error: f64,
    /// The loss's gradient by the scaled product of q and k.
    pub dx: f64,
    /// How far p may be off before it is rounded.
    pub p_error: f64,
    pub dx_error: f64,
}

impl Pair {
    /// Of probability `p` and `difference`, dp − delta, two sums of products whose sizes add up to `sizes`.
    pub fn new(
        score: &ScoreWithSlope,
        lse: f64,
        p: f64,
        difference: f64,
        sizes: f64,
        precision: &Precision,
    ) -> Self {
        // By the score that enters the softmax, and by what it was before a modification of the caller's own.
        let changed = p * difference;
        let dz = changed * score.own_slope;
        let rounding = SCORE_UNIT * PRODUCTS;
        let products = score.roundings * score.slope * score.own_slope.abs();
        let of_products = (SCORE_UNIT * products - P_UNIT).max(0.0);
        let of_lse = if lse.is_finite() {
            LSE_UNIT * lse.abs()
        } else {
            0.0
        };
        let e = P_UNIT + of_products + of_lse + SCORE_UNIT * score.bias_size;
        let of_own = changed.abs() * score.own_slope_error;
        let dz_error = e * dz.abs() + p * rounding * sizes * score.own_slope.abs() + of_own;
        Self {
            p,
            dz,
            dz_error,
            dx: dz * score.slope,
            p_error: e * p + precision.p_floor,
            dx_error: dz_error * score.slope + dz.abs() * slope_error(score) + precision.dx_floor,
        }
    }
}

/// How far a softcap's derivative `1 − tanh²` may be off; 0 without one.
fn slope_error(score: &ScoreWithSlope) -> f64 {
    let Some(cap) = score.softcap else {
        return 0.0;
    };
    let tanh = (1.0 - score.slope).max(0.0).sqrt();
    let of_tanh = score.slope * SCORE_UNIT * score.roundings / cap + TANH_UNIT * tanh;
    2.0 * tanh * of_tanh + SCORE_UNIT
}

/// Largest error allowed of a component whose exact value has size `exact`: a sum of `terms` products whose sizes add up to
/// `sizes`, and whose errors before rounding add up to `error`.
pub(super) fn of_gradient(
    exact: f64,
    sizes: f64,
    error: f64,
    terms: usize,
    largest_d_o: f64,
    precision: &Precision,
) -> f64 {
    let truncation = terms as f64 / 16.0 / (1u64 << 24) as f64;
    HEADROOM * precision.unit * (sizes + exact)
        + error
        + truncation * sizes
        + precision.result_floor
        + FLOOR * largest_d_o
}

/// Largest error allowed of the gradient by a parameter, in which `rows` rows of q and of k and v take part: of a sum of terms whose
/// sizes add up to `sizes`, and whose errors add up to `error`.
pub(super) fn of_parameter(sizes: f64, error: f64, rows: usize, largest_d_o: f64) -> f64 {
    let additions = 128.0 + rows as f64 / 64.0;
    error + additions / (1u64 << 24) as f64 * sizes + FLOOR * largest_d_o
}
