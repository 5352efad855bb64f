//! A CTA's shared memory.

use super::bitmap::Bitmap;

/// Bytes of shared memory, poisoned until written. Offsets are the addresses a kernel sees minus
/// [`crate::decode::SHARED_BASE`].
pub(crate) struct Shared {
    data: Vec<u8>,
    written: Bitmap,
}

impl Shared {
    pub(crate) fn new(bytes: u32) -> Self {
        let bytes = bytes as usize;
        Self {
            data: vec![0; bytes],
            written: Bitmap::new(bytes),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// Element of 1, 2, 4 or 8 bytes at `at` (in bounds, aligned to `size`).
    #[inline(always)]
    pub(crate) fn load(&self, at: usize, size: u32) -> u64 {
        match size {
            4 => self.word(at).into(),
            8 => u64::from_le_bytes(self.array(at)),
            2 => u16::from_le_bytes(self.array(at)).into(),
            _ => self.data[at].into(),
        }
    }

    /// The four bytes at `at`.
    #[inline(always)]
    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    #[inline(always)]
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.data[at..at + N]);
        out
    }

    #[inline(always)]
    pub(crate) fn store(&mut self, at: usize, size: u32, value: u64) {
        let bytes = value.to_le_bytes();
        let size_bytes = size as usize;
        self.data[at..at + size_bytes].copy_from_slice(&bytes[..size_bytes]);
        self.written.set(at, size);
    }

    /// Were all bytes written? The range is aligned to its power-of-two size.
    #[inline(always)]
    pub(crate) fn is_written(&self, at: usize, size: u32) -> bool {
        self.written.all(at, size)
    }

    pub(crate) fn bytes_at(&self, at: usize, size: usize) -> &[u8] {
        &self.data[at..at + size]
    }

    pub(crate) fn write_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        self.written.set_range(at, bytes.len());
    }
}
