//! Thread-private memory of a warp's 32 lanes.

use super::bitmap::Bitmap;

pub(crate) struct Local {
    /// Lane `i` owns bytes `i·stride..(i + 1)·stride`.
    data: Vec<u8>,
    written: Bitmap,
    stride: usize,
}

impl Local {
    /// `bytes` a lane, a multiple of 16.
    pub(crate) fn new(bytes: u32) -> Self {
        // A stride of whole bitmap words keeps an aligned access inside one of them.
        let stride = (bytes as usize).next_multiple_of(64);
        let total = stride * crate::exec::LANES;
        Self {
            data: vec![0; total],
            written: Bitmap::new(total),
            stride,
        }
    }

    #[inline(always)]
    pub(crate) fn load(&self, lane: usize, at: usize, size: u32) -> u64 {
        let start = lane * self.stride + at;
        let mut bytes = [0; 8];
        bytes[..size as usize].copy_from_slice(&self.data[start..start + size as usize]);
        u64::from_le_bytes(bytes)
    }

    #[inline(always)]
    pub(crate) fn store(&mut self, lane: usize, at: usize, size: u32, value: u64) {
        let start = lane * self.stride + at;
        self.data[start..start + size as usize]
            .copy_from_slice(&value.to_le_bytes()[..size as usize]);
        self.written.set(start, size);
    }

    #[inline(always)]
    pub(crate) fn is_written(&self, lane: usize, at: usize, size: u32) -> bool {
        self.written.all(lane * self.stride + at, size)
    }
}
