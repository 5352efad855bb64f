//! Online softmax of a transposed score tile: rows are keys, columns are queries, so each query's
//! maximum and sum live in one lane and no step crosses lanes.

use std::f32::consts::{LN_2, LOG2_E};

use pulp::Simd;

/// Running state of a tile's queries.
pub(super) struct State {
    /// Largest score so far; −∞ before the first visible key.
    pub row_max: Vec<f32>,
    /// Sum of `exp(score - row_max)` so far.
    pub row_sum: Vec<f32>,
    /// What the last update multiplied earlier sums by.
    pub rescale: Vec<f32>,
}

impl State {
    pub fn new(columns: usize) -> Self {
        Self {
            row_max: vec![0.0; columns],
            row_sum: vec![0.0; columns],
            rescale: vec![0.0; columns],
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.row_max.fill(f32::NEG_INFINITY);
        self.row_sum.fill(0.0);
    }

    /// Takes `keys` rows of scores in, and leaves `exp(score - row_max)` in their place.
    ///
    /// Returns whether an earlier sum must be rescaled.
    #[inline(always)]
    pub fn update<S: Simd>(&mut self, simd: S, scores: &mut [f32], keys: usize) -> bool {
        let (scores, _) = S::as_mut_simd_f32s(scores);
        let (row_max, _) = S::as_mut_simd_f32s(&mut self.row_max);
        let (row_sum, _) = S::as_mut_simd_f32s(&mut self.row_sum);
        let (rescale, _) = S::as_mut_simd_f32s(&mut self.rescale);
        let vectors = scores.len() / keys;
        let infinity = simd.splat_f32s(f32::NEG_INFINITY);
        let zero = simd.splat_f32s(0.0);
        for column in 0..vectors {
            let lane = |key: usize| key * vectors + column;
            let old_max = row_max[column];
            let new_max = (0..keys).fold(old_max, |max, key| simd.max_f32s(scores[lane(key)], max));
            // Before the first visible key the maximum is −∞; subtracting 0 instead makes every
            // exponential 0 rather than NaN.
            let unseen = simd.equal_f32s(new_max, infinity);
            let shift = simd.select_f32s(unseen, zero, new_max);
            let factor = exp(simd, simd.sub_f32s(old_max, shift));
            let mut sum = simd.mul_f32s(row_sum[column], factor);
            for key in 0..keys {
                let p = exp(simd, simd.sub_f32s(scores[lane(key)], shift));
                sum = simd.add_f32s(sum, p);
                scores[lane(key)] = p;
            }
            row_max[column] = new_max;
            row_sum[column] = sum;
            rescale[column] = factor;
        }
        self.rescale.iter().any(|&factor| factor != 1.0)
    }
}

/// Below this, `exp` in f32 is subnormal; it counts as 0.
const UNDERFLOW: f32 = -87.0;

/// `exp(x)` for x ≤ 0 within 2 ulp; exactly 0 below [`UNDERFLOW`], NaN for NaN and for +∞.
///
/// `x·log2(e) = n + f` with integer n and |f| ≤ ½, then `2ⁿ · 2ᶠ` with 2ᶠ by its Taylor series,
/// whose first omitted term is below 2⁻²⁷ on that interval.
#[inline(always)]
fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    /// Adding it leaves the nearest integer in a float's low mantissa bits.
    const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
    const MANTISSA_BITS: u32 = 23;
    const ONE_BITS: u32 = 0x3f80_0000;
    let log2_e = simd.splat_f32s(LOG2_E);
    let rounder = simd.splat_f32s(ROUNDER);
    let shifted = simd.mul_add_e_f32s(x, log2_e, rounder);
    let n = simd.sub_f32s(shifted, rounder);
    let f = simd.mul_add_e_f32s(x, log2_e, simd.neg_f32s(n));

    const TERMS: usize = 8;
    let coefficients: [f32; TERMS] = {
        let mut coefficients = [1.0; TERMS];
        for k in 1..TERMS {
            coefficients[k] = coefficients[k - 1] * LN_2 / k as f32;
        }
        coefficients
    };
    let mut power = simd.splat_f32s(coefficients[TERMS - 1]);
    for &coefficient in coefficients[..TERMS - 1].iter().rev() {
        power = simd.mul_add_e_f32s(power, f, simd.splat_f32s(coefficient));
    }

    let exponent = simd.wrapping_dyn_shl_u32s(
        simd.transmute_u32s_f32s(shifted),
        simd.splat_u32s(MANTISSA_BITS),
    );
    let two_to_n = simd.transmute_f32s_u32s(simd.add_u32s(exponent, simd.splat_u32s(ONE_BITS)));
    let underflows = simd.less_than_f32s(x, simd.splat_f32s(UNDERFLOW));
    simd.select_f32s(
        underflows,
        simd.splat_f32s(0.0),
        simd.mul_f32s(power, two_to_n),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, WithSimd};

    struct Exp<'a>(&'a mut [f32]);

    impl WithSimd for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (vectors, rest) = S::as_mut_simd_f32s(self.0);
            assert!(rest.is_empty());
            for x in vectors {
                *x = exp(simd, *x);
            }
        }
    }

    fn exp_of(mut values: Vec<f32>) -> Vec<f32> {
        Arch::new().dispatch(Exp(&mut values));
        values
    }

    #[test]
    fn exp_is_accurate_to_two_ulp() {
        let inputs: Vec<f32> = (0..1 << 20).map(|i| -86.9 * i as f32 / 1e6).collect();
        let worst = exp_of(inputs.clone())
            .into_iter()
            .zip(&inputs)
            .filter(|&(_, &x)| x >= UNDERFLOW)
            // x itself is off by the rounding of log2(e): relative 2⁻²⁶ of its size.
            .map(|(y, &x)| {
                let exact = f64::from(x).exp();
                let allowed = 2f64.powi(-22) + f64::from(-x) * 2f64.powi(-25);
                (f64::from(y) - exact).abs() / (exact * allowed)
            })
            .fold(0.0, f64::max);
        assert!(worst < 1.0, "{worst}");
    }

    #[test]
    fn exp_of_special_values() {
        let mut inputs = vec![0.0; 16];
        inputs[1] = f32::NEG_INFINITY;
        inputs[2] = -88.0;
        inputs[3] = f32::NAN;
        inputs[4] = f32::INFINITY;
        let exps = exp_of(inputs);
        assert_eq!((exps[0], exps[1], exps[2]), (1.0, 0.0, 0.0));
        assert!(exps[3].is_nan() && exps[4].is_nan());
    }
}
