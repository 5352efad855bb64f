//! Launch parameters of the probes.

use bytemuck::{Pod, Zeroable};

use crate::config::probe::{CHAINS, THREADS};

/// Parameters of every probe.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ProbeParams {
    /// Device address of the words to copy, or of A; 16-byte aligned.
    pub a: u64,
    /// Device address of B, 16-byte aligned; 0 where there is none.
    pub b: u64,
    /// Device address of the probe's result, 16-byte aligned.
    pub out: u64,
    /// 16-byte words to copy; or steps to take, 1 or more and below 2³².
    pub count: u64,
    /// Factor of each link of a chain.
    pub factor: f32,
    /// Term added in each link of a chain.
    pub term: f32,
}

/// Start value of chain `chain` of a block: from 0 up to 2.
#[inline(always)]
pub const fn start(chain: u32) -> f32 {
    chain as f32 * (2.0 / (THREADS * CHAINS) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn offsets_are_pinned() {
        assert_eq!(offset_of!(ProbeParams, count), 24);
        assert_eq!(offset_of!(ProbeParams, term), 36);
        assert_eq!(size_of::<ProbeParams>(), 40);
    }
}
