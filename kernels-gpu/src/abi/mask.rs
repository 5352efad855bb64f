//! The keys that a query sees.

use bytemuck::{Pod, Zeroable};

/// Keys a query may see: key `j` is visible to query `i` iff `lower <= j - i <= upper`.
///
/// Causal and window masks are both bands. An open side is [`Band::OPEN`] away.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Band {
    pub lower: i32,
    pub upper: i32,
}

impl Band {
    /// Bound that no `j - i` reaches: sequence lengths are below it.
    pub const OPEN: i32 = 1 << 30;
    /// Every key is visible to every query.
    pub const FULL: Self = Self {
        lower: -Self::OPEN,
        upper: Self::OPEN,
    };

    /// No key is visible to any query, and no tile sees a block.
    pub const EMPTY: Self = Self {
        lower: 0,
        upper: -Self::OPEN,
    };

    /// The same pairs with queries and keys exchanged: `lower <= j - i <= upper` is `-upper <= i - j <= -lower`.
    #[inline(always)]
    pub const fn transposed(self) -> Self {
        Self {
            lower: -self.upper,
            upper: -self.lower,
        }
    }

    /// A band given from the top-left corner, moved to the bottom-right one; open sides stay open.
    #[inline(always)]
    pub const fn bottom_right(self, seq_q: u32, seq_kv: u32) -> Self {
        let shift = seq_kv as i32 - seq_q as i32;
        Self {
            lower: if self.lower == -Self::OPEN {
                self.lower
            } else {
                self.lower + shift
            },
            upper: if self.upper == Self::OPEN {
                self.upper
            } else {
                self.upper + shift
            },
        }
    }
}

/// The corner of the score matrix, `seq_q` × `seq_kv`, from which a launch's band is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corner {
    /// The band is the same for every sequence: it is counted from there, or the host has moved it already.
    TopLeft,
    /// The kernel moves the band by each sequence's own `seq_kv - seq_q` ([`Band::bottom_right`]).
    BottomRight,
}

/// The mask of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct MaskParams {
    /// The band, counted from [`MaskParams::corner`].
    pub band: Band,
    /// A [`Corner`] as a number.
    corner: u32,
}

impl MaskParams {
    /// A band counted from `corner`.
    pub const fn new(band: Band, corner: Corner) -> Self {
        Self {
            band,
            corner: corner as u32,
        }
    }

    /// The corner that the band is counted from.
    #[inline(always)]
    pub const fn corner(&self) -> Corner {
        if self.corner == Corner::TopLeft as u32 {
            Corner::TopLeft
        } else {
            Corner::BottomRight
        }
    }

    /// The band of a sequence.
    #[inline(always)]
    pub const fn of_sequence(&self, seq_q: u32, seq_kv: u32) -> Band {
        match self.corner() {
            Corner::TopLeft => self.band,
            Corner::BottomRight => self.band.bottom_right(seq_q, seq_kv),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bottom_right_moves_finite_sides_only() {
        let causal = Band {
            lower: -Band::OPEN,
            upper: 0,
        };
        assert_eq!(
            causal.bottom_right(7, 3),
            Band {
                lower: -Band::OPEN,
                upper: -4
            }
        );
        assert_eq!(
            Band::FULL.bottom_right(1, Band::OPEN as u32 - 1),
            Band::FULL
        );
        let window = Band {
            lower: -5,
            upper: 2,
        };
        assert_eq!(
            window.bottom_right(3, 7),
            Band {
                lower: -1,
                upper: 6
            }
        );
    }
}
