//! Scales of a lane's keys, and of the values, of an e4m3 cache.

use core::ops::RangeInclusive;

use cuda_std::global;
use cuda_std::warp::{broadcast, lane_id};

use super::super::step::{SLACK, Scores, largest};
use super::super::tile::Tile;
use super::super::work::Word;
use crate::abi::ScaleArg;
use crate::layout::fragment::row_column;
use crate::math::fma;
use crate::tile::black_box;
use crate::units::{EXPONENT_BIAS, EXPONENT_SHIFT, F32_BYTES};

/// Bits by which a reference keeps probabilities times their values' scales above 1: they are below 2¹⁵ then, with what scores may be
/// above it, and what becomes 0 in f16 is below 2⁻³² of the largest.
const SHIFT: f32 = 14.0 - SLACK;
/// Exponent fields of scales that references follow: below them probabilities, which are f32, would become too large to be added up, so
/// that f16 loses bits; above them no number is finite.
const EXPONENTS: RangeInclusive<u32> = EXPONENT_BIAS - 80..=EXPONENT_BIAS + 119;

/// The scale of all keys of the item's head, or of all values; 1 where keys have their own, or none.
///
/// # Safety
/// The item is described, and the scales are live.
#[inline(always)]
pub unsafe fn of_head(tile: &Tile<'_>, scale: &ScaleArg) -> f32 {
    let Some(base) = scale.of_head() else {
        return 1.0;
    };
    let offset = tile.get(Word::HeadKv) as i64 * scale.head_stride * F32_BYTES as i64;
    f32::from_bits(global::load_u32(base.get().wrapping_add_signed(offset)))
}

/// Scales of one key, and of its value, where keys have their own.
#[derive(Clone, Copy)]
pub struct KeyScales {
    k: f32,
    v: f32,
}

impl KeyScales {
    /// Of no key.
    pub const NONE: Self = Self { k: 0.0, v: 0.0 };

    /// Those of the key in `place` of `page`, if keys have their own.
    ///
    /// # Safety
    /// The item is described, the key is there, and scales are live.
    #[inline(always)]
    pub unsafe fn load(tile: &Tile<'_>, page: u32, place: u32) -> Self {
        let head = tile.get(Word::HeadKv);
        let load = |scale: &ScaleArg| match scale.of_keys() {
            Some(base) => {
                let elements = page as i64 * scale.page_stride
                    + head as i64 * scale.head_stride
                    + place as i64 * scale.place_stride;
                let address = base.get().wrapping_add_signed(elements * F32_BYTES as i64);
                // SAFETY: the caller vouches for them.
                f32::from_bits(unsafe { global::load_u32(address) })
            }
            None => 0.0,
        };
        Self {
            k: load(&tile.scales.k),
            v: load(&tile.scales.v),
        }
    }
}

/// Scales of the keys of a lane's scores, where keys have their own.
pub struct Scales<const S_COLS: usize> {
    k: [f32; S_COLS],
    v: [f32; S_COLS],
}

impl<const S_COLS: usize> Scales<S_COLS> {
    /// From those of each lane's key.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn of_keys(tile: &Tile<'_>, own: &KeyScales) -> Self {
        let mut scales = Self {
            k: [0.0; S_COLS],
            v: [0.0; S_COLS],
        };
        let lane = black_box(lane_id());
        for j in 0..S_COLS {
            let key = row_column(lane, j as u32);
            if tile.scales.k.of_keys().is_some() {
                scales.k[j] = broadcast(own.k, key);
            }
            if tile.scales.v.of_keys().is_some() {
                scales.v[j] = broadcast(own.v, key);
            }
        }
        scales
    }

    /// Makes scores of products, by the factors of their rows and the scales of their keys.
    #[inline(always)]
    pub fn scale<const HALVES: usize>(
        &self,
        tile: &Tile<'_>,
        products: &mut Scores<HALVES, S_COLS>,
        factors: &[f32; HALVES],
    ) {
        for i in 0..HALVES {
            for j in 0..S_COLS {
                products[i][j] *= factors[i];
            }
        }
        if tile.scales.k.of_keys().is_some() {
            for row in products {
                for j in 0..S_COLS {
                    row[j] *= self.k[j];
                }
            }
        }
    }

    /// What a row's reference has to be at least, in bits, for this lane's scores of it: with the exponents of the values' scales.
    #[inline(always)]
    pub fn reference(&self, tile: &Tile<'_>, scores: &[f32; S_COLS], scale_log2: f32) -> f32 {
        if tile.scales.v.of_keys().is_none() {
            return fma(largest(scores), scale_log2, -SHIFT);
        }
        let mut bits = [0.0; S_COLS];
        for j in 0..S_COLS {
            bits[j] = fma(scores[j], scale_log2, exponent(self.v[j]) - SHIFT);
        }
        largest(&bits)
    }

    /// Multiplies a row's probabilities with the scales of their values.
    #[inline(always)]
    pub fn weigh(&self, tile: &Tile<'_>, p: &mut [f32; S_COLS]) {
        if tile.scales.v.of_keys().is_some() {
            for j in 0..S_COLS {
                p[j] *= self.v[j];
            }
        }
    }
}

/// The exponent of a scale, among [`EXPONENTS`].
#[inline(always)]
fn exponent(scale: f32) -> f32 {
    const SIGN_BITS: u32 = 1;
    let field = scale.to_bits() << SIGN_BITS >> (SIGN_BITS + EXPONENT_SHIFT);
    field.clamp(*EXPONENTS.start(), *EXPONENTS.end()) as f32 - EXPONENT_BIAS as f32
}
