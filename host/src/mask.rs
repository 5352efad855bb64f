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
}
