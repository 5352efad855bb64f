//! One bit a byte: which bytes of a memory were ever written.

/// A bitmap owned by one thread (shared and local memory).
pub(crate) struct Bitmap(Vec<u64>);

fn mask(first: u32, count: u32) -> u64 {
    (u64::MAX >> (64 - count)) << first
}

impl Bitmap {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![0; bytes.div_ceil(64)])
    }

    /// Are all `size` bytes from `at` set? `size` ≤ 64 and the range stays in one word: accesses are
    /// aligned to their power-of-two size.
    #[inline(always)]
    pub(crate) fn all(&self, at: usize, size: u32) -> bool {
        let m = mask(at as u32 % 64, size);
        self.0[at / 64] & m == m
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, at: usize, size: u32) {
        self.0[at / 64] |= mask(at as u32 % 64, size);
    }

    /// [`Self::set`] for any range.
    pub(crate) fn set_range(&mut self, at: usize, size: usize) {
        for byte in at..at + size {
            self.set(byte, 1);
        }
    }
}
