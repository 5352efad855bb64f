//! Launching a kernel: arguments checked, clusters spread over the CPU's cores.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::cluster::{Cluster, State, Status};
use super::regs::LANES;
use super::{MAX_SHARED_BYTES, MAX_THREADS};
use crate::checks::Published;
use crate::decode::SHARED_BASE;
use crate::error::SimError;
use crate::fault::Fault;
use crate::ir::kernel::{LaneMask, Preset};
use crate::ir::{Kernel, Touched};
use crate::memory::Memory;
use crate::memory::global::View;
use crate::module::Module;
use crate::stats::{Counters, Statistics};

/// Warp instructions a cluster runs before another gets the core: clusters that wait for each other
/// through global memory all make progress.
const QUANTUM: u64 = 2_000_000;

/// Clusters begun and set aside, at most; beyond, old ones run before new ones start.
const MAX_SUSPENDED: usize = 64;

/// Largest cluster (portable size; PTX ISA §2.2.2).
const MAX_CLUSTER: u64 = 8;

/// What is checked and counted while a kernel runs. Bounds and alignment always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Reading memory that nothing wrote is a fault.
    pub uninitialised: bool,
    /// Unordered accesses to shared or global memory, missing proxy fences, and use of what an
    /// unfinished asynchronous operation still reads or writes are faults.
    pub races: bool,
    /// Count instructions, sectors, bank conflicts and tensor operations.
    pub statistics: bool,
}

impl Checks {
    /// Everything on: the default.
    pub const ALL: Self = Self {
        uninitialised: true,
        races: true,
        statistics: true,
    };
    /// Only what keeps the simulator itself sound.
    pub const NONE: Self = Self {
        uninitialised: false,
        races: false,
        statistics: false,
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
    /// 0 runs warps in turn; any other seed interleaves warps and finishes asynchronous operations
    /// in an order of its own, the same in each run.
    pub schedule_seed: u64,
    /// A cluster that executes more warp instructions than this hangs: a fault.
    pub max_instructions: u64,
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
}

/// What a launch did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Instructions executed, each counted once a warp.
    pub warp_instructions: u64,
    /// Wall time of the run.
    pub elapsed: Duration,
    /// Detailed counts, if [`Checks::statistics`] asked for them.
    pub statistics: Option<Statistics>,
}

/// A checked launch.
pub(crate) struct Launch<'l> {
    pub(crate) kernel: &'l Kernel,
    pub(crate) source: &'l str,
    pub(crate) config: &'l LaunchConfig,
    pub(crate) checks: Checks,
    pub(crate) view: View,
    pub(crate) published: Published,
    /// Registers of each instruction, for kernels whose `wgmma`s are checked; else empty.
    pub(crate) touched: Vec<Touched>,
    globals: Arc<[u64]>,
    pub(crate) params: Vec<u8>,
    cluster: [u32; 3],
    /// Threads and warps of a CTA.
    pub(crate) threads: u32,
    pub(crate) warps: u32,
    /// Static and dynamic shared memory of a CTA.
    pub(crate) shared_bytes: u32,
    dynamic_base: u32,
}

fn product(dims: [u32; 3]) -> u64 {
    dims.iter().map(|&d| u64::from(d)).product()
}

fn coordinates(index: u64, dims: [u32; 3]) -> [u32; 3] {
    let [x, y, _] = dims.map(u64::from);
    [
        (index % x) as u32,
        (index / x % y) as u32,
        (index / (x * y)) as u32,
    ]
}

impl<'l> Launch<'l> {
    fn new(
        module: &'l Module,
        kernel: &'l Kernel,
        config: &'l LaunchConfig,
        params: &[&[u8]],
        memory: &Memory,
    ) -> Result<Self, SimError> {
        let refuse = |message: String| SimError::BadLaunch {
            kernel: kernel.name.clone(),
            message,
        };
        let d = &kernel.directives;
        let threads = product(config.block);
        if threads == 0 || threads > MAX_THREADS {
            return Err(refuse(format!(
                "block {:?} has {threads} threads; 1 to {MAX_THREADS} are allowed",
                config.block
            )));
        }
        if product(config.grid) == 0 {
            return Err(refuse(format!("grid {:?} is empty", config.grid)));
        }
        if let Some(max) = d.maxntid.map(product).filter(|&max| threads > max) {
            return Err(refuse(format!(
                "{threads} threads exceed the kernel's .maxntid of {max}"
            )));
        }
        if let Some(required) = d.reqntid.filter(|&r| r != config.block) {
            return Err(refuse(format!(
                "block {:?} is not the kernel's .reqntid {required:?}",
                config.block
            )));
        }
        let cluster = match (config.cluster, d.reqnctapercluster) {
            (Some(given), Some(required)) if given != required => {
                return Err(refuse(format!(
                    "cluster {given:?} is not the kernel's .reqnctapercluster {required:?}"
                )));
            }
            (Some(c), _) | (None, Some(c)) => c,
            (None, None) => [1; 3],
        };
        let cluster_size = product(cluster);
        if cluster_size == 0 || cluster_size > MAX_CLUSTER {
            return Err(refuse(format!(
                "cluster {cluster:?} has {cluster_size} CTAs; 1 to {MAX_CLUSTER} are allowed"
            )));
        }
        if (0..3).any(|i| !config.grid[i].is_multiple_of(cluster[i])) {
            return Err(refuse(format!(
                "grid {:?} is not a multiple of the cluster {cluster:?}",
                config.grid
            )));
        }
        let dynamic_base = (u64::from(SHARED_BASE) + u64::from(kernel.static_shared_bytes))
            .next_multiple_of(kernel.dynamic_shared_align.into());
        let shared_bytes = dynamic_base - u64::from(SHARED_BASE) + u64::from(config.shared_bytes);
        if shared_bytes > MAX_SHARED_BYTES {
            return Err(refuse(format!(
                "{shared_bytes} bytes of shared memory ({} static); at most {MAX_SHARED_BYTES}",
                kernel.static_shared_bytes
            )));
        }
        Ok(Self {
            kernel,
            source: module.source(),
            config,
            checks: config.checks,
            globals: module.load(memory)?,
            view: memory.view(),
            published: Published::default(),
            touched: if config.checks.races && kernel.uses_wgmma() {
                kernel.code.iter().map(|i| Touched::of(&i.op)).collect()
            } else {
                Vec::new()
            },
            params: pack_params(kernel, params).map_err(refuse)?,
            cluster,
            threads: threads as u32,
            warps: threads.div_ceil(LANES as u64) as u32,
            shared_bytes: shared_bytes as u32,
            dynamic_base: dynamic_base as u32,
        })
    }

    pub(crate) fn ctas_per_cluster(&self) -> u32 {
        product(self.cluster) as u32
    }

    fn clusters(&self) -> [u32; 3] {
        std::array::from_fn(|i| self.config.grid[i] / self.cluster[i])
    }

    /// `%ctaid` of a CTA by cluster number and rank.
    pub(crate) fn ctaid(&self, cluster: u64, rank: u32) -> [u32; 3] {
        let at = coordinates(cluster, self.clusters());
        let within = coordinates(rank.into(), self.cluster);
        std::array::from_fn(|i| at[i] * self.cluster[i] + within[i])
    }

    /// `%tid` of a thread by its number in the CTA.
    pub(crate) fn tid(&self, thread: u32) -> [u32; 3] {
        coordinates(thread.into(), self.config.block)
    }

    /// What a preset register holds.
    pub(crate) fn preset(
        &self,
        preset: Preset,
        cluster: u64,
        rank: u32,
        ctaid: [u32; 3],
        warp: u32,
        lane: usize,
    ) -> u64 {
        let lane = lane as u32;
        let one = 1u32 << lane;
        u64::from(match preset {
            Preset::Value(v) => return v,
            Preset::Global { variable, offset } => {
                return self.globals[variable as usize].wrapping_add(offset as u64);
            }
            Preset::GridId => return 1,
            Preset::Tid(i) => self.tid(warp * LANES as u32 + lane)[usize::from(i)],
            Preset::Ntid(i) => self.config.block[usize::from(i)],
            Preset::Ctaid(i) => ctaid[usize::from(i)],
            Preset::Nctaid(i) => self.config.grid[usize::from(i)],
            Preset::LaneId => lane,
            Preset::WarpId => warp,
            Preset::NWarpId => self.warps,
            Preset::LaneMask(LaneMask::Eq) => one,
            Preset::LaneMask(LaneMask::Lt) => one - 1,
            Preset::LaneMask(LaneMask::Le) => one | (one - 1),
            Preset::LaneMask(LaneMask::Gt) => !(one | (one - 1)),
            Preset::LaneMask(LaneMask::Ge) => !(one - 1),
            Preset::ClusterId(i) => coordinates(cluster, self.clusters())[usize::from(i)],
            Preset::NClusterId(i) => self.clusters()[usize::from(i)],
            Preset::ClusterCtaid(i) => coordinates(rank.into(), self.cluster)[usize::from(i)],
            Preset::ClusterNctaid(i) => self.cluster[usize::from(i)],
            Preset::ClusterCtaRank => rank,
            Preset::ClusterNctaRank => self.ctas_per_cluster(),
            // One CTA an SM, as far as a kernel can tell.
            Preset::SmId => (cluster * u64::from(self.ctas_per_cluster())) as u32 + rank,
            Preset::NSmId => product(self.config.grid).min(u32::MAX.into()) as u32,
            Preset::DynamicSharedBytes => self.config.shared_bytes,
            Preset::TotalSharedBytes => self.shared_bytes,
            Preset::DynamicSharedBase => self.dynamic_base,
        })
    }
}

fn pack_params(kernel: &Kernel, params: &[&[u8]]) -> Result<Vec<u8>, String> {
    if params.len() != kernel.params.len() {
        return Err(format!(
            "{} parameters given; the kernel has {}",
            params.len(),
            kernel.params.len()
        ));
    }
    let mut blob = vec![0; kernel.param_bytes as usize];
    for (i, (given, p)) in params.iter().zip(&kernel.params).enumerate() {
        if given.len() != p.bytes as usize {
            return Err(format!(
                "parameter {i} (`{}`) has {} bytes; {} given",
                p.name,
                p.bytes,
                given.len()
            ));
        }
        blob[p.offset as usize..][..given.len()].copy_from_slice(given);
    }
    Ok(blob)
}

/// Runs kernel `name` of `module` to its end.
///
/// `params` holds the bytes of each kernel parameter, as the driver API takes them. Clusters run in
/// parallel on rayon's current pool; the warps of one cluster are interleaved on one CPU thread by
/// [`LaunchConfig::schedule_seed`], so a fault inside a cluster is reproducible.
///
/// # Errors
/// [`SimError::BadLaunch`] for geometry or parameters the kernel cannot take, and
/// [`SimError::Fault`] for what the kernel did wrong: the fault of the lowest-numbered failing cluster.
pub fn launch(
    module: &Module,
    name: &str,
    config: &LaunchConfig,
    params: &[&[u8]],
    memory: &Memory,
) -> Result<Report, SimError> {
    let kernel = module.kernel(name)?;
    let launch = Launch::new(module, kernel, config, params, memory)?;
    let start = Instant::now();
    let work = Work {
        launch: &launch,
        total: product(launch.clusters()),
        next: AtomicU64::new(0),
        // Clusters from here on need not run: an earlier one failed.
        stop: AtomicU64::new(u64::MAX),
        suspended: Mutex::new(VecDeque::new()),
        outcome: Mutex::new(Outcome::default()),
    };
    let workers = rayon::current_num_threads().min(work.total.try_into().unwrap_or(usize::MAX));
    rayon::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|_| work.run());
        }
    });
    let outcome = work.outcome.into_inner().unwrap_or_else(|e| e.into_inner());
    if let Some((_, fault)) = outcome.fault {
        return Err(SimError::Fault(fault));
    }
    Ok(Report {
        warp_instructions: outcome.instructions,
        elapsed: start.elapsed(),
        statistics: outcome
            .counters
            .map(|c| Statistics::new(kernel, &c, module.source())),
    })
}

#[derive(Default)]
struct Outcome {
    instructions: u64,
    counters: Option<Box<Counters>>,
    fault: Option<(u64, Box<Fault>)>,
}

struct Work<'l> {
    launch: &'l Launch<'l>,
    total: u64,
    next: AtomicU64,
    stop: AtomicU64,
    suspended: Mutex<VecDeque<(u64, Box<Cluster<'l>>)>>,
    outcome: Mutex<Outcome>,
}

impl<'l> Work<'l> {
    fn suspended(&self) -> std::sync::MutexGuard<'_, VecDeque<(u64, Box<Cluster<'l>>)>> {
        self.suspended.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next cluster to run: a new one while few are set aside, else the oldest of those.
    fn take(&self) -> Option<(u64, Box<Cluster<'l>>)> {
        if self.suspended().len() < MAX_SUSPENDED {
            let index = self.next.fetch_add(1, Relaxed);
            if index < self.total && index < self.stop.load(Relaxed) {
                return Some((index, Box::new(Cluster::new(self.launch, index))));
            }
        }
        self.suspended().pop_front()
    }

    fn run(&self) {
        while let Some((index, mut cluster)) = self.take() {
            if index > self.stop.load(Relaxed) {
                continue;
            }
            match cluster.run(QUANTUM) {
                Ok(Status::Preempted) => self.suspended().push_back((index, cluster)),
                Ok(Status::Done) => self.finish(cluster.state),
                Err(fault) => {
                    self.stop.fetch_min(index, Relaxed);
                    let mut outcome = self.outcome.lock().unwrap_or_else(|e| e.into_inner());
                    if outcome.fault.as_ref().is_none_or(|(i, _)| index < *i) {
                        outcome.fault = Some((index, fault));
                    }
                }
            }
        }
    }

    fn finish(&self, state: State<'l>) {
        let mut outcome = self.outcome.lock().unwrap_or_else(|e| e.into_inner());
        outcome.instructions += state.instructions;
        match (&mut outcome.counters, state.counters) {
            (Some(total), Some(mine)) => total.add(&mine),
            (total @ None, mine) => *total = mine,
            (Some(_), None) => {}
        }
    }
}
