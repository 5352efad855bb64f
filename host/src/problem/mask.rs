use std::fmt;

use kernels_gpu::abi::{Band, Corner, MaskParams};

/// Which keys a query may see.
///
/// Positions are aligned to the bottom-right corner: query `i` stands at key position
/// `c = i + seq_kv - seq_q`, so the last query always sees the last key. Only [`Band`](Self::Band) is counted from the
/// top-left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mask {
    /// Every key.
    #[default]
    None,
    /// Keys up to and including position `c`.
    Causal,
    /// Keys from `c - left` to `c + right`, both included; `None` leaves that side open.
    ///
    /// Causal attention over a sliding window is `Window { left: Some(n), right: Some(0) }`.
    Window {
        /// Keys visible before position `c`.
        left: Option<u32>,
        /// Keys visible after position `c`.
        right: Option<u32>,
    },
    /// Keys `j` with `lower <= j - i <= upper`, whatever the lengths; `None` leaves that side open.
    ///
    /// `Band { lower: None, upper: Some(0) }` is what PyTorch's `scaled_dot_product_attention` calls `is_causal`, which
    /// differs from [`Causal`](Self::Causal) where seq_q is not seq_kv.
    Band {
        /// Least distance of a visible key; negative before the query.
        lower: Option<i32>,
        /// Largest distance of a visible key.
        upper: Option<i32>,
    },
}

impl Mask {
    /// The causal mask counted from the top-left corner: query `i` sees the keys `0..=i`.
    pub const CAUSAL_TOP_LEFT: Self = Self::Band {
        lower: None,
        upper: Some(0),
    };

    /// Keys from `left` before to `right` after position `c`, as FlashAttention's `window_size` says; `None` leaves a side open.
    pub const fn within(left: Option<u32>, right: Option<u32>) -> Self {
        match (left, right) {
            (None, None) => Self::None,
            (None, Some(0)) => Self::Causal,
            (left, right) => Self::Window { left, right },
        }
    }

    /// The same distances, with positions counted from the top-left corner.
    pub fn from_top_left(self) -> Self {
        // No sequence is as long as the largest i32.
        let side = |keys: u32| i32::try_from(keys).unwrap_or(i32::MAX);
        match self {
            Self::Causal => Self::CAUSAL_TOP_LEFT,
            Self::Window { left, right } => Self::Band {
                lower: left.map(|left| -side(left)),
                upper: right.map(side),
            },
            Self::None | Self::Band { .. } => self,
        }
    }

    /// Distances from the diagonal, `lower <= j - c <= upper`, and the corner that the diagonal ends in.
    const fn bounds(self) -> (Option<i64>, Option<i64>, Corner) {
        const fn widen(side: Option<i32>) -> Option<i64> {
            match side {
                Some(bound) => Some(bound as i64),
                None => None,
            }
        }
        match self {
            Self::None => (None, None, Corner::BottomRight),
            Self::Causal => (None, Some(0), Corner::BottomRight),
            Self::Window { left, right } => {
                let lower = match left {
                    Some(left) => Some(-(left as i64)),
                    None => None,
                };
                let upper = match right {
                    Some(right) => Some(right as i64),
                    None => None,
                };
                (lower, upper, Corner::BottomRight)
            }
            Self::Band { lower, upper } => (widen(lower), widen(upper), Corner::TopLeft),
        }
    }

    /// The keys that the queries of one sequence see, as bounds on `j - i`.
    ///
    /// Sequence lengths are below [`Band::OPEN`], so clamping to it never changes which keys are
    /// visible.
    #[doc(hidden)]
    pub fn band(self, seq_q: usize, seq_kv: usize) -> Band {
        let (lower, upper, corner) = self.bounds();
        let shift = match corner {
            Corner::TopLeft => 0,
            Corner::BottomRight => seq_kv as i64 - seq_q as i64,
        };
        let clamp = |bound: i64| (bound + shift).clamp(-OPEN, OPEN) as i32;
        let band = Band {
            lower: lower.map_or(-Band::OPEN, clamp),
            upper: upper.map_or(Band::OPEN, clamp),
        };
        // Kernels find blocks from the borders of a tile's first and last rows, which cross where there is nothing between: those
        // of dS that one kernel left out, another would read.
        match band.lower <= band.upper {
            true => band,
            false => Band::EMPTY,
        }
    }

    /// The mask as a launch takes it whose sequences may differ in length, none longer than `longest_q` and
    /// `longest_kv`: kernels move the band of a mask that is aligned to the bottom-right corner by each sequence's own
    /// lengths.
    ///
    /// A side that no sequence is long enough to feel is open, so that the moved bounds fit an i32.
    pub(crate) fn of_each_sequence(self, longest_q: usize, longest_kv: usize) -> MaskParams {
        let (lower, upper, corner) = self.bounds();
        if matches!(corner, Corner::TopLeft) {
            return MaskParams::new(self.band(longest_q, longest_kv), corner);
        }
        let lower = lower.filter(|&lower| -lower < longest_kv as i64);
        let upper = upper.filter(|&upper| upper < longest_q as i64);
        let band = Band {
            lower: lower.map_or(-Band::OPEN, |lower| lower as i32),
            upper: upper.map_or(Band::OPEN, |upper| upper as i32),
        };
        MaskParams::new(band, corner)
    }

    /// The mask as a launch takes it whose sequences are all of these lengths.
    pub(crate) fn of_all(self, seq_q: usize, seq_kv: usize) -> MaskParams {
        MaskParams::new(self.band(seq_q, seq_kv), Corner::TopLeft)
    }
}

/// [`Band::OPEN`], widened.
const OPEN: i64 = Band::OPEN as i64;

impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn side<T: ToString>(bound: Option<T>) -> String {
            bound.map_or("∞".to_owned(), |bound| bound.to_string())
        }
        match *self {
            Self::None => f.write_str("no mask"),
            Self::Causal => f.write_str("causal"),
            Self::Window { left, right } => write!(f, "window {}:{}", side(left), side(right)),
            Self::Band { lower, upper } => write!(f, "band {}:{}", side(lower), side(upper)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_one_form() {
        assert_eq!(Mask::within(None, None), Mask::None);
        assert_eq!(Mask::within(None, Some(0)), Mask::Causal);
        let (left, right) = (Some(3), None);
        assert_eq!(Mask::within(left, right), Mask::Window { left, right });
        let (left, right) = (Some(0), Some(0));
        assert_eq!(Mask::within(left, right), Mask::Window { left, right });
    }

    #[test]
    fn from_the_top_left_distances_are_the_same() {
        let sides = [None, Some(0), Some(2), Some(u32::MAX)];
        for (left, right) in sides
            .iter()
            .flat_map(|left| sides.map(|right| (*left, right)))
        {
            let mask = Mask::within(left, right);
            let moved = mask.from_top_left();
            // Where both corners are one, so are the masks.
            assert_eq!(moved.band(9, 9), mask.band(9, 9), "{mask}");
            assert_eq!(moved.from_top_left(), moved);
            assert_eq!(moved.band(9, 5), mask.band(5, 5), "{mask}");
        }
    }

    #[test]
    fn the_band_is_aligned_to_the_bottom_right() {
        assert_eq!(Mask::None.band(5, 9), Band::FULL);
        let causal = Mask::Causal.band(5, 9);
        assert_eq!((causal.lower, causal.upper), (-Band::OPEN, 4));
        let window = Mask::Window {
            left: Some(2),
            right: Some(u32::MAX),
        };
        let band = window.band(9, 5);
        assert_eq!((band.lower, band.upper), (-6, Band::OPEN));
        let nothing = Mask::Band {
            lower: Some(0),
            upper: Some(-3),
        };
        assert_eq!(nothing.band(4, 1), Band::EMPTY);
        let band = Mask::CAUSAL_TOP_LEFT.band(9, 5);
        assert_eq!((band.lower, band.upper), (-Band::OPEN, 0));
    }

    /// Kernels see the same keys of a sequence, whether its band was aligned by the host or by them.
    #[test]
    fn aligning_a_band_later_shows_the_same_keys() {
        const LONGEST: usize = 5;
        let sides = [
            None,
            Some(0),
            Some(1),
            Some(3),
            Some(4),
            Some(5),
            Some(u32::MAX),
        ];
        let windows = sides
            .into_iter()
            .flat_map(|left| sides.map(|right| Mask::Window { left, right }));
        let edges = [None, Some(-9), Some(-2), Some(0), Some(3), Some(i32::MIN)];
        let bands = edges
            .into_iter()
            .flat_map(|lower| edges.map(|upper| Mask::Band { lower, upper }));
        for mask in windows.chain(bands) {
            let params = mask.of_each_sequence(LONGEST, LONGEST + 1);
            for seq_q in 0..=LONGEST {
                for seq_kv in 0..=LONGEST + 1 {
                    let aligned = params.of_sequence(seq_q as u32, seq_kv as u32);
                    let band = mask.band(seq_q, seq_kv);
                    for (i, j) in (0..seq_q).flat_map(|i| (0..seq_kv).map(move |j| (i, j))) {
                        let distance = j as i32 - i as i32;
                        let sees = |b: Band| b.lower <= distance && distance <= b.upper;
                        assert_eq!(
                            sees(aligned),
                            sees(band),
                            "{mask:?} {seq_q}x{seq_kv} {i},{j}"
                        );
                    }
                }
            }
        }
        let far = Mask::Window {
            left: Some(u32::MAX),
            right: Some(Band::OPEN as u32 - 1),
        };
        assert_eq!(far.of_each_sequence(9, 9).band, Band::FULL);
    }
}
