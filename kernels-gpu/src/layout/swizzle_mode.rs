//! The shared-memory swizzles of TMA and `wgmma`.
//!
//! PTX ISA, "Tensor Swizzling Modes" and "Matrix Descriptor Format". An address's 16-byte vec16 within 128, 64 or 32
//! bytes is xored with the number of the 128-byte line it lies in.

/// How TMA stores the rows of a box, and `wgmma` expects them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwizzleMode {
    /// Plainly.
    None,
    /// Rows of 32 bytes.
    B32,
    /// Rows of 64 bytes.
    B64,
    /// Rows of 128 bytes: eight of them touch every bank once, whichever vec16 is read.
    B128,
}

/// Bytes of a line that spans all banks.
pub const LINE_BYTES: u32 = 128;
const LINE_BITS: u32 = LINE_BYTES.trailing_zeros();
const VEC16_BITS: u32 = super::swizzle::VEC16_BYTES.trailing_zeros();

impl SwizzleMode {
    pub const ALL: [Self; 4] = [Self::None, Self::B32, Self::B64, Self::B128];

    /// Bytes of a row.
    pub const fn row_bytes(self) -> u32 {
        match self {
            Self::None => super::swizzle::VEC16_BYTES,
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => LINE_BYTES,
        }
    }

    /// Where the byte `offset` of a plain tile is stored, from a start that is a multiple of 1024 bytes. Its own inverse.
    #[inline(always)]
    pub const fn apply(self, offset: u32) -> u32 {
        let vec16s = self.row_bytes() >> VEC16_BITS;
        offset ^ ((offset >> LINE_BITS) % vec16s) << VEC16_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::super::swizzle::{self, VEC16_BYTES};
    use super::*;

    #[test]
    fn every_byte_has_one_place() {
        for mode in SwizzleMode::ALL {
            let mut seen = [false; 2048];
            for offset in 0..2048 {
                let stored = mode.apply(offset);
                assert_eq!(mode.apply(stored), offset);
                assert_eq!(stored / LINE_BYTES, offset / LINE_BYTES);
                assert!(!core::mem::replace(&mut seen[stored as usize], true));
            }
        }
    }

    /// Reading one vec16 of eight consecutive rows, as a tensor core does, touches every bank once.
    #[test]
    fn eight_rows_touch_every_bank() {
        for mode in [SwizzleMode::B32, SwizzleMode::B64, SwizzleMode::B128] {
            for vec16 in 0..mode.row_bytes() / VEC16_BYTES {
                let groups = (0..8u32).fold(0u32, |groups, row| {
                    let offset = mode.apply(row * mode.row_bytes() + vec16 * VEC16_BYTES);
                    groups | 1 << (offset % LINE_BYTES / VEC16_BYTES)
                });
                assert_eq!(groups.count_ones(), 8, "{mode:?}, vec16 {vec16}");
            }
        }
    }

    /// The `mma.sync` kernels store rows of 64 elements the same way.
    #[test]
    fn rows_of_64_elements_agree_with_the_ldmatrix_swizzle() {
        const HEAD_DIM: usize = 64;
        for row in 0..16 {
            for vec16 in 0..swizzle::row_vec16s(HEAD_DIM) as u32 {
                let plain = row * swizzle::row_bytes(HEAD_DIM) + vec16 * VEC16_BYTES;
                let stored = swizzle::offset(HEAD_DIM, row, vec16);
                assert_eq!(stored, SwizzleMode::B128.apply(plain));
            }
        }
    }
}
