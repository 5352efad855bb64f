//! Properties of an element type beyond how to convert and multiply it.

use cuda_std::half::{Bf16, F16, Half};
use cuda_std::mma_sync::MmaSync;

use crate::units::pow2;

/// A 16-bit element type of q, k, v and o.
pub trait Element: Half + MmaSync {
    /// See [`RowState::block_max`](crate::tile::row_state::RowState::block_max): by how many bits the largest probability is
    /// kept below 1.
    const SHIFT: f32;
    /// Rows whose probabilities sum to less may keep a stale maximum.
    const STALE_SUM_LIMIT: f32;
}

impl Element for Bf16 {
    /// bf16 has f32's exponents: no sum of up to 2³⁰ products `p · v` can overflow before it is normalised, and what
    /// underflows is below 2⁻⁹⁶ of the largest probability.
    const SHIFT: f32 = 30.0;
    /// Half of the range that is left above the largest probability.
    const STALE_SUM_LIMIT: f32 = pow2(40);
}

impl Element for F16 {
    /// Small probabilities lose bits below 2⁻¹⁴; products cannot overflow.
    const SHIFT: f32 = 0.0;
    const STALE_SUM_LIMIT: f32 = pow2(14);
}
