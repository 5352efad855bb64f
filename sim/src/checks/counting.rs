//! Memory counts of the current instruction.

use crate::exec::{LANES, State};
use crate::stats::{passes, sectors, sectors_of_ranges};

impl State<'_> {
    pub(crate) fn count_global(&mut self, at: &[u64; LANES], mask: u32, bytes: u32) {
        if let Some(counters) = &mut self.counters {
            let count = &mut counters.by_pc[self.pc as usize];
            count.global_requests += 1;
            count.sectors += sectors(at, mask, bytes);
        }
    }

    /// A copy of whole ranges (address and bytes) of global memory: one request.
    pub(crate) fn count_ranges(&mut self, ranges: impl Iterator<Item = (u64, u64)>) {
        if let Some(counters) = &mut self.counters {
            let count = &mut counters.by_pc[self.pc as usize];
            count.global_requests += 1;
            count.sectors += sectors_of_ranges(ranges);
        }
    }

    pub(crate) fn count_shared(&mut self, at: &[u64; LANES], mask: u32, bytes: u32) {
        if let Some(counters) = &mut self.counters {
            let count = &mut counters.by_pc[self.pc as usize];
            let (took, ideal) = passes(at, mask, bytes);
            count.shared_requests += 1;
            count.passes += took;
            count.ideal_passes += ideal;
        }
    }
}
