//! f32 arithmetic as single instructions.
//!
//! PTX ISA, "Floating-Point Instructions". The approximate functions flush subnormals to zero.

unsafe extern "unadjusted" {
    #[link_name = "llvm.fma.f32"]
    fn llvm_fma(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.nvvm.fmax.f"]
    fn nvvm_fmax(a: f32, b: f32) -> f32;
    #[link_name = "llvm.nvvm.ex2.approx.ftz.f32"]
    fn nvvm_ex2(x: f32) -> f32;
    #[link_name = "llvm.nvvm.lg2.approx.ftz.f"]
    fn nvvm_lg2(x: f32) -> f32;
    #[link_name = "llvm.nvvm.rcp.approx.ftz.f"]
    fn nvvm_rcp(x: f32) -> f32;
}

/// `a · b + c`, rounded once (`fma.rn.f32`).
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    // SAFETY: pure arithmetic.
    unsafe { llvm_fma(a, b, c) }
}

/// The larger of two numbers; a NaN loses against a number (`max.f32`).
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    // SAFETY: pure arithmetic.
    unsafe { nvvm_fmax(a, b) }
}

/// 2ˣ within 2 ulp (`ex2.approx.ftz.f32`); 2^−∞ = 0.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // SAFETY: pure arithmetic.
    unsafe { nvvm_ex2(x) }
}

/// log₂ x with absolute error below 2⁻²² (`lg2.approx.ftz.f32`); log₂ 0 = −∞.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    // SAFETY: pure arithmetic.
    unsafe { nvvm_lg2(x) }
}

/// 1 / x within 1 ulp (`rcp.approx.ftz.f32`).
#[inline(always)]
pub fn recip(x: f32) -> f32 {
    // SAFETY: pure arithmetic.
    unsafe { nvvm_rcp(x) }
}

/// tanh x, absolute error below 2⁻²².
///
/// Built from [`exp2`] because `tanh.approx.f32` is good to 2⁻¹¹ only. Near zero, where
/// `1 − 2 / (e²ˣ + 1)` cancels, a polynomial takes over.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    const TWO_LOG2_E: f32 = 2.0 * core::f32::consts::LOG2_E;
    /// Magnitudes below which [`tanh_near_zero`] holds.
    const NEAR_ZERO: f32 = 0.5;
    let near_zero = tanh_near_zero(x);
    let magnitude = x.abs();
    let elsewhere = fma(-2.0, recip(exp2(magnitude * TWO_LOG2_E) + 1.0), 1.0).copysign(x);
    if magnitude < NEAR_ZERO {
        near_zero
    } else {
        elsewhere
    }
}

/// tanh x for |x| below ½, within 2⁻²⁴ of itself before rounding, by six operations that are no exponentials: tanh x / x − 1 over x²
/// is a polynomial of x², through its values at the Chebyshev nodes of 0 to ¼.
#[inline(always)]
fn tanh_near_zero(x: f32) -> f32 {
    const SERIES: [f32; 4] = [-0.333_333_1, 0.133_304_76, -0.053_387_11, 0.017_988_744];
    let square = x * x;
    fma(x * square, polynomial(&SERIES, square), x)
}

/// Σᵢ cᵢ xⁱ by Horner's rule.
#[inline(always)]
pub fn polynomial<const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    let mut sum = coefficients[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = fma(x, sum, coefficients[i]);
    }
    sum
}
