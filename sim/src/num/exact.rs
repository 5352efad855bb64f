//! f64 operations rounded to odd.

/// Makes an inexact result odd: `error` is the sign of (exact − value).
fn sticky(value: f64, error: f64) -> f64 {
    if error == 0.0 || !value.is_finite() || value.to_bits() & 1 == 1 {
        return value;
    }
    // Even and inexact: the odd neighbour on the side of the exact value.
    if value == 0.0 {
        return f64::from_bits(1).copysign(error);
    }
    let away = (error > 0.0) == (value > 0.0);
    f64::from_bits(if away {
        value.to_bits() + 1
    } else {
        value.to_bits() - 1
    })
}

/// a + b (Knuth's two-sum gives the exact error).
pub(crate) fn add(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    sticky(sum, error)
}

/// a · b for operands of at most 26 significant bits: exact.
pub(crate) fn mul(a: f64, b: f64) -> f64 {
    a * b
}

/// a · b + c for factors of at most 26 significant bits.
pub(crate) fn fma(a: f64, b: f64, c: f64) -> f64 {
    add(a * b, c)
}

/// a / b.
pub(crate) fn div(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || q == 0.0 || !b.is_finite() {
        return q;
    }
    let remainder = (-q).mul_add(b, a);
    sticky(q, if b > 0.0 { remainder } else { -remainder })
}

/// √a.
pub(crate) fn sqrt(a: f64) -> f64 {
    let root = a.sqrt();
    if !root.is_finite() || root == 0.0 {
        return root;
    }
    sticky(root, (-root).mul_add(root, a))
}

/// An integer.
pub(crate) fn int(value: i128) -> f64 {
    let magnitude = value.unsigned_abs();
    let bits = 128 - magnitude.leading_zeros();
    let result = if bits <= 53 {
        magnitude as f64
    } else {
        // Keep 53 bits, the last of them sticky.
        let shift = bits - 53;
        let kept = magnitude >> shift;
        let lost = magnitude & ((1 << shift) - 1) != 0;
        ((kept | u128::from(lost)) as f64) * 2f64.powi(shift as i32)
    };
    if value < 0 { -result } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inexact_results_are_odd() {
        let tiny = 2f64.powi(-80);
        assert_eq!(add(1.0, tiny).to_bits(), 1f64.to_bits() + 1);
        assert_eq!(add(1.0, -tiny).to_bits(), 1f64.to_bits() - 1);
        assert_eq!(add(1.0, 1.0), 2.0);
        assert_eq!(div(1.0, 4.0), 0.25);
        assert_eq!(div(1.0, 3.0).to_bits() & 1, 1);
        assert_eq!(sqrt(2.0).to_bits() & 1, 1);
        assert_eq!(int((1 << 60) + 1).to_bits() & 1, 1);
        assert_eq!(int(-(1 << 60)), -(2f64.powi(60)));
    }
}
