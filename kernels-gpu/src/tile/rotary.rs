//! Rotary position embedding (Su et al. 2021, "RoFormer", eq. 34): pairs of components, turned by angles that grow with the
//! position. Shared by the kernel and the CPU, so that both round alike.

use crate::math::fma;

/// The components of pair number `pair` of the first `rotary_dim`: neighbours where they are interleaved (GPT-J), else one of
/// each half (GPT-NeoX).
#[inline(always)]
pub const fn components(pair: u32, rotary_dim: u32, is_interleaved: bool) -> [u32; 2] {
    if is_interleaved {
        [2 * pair, 2 * pair + 1]
    } else {
        [pair, pair + rotary_dim / 2]
    }
}

/// The pair `[x, y]`, turned by the angle of this cosine and sine.
#[inline(always)]
pub fn rotate([x, y]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [fma(x, cos, -(y * sin)), fma(y, cos, x * sin)]
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn pairs_are_all_components_once() {
        for is_interleaved in [false, true] {
            for rotary_dim in [2, 6, 64] {
                let pairs = 0..rotary_dim / 2;
                let mut all: Vec<_> = pairs
                    .flat_map(|pair| components(pair, rotary_dim, is_interleaved))
                    .collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..rotary_dim));
            }
        }
        assert_eq!(components(1, 6, false), [1, 4]);
        assert_eq!(components(1, 6, true), [2, 3]);
    }

    #[test]
    fn a_quarter_turn_takes_x_to_y() {
        assert_eq!(rotate([3.0, 5.0], 0.0, 1.0), [-5.0, 3.0]);
    }
}
