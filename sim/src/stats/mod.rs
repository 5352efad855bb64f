//! Counting what a kernel does, by instruction.

mod coverage;
mod memory;
mod report;

use std::ops::AddAssign;

pub use coverage::{Coverage, CoverageError};
pub(crate) use memory::{passes, sectors, sectors_of_ranges};
pub use report::{LineStatistics, Statistics};

/// Counts of one instruction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// Times a warp executed it, and lanes that took part.
    pub(crate) warps: u64,
    pub(crate) lanes: u64,
    /// Lanes that once reached it with a guard that did not hold.
    pub(crate) skipped_lanes: u32,
    /// Global-memory requests (one a warp, or one a bulk copy), and 32-byte sectors they touched.
    pub(crate) global_requests: u64,
    pub(crate) sectors: u64,
    /// Shared-memory requests, the passes they took, and the fewest they could have taken.
    pub(crate) shared_requests: u64,
    pub(crate) passes: u64,
    pub(crate) ideal_passes: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.warps += other.warps;
        self.lanes += other.lanes;
        self.skipped_lanes |= other.skipped_lanes;
        self.global_requests += other.global_requests;
        self.sectors += other.sectors;
        self.shared_requests += other.shared_requests;
        self.passes += other.passes;
        self.ideal_passes += other.ideal_passes;
    }
}

/// Counts of a cluster, by instruction index.
pub(crate) struct Counters {
    pub(crate) by_pc: Vec<Count>,
}

impl Counters {
    pub(crate) fn new(instructions: usize) -> Self {
        Self {
            by_pc: vec![Count::default(); instructions],
        }
    }

    /// Lanes `m` of a group executed the instruction at `pc`; the guard of the others did not hold.
    #[inline(always)]
    pub(crate) fn executed(&mut self, pc: u32, group: u32, m: u32) {
        let count = &mut self.by_pc[pc as usize];
        count.warps += 1;
        count.lanes += u64::from(m.count_ones());
        count.skipped_lanes |= group & !m;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (total, mine) in self.by_pc.iter_mut().zip(&other.by_pc) {
            *total += *mine;
        }
    }
}
