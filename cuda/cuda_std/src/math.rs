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
/// `1 − 2 / (e²ˣ + 1)` cancels, the odd Taylor polynomial takes over.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    const TWO_LOG2_E: f32 = 2.0 * core::f32::consts::LOG2_E;
    /// Below this the polynomial's next term, 1382/155925·x¹¹, is under 2⁻²⁷·x.
    const SMALL: f32 = 0.25;
    let square = x * x;
    let series = fma(square, 62.0 / 2835.0, -17.0 / 315.0);
    let series = fma(square, series, 2.0 / 15.0);
    let series = fma(square, series, -1.0 / 3.0);
    let near_zero = fma(x * square, series, x);
    let magnitude = x.abs();
    let elsewhere = fma(-2.0, recip(exp2(magnitude * TWO_LOG2_E) + 1.0), 1.0).copysign(x);
    if magnitude < SMALL {
        near_zero
    } else {
        elsewhere
    }
}
