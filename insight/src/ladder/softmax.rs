//! Softmax of one row, three ways.
//!
//! Every intermediate result is rounded to a [`DType`], so that f16 shows what its range does to each.

use std::cell::Cell;

use serde::Serialize;

use ferroflash::DType;
use ferroflash_testing::round;

/// A row of numbers in memory, which is read in whole passes.
pub struct Row<'a> {
    values: &'a [f32],
    passes: Cell<u32>,
}

impl<'a> Row<'a> {
    /// No pass made.
    pub fn new(values: &'a [f32]) -> Self {
        Self {
            values,
            passes: Cell::new(0),
        }
    }

    /// Reads the row once.
    fn pass(&self) -> impl Iterator<Item = f32> {
        self.passes.set(self.passes.get() + 1);
        self.values.iter().copied()
    }

    /// Number of times it was read.
    pub fn passes(&self) -> u32 {
        self.passes.get()
    }
}

/// Arithmetic that rounds every result to one dtype.
#[derive(Clone, Copy)]
pub struct Rounding(pub DType);

impl Rounding {
    /// `value` as this dtype holds it: to nearest, ∞ beyond its range. The sum, product or quotient of two 16-bit
    /// numbers rounds the same through f32 as directly.
    fn to(self, value: f32) -> f32 {
        round(self.0, value)
    }

    fn exp(self, x: f32) -> f32 {
        self.to(x.exp())
    }

    fn add(self, a: f32, b: f32) -> f32 {
        self.to(a + b)
    }

    fn sub(self, a: f32, b: f32) -> f32 {
        self.to(a - b)
    }

    fn mul(self, a: f32, b: f32) -> f32 {
        self.to(a * b)
    }

    fn div(self, a: f32, b: f32) -> f32 {
        self.to(a / b)
    }
}

/// A way to compute the softmax of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Softmax {
    /// [`naive`].
    Naive,
    /// [`safe`].
    Safe,
    /// [`online`].
    Online,
}

impl Softmax {
    /// From the textbook's to the one that needs the fewest passes.
    pub const ALL: [Self; 3] = [Self::Naive, Self::Safe, Self::Online];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive softmax",
            Self::Safe => "safe softmax",
            Self::Online => "online softmax",
        }
    }

    /// Its formula, for output.
    pub const fn formula(self) -> &'static str {
        match self {
            Self::Naive => "yᵢ = exp(xᵢ) / Σⱼ exp(xⱼ)",
            Self::Safe => "m = max x;  l = Σⱼ exp(xⱼ − m);  yᵢ = exp(xᵢ − m) / l",
            Self::Online => {
                "m' = max(m, xⱼ);  l ← l·exp(m − m') + exp(xⱼ − m');  then yᵢ = exp(xᵢ − m) / l"
            }
        }
    }

    /// Computes it.
    pub fn run(self, x: &Row, rounding: Rounding) -> Vec<f32> {
        match self {
            Self::Naive => naive(x, rounding),
            Self::Safe => safe(x, rounding),
            Self::Online => online(x, rounding),
        }
    }
}

/// `yᵢ = exp(xᵢ) / Σⱼ exp(xⱼ)`, in two passes. Overflows as soon as one score is large.
pub fn naive(x: &Row, r: Rounding) -> Vec<f32> {
    let sum = x.pass().fold(0.0, |sum, x| r.add(sum, r.exp(x)));
    x.pass().map(|x| r.div(r.exp(x), sum)).collect()
}

/// Subtracts the maximum first, which changes nothing but the range: every exponent is at most 0. Three passes.
pub fn safe(x: &Row, r: Rounding) -> Vec<f32> {
    let max = x.pass().fold(f32::NEG_INFINITY, f32::max);
    let sum = x
        .pass()
        .fold(0.0, |sum, x| r.add(sum, r.exp(r.sub(x, max))));
    x.pass().map(|x| r.div(r.exp(r.sub(x, max)), sum)).collect()
}

/// Maximum and sum in one pass: when the maximum grows, the sum so far is rescaled to it (Milakov and Gimelshein
/// 2018, algorithm 3). Two passes.
pub fn online(x: &Row, r: Rounding) -> Vec<f32> {
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
    for x in x.pass() {
        let new_max = x.max(max);
        let rescaled = if max == f32::NEG_INFINITY {
            0.0
        } else {
            r.mul(sum, r.exp(r.sub(max, new_max)))
        };
        sum = r.add(rescaled, r.exp(r.sub(x, new_max)));
        max = new_max;
    }
    x.pass().map(|x| r.div(r.exp(r.sub(x, max)), sum)).collect()
}

/// The textbook's own example: exp(12) is beyond f16's largest number, 65504.
pub const OVERFLOWING_ROW: [f32; 5] = [0.0, 7.0, 6.0, 12.0, 10.0];

/// The exponentials a naive softmax in `dtype` divides: where they overflow, all is lost.
pub fn naive_exponentials(x: &[f32], dtype: DType) -> Vec<f32> {
    x.iter().map(|&x| Rounding(dtype).exp(x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(softmax: Softmax, x: &[f32], dtype: DType) -> (Vec<f32>, u32) {
        let row = Row::new(x);
        let y = softmax.run(&row, Rounding(dtype));
        (y, row.passes())
    }

    #[test]
    fn naive_overflows_in_f16_and_the_others_do_not() {
        let exps = naive_exponentials(&OVERFLOWING_ROW, DType::F16);
        assert_eq!(exps[3], f32::INFINITY);
        assert!(exps[4].is_finite());
        let (y, _) = run(Softmax::Naive, &OVERFLOWING_ROW, DType::F16);
        assert!(y[3].is_nan(), "∞ / ∞");
        assert_eq!(y[4], 0.0, "finite / ∞");
        let exact: Vec<f64> = {
            let exps = OVERFLOWING_ROW.map(|x| f64::from(x).exp());
            let sum: f64 = exps.iter().sum();
            exps.map(|e| e / sum).to_vec()
        };
        for softmax in [Softmax::Safe, Softmax::Online] {
            let (y, _) = run(softmax, &OVERFLOWING_ROW, DType::F16);
            for (y, exact) in y.iter().zip(&exact) {
                assert!(
                    (f64::from(*y) - exact).abs() < 1e-3,
                    "{softmax:?}: {y} for {exact}"
                );
            }
        }
    }

    #[test]
    fn passes() {
        for (softmax, passes) in [
            (Softmax::Naive, 2),
            (Softmax::Safe, 3),
            (Softmax::Online, 2),
        ] {
            let (y, counted) = run(softmax, &[1.0, 3.0, 2.0], DType::F32);
            assert_eq!(counted, passes, "{softmax:?}");
            assert!((y.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert!((y[1] / y[2] - 1f32.exp()).abs() < 1e-5);
        }
    }

    /// A row may begin with hidden scores.
    #[test]
    fn online_begins_with_hidden_scores() {
        let (y, _) = run(Softmax::Online, &[f32::NEG_INFINITY, 2.0, 2.0], DType::F32);
        assert_eq!(y, [0.0, 0.5, 0.5]);
    }
}
