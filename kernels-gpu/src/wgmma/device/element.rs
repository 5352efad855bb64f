//! What the max-free loop has to know about an element type.

use cuda_std::half::{Bf16, F16, Half};
use cuda_std::mma_sync::MmaSync;

/// A 16-bit element type of q, k, v and o.
pub trait Element: Half + MmaSync {
    /// Whether it has f32's exponents: a probability that is finite in f32 stays so when rounded.
    const WIDE: bool;
}

impl Element for Bf16 {
    const WIDE: bool = true;
}

impl Element for F16 {
    const WIDE: bool = false;
}
