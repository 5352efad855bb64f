//! The shared-memory matrix descriptor of `wgmma` (PTX ISA §9.7.15.5.1), and where its elements lie.

use crate::tensor_map::Swizzle;

/// A decoded descriptor: start address, leading and stride byte offsets, swizzle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    start: u64,
    lbo: u64,
    sbo: u64,
    swizzle: Swizzle,
}

/// Bytes of a core matrix row.
const ROW: u64 = 16;

impl Descriptor {
    /// Decodes 64 bits; an error names what is not supported.
    pub(super) fn decode(bits: u64) -> Result<Self, String> {
        let field = |at: u32| (bits >> at & 0x3fff) << 4;
        if bits >> 49 & 7 != 0 {
            return Err(format!(
                "descriptor {bits:#018x} has a base offset: its matrix does not start at a swizzle repeat"
            ));
        }
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::B128,
            2 => Swizzle::B64,
            _ => Swizzle::B32,
        };
        Ok(Self {
            start: field(0),
            lbo: field(16),
            sbo: field(32),
            swizzle,
        })
    }

    /// Shared address of element (`mn`, `k`) of `elem` bytes; `mn` counts rows of A or columns of B.
    ///
    /// The canonical layouts, with T = 16 bytes of elements (K-major, then MN-major, "trans"):
    /// without swizzle, core matrices of 8 × 16 bytes are LBO apart along k and SBO along mn
    /// (K-major), or SBO apart along mn and LBO along k (MN-major); with a swizzle of S bytes, rows of
    /// S bytes run along the major dimension, 8 of them to a group; groups are SBO apart along mn
    /// (K-major), or SBO apart along k and spans LBO apart along mn (MN-major).
    pub(super) fn address(&self, mn: u64, k: u64, elem: u64, mn_major: bool) -> u64 {
        let t = ROW / elem;
        let span = self.swizzle.span();
        let offset = match (mn_major, self.swizzle) {
            (false, Swizzle::None) => {
                mn % 8 * ROW + mn / 8 * self.sbo + k / t * self.lbo + k % t * elem
            }
            (false, _) => mn % 8 * span + mn / 8 * self.sbo + k * elem,
            (true, Swizzle::None) => {
                mn % t * elem + mn / t * self.sbo + k % 8 * ROW + k / 8 * self.lbo
            }
            (true, _) => {
                let row = span / elem;
                mn % row * elem + mn / row * self.lbo + k % 8 * span + k / 8 * self.sbo
            }
        };
        self.swizzle.apply(self.start + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn descriptor(start: u64, lbo: u64, sbo: u64, swizzle: u64) -> Descriptor {
        Descriptor::decode(start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | swizzle << 62)
            .unwrap()
    }

    #[test]
    fn k_major_rows_are_swizzled_as_tma_writes_them() {
        let d = descriptor(0x400, 16, 1024, 1);
        assert_eq!(d.address(0, 0, 2, false), 0x400);
        assert_eq!(d.address(1, 0, 2, false), 0x480 + 0x10);
        assert_eq!(d.address(8, 3, 2, false), 0x800 + 6);
        // The second k-step of 16 bf16 starts 32 bytes on.
        let next = descriptor(0x420, 16, 1024, 1);
        assert_eq!(next.address(1, 0, 2, false), (0x400 + 0x80 + 0x20) ^ 0x10);
    }

    #[test]
    fn mn_major_spans_are_lbo_apart() {
        let d = descriptor(0x400, 4096, 1024, 1);
        assert_eq!(d.address(64, 0, 2, true), 0x1400);
        assert_eq!(d.address(0, 8, 2, true), 0x800);
        assert_eq!(d.address(8, 1, 2, true), (0x400 + 0x80 + 0x10) ^ 0x10);
    }

    #[test]
    fn no_two_elements_share_an_address() {
        for (swizzle, lbo, sbo) in [(0, 128, 256), (1, 16, 1024), (2, 16, 512), (3, 16, 256)] {
            let d = descriptor(0, lbo, sbo, swizzle);
            let all: BTreeSet<_> = (0..64)
                .flat_map(|mn| (0..16).map(move |k| d.address(mn, k, 2, false)))
                .collect();
            assert_eq!(all.len(), 64 * 16, "swizzle {swizzle}");
        }
        for (swizzle, lbo, sbo) in [
            (0, 1024, 128),
            (1, 2048, 1024),
            (2, 1024, 512),
            (3, 512, 256),
        ] {
            let d = descriptor(0, lbo, sbo, swizzle);
            let all: BTreeSet<_> = (0..64)
                .flat_map(|mn| (0..16).map(move |k| d.address(mn, k, 2, true)))
                .collect();
            assert_eq!(all.len(), 64 * 16, "swizzle {swizzle} transposed");
        }
    }

    #[test]
    fn a_base_offset_is_refused() {
        assert!(Descriptor::decode(1 << 49).is_err());
    }
}
