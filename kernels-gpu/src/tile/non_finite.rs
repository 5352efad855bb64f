//! Keeps ∞ and NaN out of outputs that do not see them, in the kernels that multiply on tensor cores.
//!
//! Two things make an element of O non-finite although nothing that its row sees explains it:
//!
//! * **Masking.** A key that is masked out has probability 0, and 0 · ∞ and 0 · NaN are NaN: one infinity in V would spoil
//!   every row of the tile.
//! * **Overflow.** Σ pⱼ vⱼ may leave f32's range before it is divided by Σ pⱼ, above all under a stale maximum
//!   ([`row_state`](super::row_state)).
//!
//! The fast path checks for neither. Both show in its results, as an output or a sum that is not finite, which is rare
//! enough for a slow fix-up in the same launch. The fix-up has two forms:
//!
//! | | `mma::non_finite` | `wgmma::forward::non_finite` |
//! |---|---|---|
//! | unit | the block recomputes the tile, on the exact path | the warp recomputes single elements |
//! | masking | `NonFiniteMask`: `sanitize_v` takes the non-finite elements out of V's stage and has `record` note, for each row that sees their key, what they were; `apply` puts that into the output | `NonFiniteFixup` sums over the visible keys alone, from global memory |
//! | overflow | the online softmax never lets a probability exceed 1 | probabilities are normalised before they are multiplied |
//! | reason | a block holds all of V's stage, and only its own warps wait for it | V's stages belong to a cluster, whose other warps continue; only the warp's own rows may wait |
//!
//! Where V has an infinity that a row does see, both give the value of the formula: ∞ of its sign, or NaN where a row
//! sees both signs or a NaN. Elements that are rightly non-finite would cost `NonFiniteFixup` as much as the others, so
//! it first checks whether V's elements that all rows of the warp see in the column explain them.

use cuda_std::half::{Half, SIGN};

/// Bits of an element in a word that holds two, and their mask.
pub const ELEMENT_BITS: u32 = u16::BITS;
pub const ELEMENT_MASK: u32 = u16::MAX as u32;

/// Shift of element `i` of an array of words in its own word.
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
