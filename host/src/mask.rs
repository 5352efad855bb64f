use kernels_gpu::abi::Band;

/// Which keys a query may see.
///
/// Positions are aligned to the bottom-right corner: query `i` stands at key position
/// `c = i + seq_kv - seq_q`, so the last query always sees the last key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
}

impl Mask {
    /// The window sides this mask leaves open or closes.
    pub(crate) const fn sides(self) -> (Option<u32>, Option<u32>) {
        match self {
            Self::None => (None, None),
            Self::Causal => (None, Some(0)),
            Self::Window { left, right } => (left, right),
        }
    }

    /// The mask as the kernels take it: bounds on `j - i`, bottom-right alignment included.
    ///
    /// Sequence lengths are below [`Band::OPEN`], so clamping to it never changes which keys are
    /// visible.
    pub(crate) fn band(self, seq_q: usize, seq_kv: usize) -> Band {
        let (left, right) = self.sides();
        let shift = seq_kv as i64 - seq_q as i64;
        let open = i64::from(Band::OPEN);
        let clamp = |bound: i64| bound.clamp(-open, open) as i32;
        Band {
            lower: left.map_or(-Band::OPEN, |left| clamp(shift - i64::from(left))),
            upper: right.map_or(Band::OPEN, |right| clamp(shift + i64::from(right))),
        }
    }

    /// The mask as a varlen launch takes it, from the top-left corner: kernels align it to the
    /// bottom-right corner of each sequence, none of which is longer than `longest_q` and `longest_kv`.
    ///
    /// A side that no sequence is long enough to feel is open, so that aligned bounds fit an i32.
    pub(crate) fn unaligned_band(self, longest_q: usize, longest_kv: usize) -> Band {
        let (left, right) = self.sides();
        let felt = |side: Option<u32>, longest| side.filter(|&side| (side as usize) < longest);
        Band {
            lower: felt(left, longest_kv).map_or(-Band::OPEN, |left| -(left as i32)),
            upper: felt(right, longest_q).map_or(Band::OPEN, |right| right as i32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for (left, right) in sides.into_iter().flat_map(|l| sides.map(|r| (l, r))) {
            let mask = Mask::Window { left, right };
            let unaligned = mask.unaligned_band(LONGEST, LONGEST + 1);
            for seq_q in 0..=LONGEST {
                for seq_kv in 0..=LONGEST + 1 {
                    let aligned = unaligned.bottom_right(seq_q as u32, seq_kv as u32);
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
        assert_eq!(far.unaligned_band(9, 9), Band::FULL);
    }
}
