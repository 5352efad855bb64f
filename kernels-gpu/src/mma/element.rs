//! The two element types, as zero-sized policies.

use cuda_std::half::{pack_bf16, pack_f16};
use cuda_std::mma_sync::{mma_bf16, mma_f16};

/// A 16-bit element type of q, k, v and o.
pub trait Element {
    /// See [`crate::tile::softmax`]: how far below 1 the largest probability is kept.
    const SHIFT: f32;
    /// A row whose probabilities sum to less may go on without looking for a new maximum.
    const SETTLED_LIMIT: f32;
    /// log₂ of the largest probability that rounds to a finite element, if one may well exceed it under the reference of
    /// an earlier block; scores are then checked against it once a tile has failed.
    const LARGEST_EXPONENT: Option<f32>;
    /// Bits of +∞; larger magnitudes are NaN.
    const INFINITY: u32;

    /// Rounds two numbers to a pair of elements, the first in the lower half.
    fn pack(low: f32, high: f32) -> u32;

    /// `a · b + c` on the fragments of [`cuda_std::mma_sync`].
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
}

/// `__nv_bfloat16`: f32 cut to 16 bits.
pub struct Bf16;

impl Element for Bf16 {
    /// bf16 has f32's exponents: no sum of up to 2³⁰ products `p · v` can overflow before it is normalised, and what
    /// underflows is below 2⁻⁹⁶ of the largest probability.
    const SHIFT: f32 = 30.0;
    /// Half of the range that is left above the largest probability.
    const SETTLED_LIMIT: f32 = (1u64 << 40) as f32;
    /// What overflows bf16 overflows the sum too, which the end of the tile notices.
    const LARGEST_EXPONENT: Option<f32> = None;
    const INFINITY: u32 = 0x7f80;

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        pack_bf16(low, high)
    }

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: forwarded to the caller.
        unsafe { mma_bf16(a, b, c) }
    }
}

/// IEEE binary16.
pub struct F16;

impl Element for F16 {
    /// Small probabilities lose bits below 2⁻¹⁴; products cannot overflow.
    const SHIFT: f32 = 0.0;
    const SETTLED_LIMIT: f32 = (1u64 << 14) as f32;
    const LARGEST_EXPONENT: Option<f32> = Some(15.0);
    const INFINITY: u32 = 0x7c00;

    #[inline(always)]
    fn pack(low: f32, high: f32) -> u32 {
        pack_f16(low, high)
    }

    #[inline(always)]
    unsafe fn mma(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: forwarded to the caller.
        unsafe { mma_f16(a, b, c) }
    }
}
