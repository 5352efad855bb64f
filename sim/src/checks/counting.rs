//! Memory counts of the current instruction.

use crate::exec::{LANES, State};
use crate::stats::{Count, passes, sectors, sectors_of_ranges};

impl State<'_> {
    /// Counts of the current instruction, if there are to be any.
    fn statistics(&mut self) -> Option<&mut Count> {
        let counters = (self.counters.as_mut()).filter(|_| self.launch.checks.statistics);
        counters.map(|counters| &mut counters.by_pc[self.pc as usize])
    }

    pub(crate) fn count_global(&mut self, at: &[u64; LANES], mask: u32, bytes: u32) {
        if let Some(count) = self.statistics() {
            count.global_requests += 1;
            count.sectors += sectors(at, mask, bytes);
        }
    }

    /// A copy of whole ranges (address and bytes) of global memory: one request.
    pub(crate) fn count_ranges(&mut self, ranges: impl Iterator<Item = (u64, u64)>) {
        if let Some(count) = self.statistics() {
            count.global_requests += 1;
            count.sectors += sectors_of_ranges(ranges);
        }
    }

    pub(crate) fn count_shared(&mut self, at: &[u64; LANES], mask: u32, bytes: u32) {
        if let Some(count) = self.statistics() {
            let (took, ideal) = passes(at, mask, bytes);
            count.shared_requests += 1;
            count.passes += took;
            count.ideal_passes += ideal;
        }
    }
}
