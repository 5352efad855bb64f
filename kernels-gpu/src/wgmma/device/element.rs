//! What the max-free loop has to know about an element type.

use cuda_std::half::{Bf16, F16, Half};
use cuda_std::mma_sync::MmaSync;

/// A 16-bit element type of q, k, v and o.
pub trait Element: Half + MmaSync {
    /// A thread's part of a block's sum above which the block is done again by the online softmax: probabilities
    /// may have been rounded to ∞ then, or the sum be beyond what [`Rows::lower`] has an exact factor for.
    ///
    /// [`Rows::lower`]: super::softmax::Rows::lower
    const HUGE_SUM: f32;
}

impl Element for Bf16 {
    /// It has f32's exponents.
    const HUGE_SUM: f32 = power_of_two(120);
}

impl Element for F16 {
    /// Its largest number is just below 2¹⁶.
    const HUGE_SUM: f32 = power_of_two(15);
}

const fn power_of_two(exponent: u32) -> f32 {
    f32::from_bits((127 + exponent) << 23)
}
