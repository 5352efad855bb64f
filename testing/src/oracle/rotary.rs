//! Rotary position embedding in f64, from the formula: the pair `x + iy` is multiplied by `cos + i sin`.

use ferroflash::{DType, RotaryStyle};

/// A value, and how far a result may lie from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounded {
    /// The exact value.
    pub value: f64,
    /// The most that a right result differs from it.
    pub error: f64,
}

impl Bounded {
    /// Whether `found` may be a result: NaN where the value is, and nowhere else, and an infinity where the value is that one.
    pub fn allows(self, found: f64) -> bool {
        let Self { value, error } = self;
        match value.is_finite() {
            true => (found - value).abs() <= error,
            false => found == value || found.is_nan() && value.is_nan(),
        }
    }

    /// The value in units of `scale`, rounded to e4m3.
    pub fn as_code(self, scale: f64) -> Self {
        let largest = f64::from(kernels_gpu::e4m3::MAX);
        let value = (self.value / scale).clamp(-largest, largest);
        let rounding = (value.abs() * 2f64.powi(-4)).max(2f64.powi(-10));
        // The quotient is rounded too, and what is divided has been to f32 alone: a code's rounding is far more.
        let error = self.error / scale + rounding * (1.0 + 2f64.powi(-20));
        Self { value, error }
    }
}

/// `row`, whose first `2 · cos.len()` components are rotated, as it may be rounded to `dtype` after f32 arithmetic.
pub fn rotated_row(
    row: &[f64],
    cos: &[f64],
    sin: &[f64],
    style: RotaryStyle,
    dtype: DType,
) -> Vec<Bounded> {
    let pairs = cos.len();
    let exact = |&value: &f64| Bounded { value, error: 0.0 };
    let mut rotated: Vec<_> = row.iter().map(exact).collect();
    for pair in 0..pairs {
        let (first, second) = match style {
            RotaryStyle::Neox => (pair, pair + pairs),
            RotaryStyle::Interleaved => (2 * pair, 2 * pair + 1),
        };
        let (x, y, cos, sin) = (row[first], row[second], cos[pair], sin[pair]);
        rotated[first] = rounded([x * cos, -y * sin], dtype);
        rotated[second] = rounded([y * cos, x * sin], dtype);
    }
    rotated
}

/// A sum of two products in f32, then rounded to `dtype`.
fn rounded(terms: [f64; 2], dtype: DType) -> Bounded {
    // One product and the sum are rounded.
    let arithmetic = (terms[0].abs() + terms[1].abs()) * 2.0 * f64::from(f32::EPSILON / 2.0);
    let value = terms[0] + terms[1];
    let (unit, least) = match dtype {
        DType::F32 => (0.0, 0.0),
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        DType::Bf16 => (2f64.powi(-8), 2f64.powi(-134)),
        DType::E4m3 => (2f64.powi(-4), 2f64.powi(-10)),
    };
    let rounding = (unit * (value.abs() + arithmetic)).max(least);
    Bounded {
        value,
        error: arithmetic + rounding + f64::from(f32::MIN_POSITIVE),
    }
}
