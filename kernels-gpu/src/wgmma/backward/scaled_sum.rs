//! A sum of products of dS, where dS is times 2^−κ, and so the sum.

use cuda_std::shared;
use cuda_std::warp::uniform;

use super::tile::Tile;
use crate::backward::exponent;
use crate::backward::side::Side;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::modifiers::Modifiers;
use crate::units::pow2;

/// κ of the head that is kept, if queries are, and dS is scaled.
///
/// # Safety
/// The tile is one of the launch; all lanes of the warp reach the same call.
#[inline(always)]
pub unsafe fn kept_exponent<S: Side, M: Modifiers>(tile: &Tile<S, M>, scales_ds: bool) -> i32 {
    if scales_ds && !S::HAS_SECOND {
        let rows = tile.extent().kept;
        exponent::of_head(tile.params, &tile.sequence(), rows, tile.head())
    } else {
        0
    }
}

/// What dS of a query head with κ `exponent` is times; 1 where dS is not scaled.
#[inline(always)]
pub fn factor(scales_ds: bool, exponent: i32) -> f32 {
    if scales_ds { pow2(-exponent) } else { 1.0 }
}

/// Takes κ of a block's query head in place of `exponent`, from its terms at `terms`, and rescales `sum` to it.
///
/// # Safety
/// The terms are visible, and no product of the sum is in flight; all lanes of the warp reach the same call.
#[inline(always)]
pub unsafe fn take_exponent<const SUM_REGS: usize>(
    exponent: &mut i32,
    sum: &mut [f32; SUM_REGS],
    terms: u32,
    config: &WgmmaBackwardConfig,
) {
    let of_block = uniform(shared::load_bits(terms + config.exponent_offset())) as i32;
    if of_block != *exponent {
        multiply(sum, *exponent - of_block);
        *exponent = of_block;
    }
}

/// Multiplies `sum` by 2^`exponent`.
#[inline(always)]
pub fn multiply<const SUM_REGS: usize>(sum: &mut [f32; SUM_REGS], exponent: i32) {
    let factor = pow2(exponent);
    for i in 0..SUM_REGS {
        sum[i] *= factor;
    }
}
