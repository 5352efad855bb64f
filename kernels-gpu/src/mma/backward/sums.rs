//! The sums of a tile, and which of them an attempt computes.

use super::MmaBackwardKernel;
use super::non_finite::Marks;
use super::tile::Smem;
use crate::backward::side::Side;
use crate::math::fma;
use crate::tile::black_box;

/// A lane's part of the sums of a tile.
pub struct Sums<const ROWS: usize, const COLS: usize> {
    /// dQ or dK, times 2^−`exponent`.
    pub first: [[f32; COLS]; ROWS],
    /// dV.
    pub second: [[f32; COLS]; ROWS],
    /// κ of the head that passes.
    pub exponent: i32,
}

impl<const ROWS: usize, const COLS: usize> Sums<ROWS, COLS> {
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            first: [[0.0; COLS]; ROWS],
            second: [[0.0; COLS]; ROWS],
            exponent: 0,
        }
    }

    /// Makes the sums 0 that the attempt takes.
    #[inline(always)]
    pub fn clear<K: MmaBackwardKernel>(&mut self, attempt: Attempt) {
        if attempt.takes_first() {
            self.first = [[0.0; COLS]; ROWS];
            self.exponent = 0;
        }
        if attempt.takes_second::<K>() {
            self.second = [[0.0; COLS]; ROWS];
        }
    }

    /// Whether a sum is not finite.
    #[inline(always)]
    pub fn has_overflowed<K: MmaBackwardKernel>(&self) -> bool {
        // A sum of zeros becomes NaN with the first number that is not finite.
        let mut zero = 0.0;
        for i in 0..ROWS {
            for j in 0..COLS {
                zero = fma(self.first[i][j], 0.0, zero);
                if K::Side::HAS_SECOND {
                    zero = fma(self.second[i][j], 0.0, zero);
                }
            }
        }
        zero != 0.0
    }
}

/// The part of a tile that is computed in one go: everything at first, and where that fails, one sum after the other, each beside the
/// marks of what it must not leave finite, which take the place of what is not computed.
#[derive(Clone, Copy)]
pub struct Attempt(
    // One number: of several, LLVM would keep the struct in local memory.
    u32,
);

impl Attempt {
    const FAST: u32 = 0;
    const FIRST: u32 = 1;
    const SECOND: u32 = 2;

    #[inline(always)]
    pub fn fast() -> Self {
        Self(Self::FAST)
    }

    /// The attempt that follows where this one has failed, or is one of several.
    #[inline(always)]
    pub fn next<K: MmaBackwardKernel>(self) -> Self {
        if K::Side::HAS_SECOND && !self.is_careful() {
            Self(Self::SECOND)
        } else {
            Self(Self::FIRST)
        }
    }

    /// Hidden from the optimiser, which would make a loop of its own for each attempt.
    #[inline(always)]
    fn number(self) -> u32 {
        black_box(self.0)
    }

    #[inline(always)]
    pub fn is_careful(self) -> bool {
        self.number() != Self::FAST
    }

    #[inline(always)]
    pub fn takes_first(self) -> bool {
        self.number() != Self::SECOND
    }

    #[inline(always)]
    pub fn takes_second<K: MmaBackwardKernel>(self) -> bool {
        K::Side::HAS_SECOND && self.number() != Self::FIRST
    }

    /// The marks of a careful attempt.
    #[inline(always)]
    pub fn marks<K: MmaBackwardKernel>(self) -> Marks {
        let [ds_smem, p_smem] = Smem::ds_and_p::<K>(0);
        Marks::new(if self.takes_first() { p_smem } else { ds_smem })
    }
}
