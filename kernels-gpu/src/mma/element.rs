//! What the kernel has to know about an element type beyond how to pack and multiply it.

use cuda_std::half::{Bf16, F16, Half};
use cuda_std::mma_sync::MmaSync;

/// A 16-bit element type of q, k, v and o.
pub trait Element: Half + MmaSync {
    /// See [`crate::tile::softmax`]: how far below 1 the largest probability is kept.
    const SHIFT: f32;
    /// A row whose probabilities sum to less may go on without looking for a new maximum.
    const SETTLED_LIMIT: f32;
}

impl Element for Bf16 {
    /// bf16 has f32's exponents: no sum of up to 2³⁰ products `p · v` can overflow before it is normalised, and what
    /// underflows is below 2⁻⁹⁶ of the largest probability.
    const SHIFT: f32 = 30.0;
    /// Half of the range that is left above the largest probability.
    const SETTLED_LIMIT: f32 = (1u64 << 40) as f32;
}

impl Element for F16 {
    /// Small probabilities lose bits below 2⁻¹⁴; products cannot overflow.
    const SHIFT: f32 = 0.0;
    const SETTLED_LIMIT: f32 = (1u64 << 14) as f32;
}
