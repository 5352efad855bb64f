//! Configuration and report of a launch.

use std::time::Duration;

use crate::stats::{Coverage, Statistics};

/// Checks and counts to do while a kernel runs. Bounds and alignment are always checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Reading memory that nothing wrote is a fault.
    pub uninitialised: bool,
    /// Unordered accesses to shared or global memory, missing proxy fences, and use of what an
    /// unfinished asynchronous operation still reads or writes are faults.
    pub races: bool,
    /// Count instructions, sectors, bank conflicts and tensor operations.
    pub statistics: bool,
    /// Note which instructions were executed, and whether every lane's guard held.
    pub coverage: bool,
}

impl Checks {
    /// Everything on: the default.
    pub const ALL: Self = Self {
        uninitialised: true,
        races: true,
        statistics: true,
        coverage: true,
    };
    /// Only what keeps the simulator itself sound.
    pub const NONE: Self = Self {
        uninitialised: false,
        races: false,
        statistics: false,
        coverage: false,
    };
}

/// Geometry and options of a launch.
///
/// ```
/// use ptx_sim::{Checks, LaunchConfig};
/// let config = LaunchConfig::new([16, 1, 1], [128, 1, 1])
///     .shared_bytes(48 * 1024)
///     .schedule_seed(7)
///     .checks(Checks::ALL);
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// CTAs along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a CTA along x, y, z.
    pub block: [u32; 3],
    /// CTAs of a cluster along x, y, z; must agree with the kernel's `.reqnctapercluster`.
    pub cluster: Option<[u32; 3]>,
    /// Dynamic shared memory, in bytes.
    pub shared_bytes: u32,
    pub checks: Checks,
    /// 0 starts clusters by number and runs warps in turn; any other seed starts clusters, interleaves warps
    /// and finishes asynchronous operations in an order of its own, the same in each run.
    pub schedule_seed: u64,
    /// A cluster that executes more warp instructions than this hangs: a fault.
    pub max_instructions: u64,
    /// Clusters the GPU has room for at once. One more starts when another ends, so a cluster that waits for one
    /// which has not started may wait for ever.
    pub max_resident: u32,
}

impl Default for LaunchConfig {
    fn default() -> Self {
        Self {
            grid: [1; 3],
            block: [32, 1, 1],
            cluster: None,
            shared_bytes: 0,
            checks: Checks::ALL,
            schedule_seed: 0,
            max_instructions: 1 << 30,
            max_resident: 64,
        }
    }
}

impl LaunchConfig {
    /// A grid of CTAs with every check on.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            ..Self::default()
        }
    }

    /// Sets the cluster shape.
    pub fn cluster(mut self, cluster: [u32; 3]) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Sets the dynamic shared memory, in bytes.
    pub fn shared_bytes(mut self, bytes: u32) -> Self {
        self.shared_bytes = bytes;
        self
    }

    /// Chooses the checks.
    pub fn checks(mut self, checks: Checks) -> Self {
        self.checks = checks;
        self
    }

    /// Chooses the schedule.
    pub fn schedule_seed(mut self, seed: u64) -> Self {
        self.schedule_seed = seed;
        self
    }

    /// Sets the hang guard, in warp instructions of one cluster.
    pub fn max_instructions(mut self, n: u64) -> Self {
        self.max_instructions = n;
        self
    }

    /// Sets how many clusters the GPU has room for at once.
    pub fn max_resident(mut self, clusters: u32) -> Self {
        self.max_resident = clusters;
        self
    }
}

/// Results of a launch.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Instructions executed, each counted once a warp.
    pub warp_instructions: u64,
    /// Those of them by which warps asked mbarriers in vain, and went back to ask again: as many as it takes until a phase ends, where
    /// all others are as many each time.
    pub asked_in_vain: u64,
    /// Wall time of the run.
    pub elapsed: Duration,
    /// Detailed counts, if [`Checks::statistics`] asked for them.
    pub statistics: Option<Statistics>,
    /// What was executed, if [`Checks::coverage`] asked for it.
    pub coverage: Option<Coverage>,
}
