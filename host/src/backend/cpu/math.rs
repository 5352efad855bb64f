//! Elementary functions on vectors of f32.

use std::f32::consts::{LN_2, LOG2_E};

use pulp::Simd;

/// Below this, `exp` in f32 is subnormal; it counts as 0.
const UNDERFLOW: f32 = -87.0;

/// `exp(x)` for x ≤ 0 within 2 ulp; exactly 0 below [`UNDERFLOW`], NaN for NaN and for +∞.
///
/// `x·log2(e) = n + f` with integer n and |f| ≤ ½, then `2ⁿ · 2ᶠ` with 2ᶠ by its Taylor series,
/// whose first omitted term is below 2⁻²⁷ on that interval.
#[inline(always)]
pub(super) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
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

/// Below this size, `tanh` is a rational function; above, it comes from `exp`.
const TANH_SMALL: f32 = 0.625;

/// `tanh(x)` within a few ulp, NaN for NaN.
///
/// Small arguments take the fifth convergent of Lambert's continued fraction
/// `x / (1 + x² / (3 + x² / (5 + x² / (7 + x² / 9))))`, since `1 - exp(-2|x|)` would cancel.
#[inline(always)]
pub(super) fn tanh<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |value| simd.splat_f32s(value);
    let one = splat(1.0);
    let size = simd.abs_f32s(x);

    let square = simd.mul_f32s(x, x);
    let horner = |a, b, c| {
        let inner = simd.mul_add_e_f32s(splat(a), square, splat(b));
        simd.mul_add_e_f32s(inner, square, splat(c))
    };
    let small = simd.div_f32s(
        simd.mul_f32s(x, horner(1.0, 105.0, 945.0)),
        horner(15.0, 420.0, 945.0),
    );

    let decay = exp(simd, simd.mul_f32s(size, splat(-2.0)));
    let large = simd.div_f32s(simd.sub_f32s(one, decay), simd.add_f32s(one, decay));
    let negative = simd.less_than_f32s(x, splat(0.0));
    let large = simd.select_f32s(negative, simd.neg_f32s(large), large);

    let is_small = simd.less_than_f32s(size, splat(TANH_SMALL));
    simd.select_f32s(is_small, small, large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pulp::{Arch, WithSimd};

    struct Map<'a> {
        values: &'a mut [f32],
        is_tanh: bool,
    }

    impl WithSimd for Map<'_> {
        type Output = ();
        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let (vectors, rest) = S::as_mut_simd_f32s(self.values);
            assert!(rest.is_empty());
            for x in vectors {
                *x = match self.is_tanh {
                    true => tanh(simd, *x),
                    false => exp(simd, *x),
                };
            }
        }
    }

    fn map(mut values: Vec<f32>, is_tanh: bool) -> Vec<f32> {
        Arch::new().dispatch(Map {
            values: &mut values,
            is_tanh,
        });
        values
    }

    fn exp_of(values: Vec<f32>) -> Vec<f32> {
        map(values, false)
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

    #[test]
    fn tanh_is_accurate_on_both_sides_of_its_seam() {
        let inputs: Vec<f32> = (-(1 << 19)..1 << 19).map(|i| i as f32 / 4e4).collect();
        let worst = map(inputs.clone(), true)
            .into_iter()
            .zip(&inputs)
            .map(|(y, &x)| {
                let exact = f64::from(x).tanh();
                (f64::from(y) - exact).abs() / exact.abs().max(f64::MIN_POSITIVE)
            })
            .fold(0.0, f64::max);
        assert!(worst < 2f64.powi(-21), "{worst}");
        let mut special = vec![f32::NAN; 16];
        special[1] = f32::INFINITY;
        special[2] = f32::NEG_INFINITY;
        let special = map(special, true);
        assert!(special[0].is_nan());
        assert_eq!((special[1], special[2]), (1.0, -1.0));
    }
}
