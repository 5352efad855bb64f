//! Keeping ∞ and NaN out of outputs that do not see them, for the 16-bit kernels.
//!
//! Two things make an element of O non-finite without a reason in what its row sees:
//!
//! * **Masking.** A key that is masked out has probability 0, and 0 · ∞ and 0 · NaN are NaN: one infinity in V would spoil
//!   every row of the tile.
//! * **Overflow.** Σ pⱼ vⱼ may leave f32's range before it is divided by Σ pⱼ, above all under a stale maximum
//!   ([`row_state`](super::row_state)).
//!
//! The fast path checks for neither. Both show in what it leaves, as an output or a sum that is not finite, which is rare
//! enough for a slow cure in the same launch. It has two forms:
//!
//! | | `mma::non_finite` | `wgmma::forward::non_finite` |
//! |---|---|---|
//! | who | the block: it computes the tile again, on the exact path | the warp: it computes single elements again |
//! | masking | `NonFiniteMask`: `sanitize_v` takes the non-finite elements out of V's stage and has `record` note, for each row that sees their key, what they were; `apply` puts that into the output | `NonFiniteFixup` sums over the visible keys alone, from global memory |
//! | overflow | the online softmax never lets a probability exceed 1 | probabilities are normalised before they are multiplied |
//! | why so | a block holds all of V's stage, and only its own warps wait for it | V's stages belong to a cluster, whose other warps go on; nothing but the warp's own rows may wait |
//!
//! Where V has an infinity that a row does see, both give what the formula gives: ∞ of its sign, or NaN where a row sees both
//! signs or a NaN. Elements that are rightly so would cost `NonFiniteFixup` as much as the others, so it first looks whether
//! what all rows of the warp see in their column explains them.

use cuda_std::half::{Half, SIGN};

/// Bits of an element in a word of two, and a mask of them.
pub const ELEMENT_BITS: u32 = u16::BITS;
pub const ELEMENT_MASK: u32 = u16::MAX as u32;

/// Where element `i` of some words lies in its own.
#[inline(always)]
pub const fn shift(i: usize) -> u32 {
    i as u32 % 2 * ELEMENT_BITS
}

/// Whether an element is ∞, −∞ or NaN.
#[inline(always)]
pub fn is_non_finite<E: Half>(element: u32) -> bool {
    element & !SIGN >= E::INFINITY
}

/// Whether an element is NaN.
#[inline(always)]
pub fn is_nan<E: Half>(element: u32) -> bool {
    element & !SIGN > E::INFINITY
}

/// Whether an element is +∞.
#[inline(always)]
pub fn is_plus_infinity<E: Half>(element: u32) -> bool {
    element == E::INFINITY
}

/// Whether an element is −∞.
#[inline(always)]
pub fn is_minus_infinity<E: Half>(element: u32) -> bool {
    element == E::INFINITY | SIGN
}
