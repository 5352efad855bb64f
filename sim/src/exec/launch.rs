//! Launching a kernel: arguments checked, clusters spread over the CPU's cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use super::config::{Checks, LaunchConfig, Report};
use super::regs::LANES;
use super::shape::{Shape, coordinates, product};
use super::stream::{Before, Stream};
use super::{MAX_SHARED_BYTES, MAX_THREADS, window, work};
use crate::checks::{Complete, Published};
use crate::decode::SHARED_BASE;
use crate::error::SimError;
use crate::ir::kernel::{LaneMask, Preset};
use crate::ir::{Kernel, Touched};
use crate::memory::Memory;
use crate::memory::global::View;
use crate::module::Module;
use crate::stats::{Coverage, Statistics};

/// Largest cluster (portable size; PTX ISA §2.2.2).
const MAX_CLUSTER: u64 = 8;

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
    pub(crate) shape: Shape,
    /// Launches that may not have ended, and whether a thread has waited for them.
    pub(crate) before: Before,
    waited: AtomicBool,
    /// Threads and warps of a CTA.
    pub(crate) threads: u32,
    pub(crate) warps: u32,
    /// Static and dynamic shared memory of a CTA.
    pub(crate) shared_bytes: u32,
    dynamic_base: u32,
}

impl<'l> Launch<'l> {
    pub(super) fn new(
        module: &'l Module,
        kernel: &'l Kernel,
        config: &'l LaunchConfig,
        params: &[&[u8]],
        memory: &Memory,
        mut before: Before,
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
        if config.max_resident == 0 {
            return Err(refuse(
                "there is room for no cluster (`max_resident` 0)".into(),
            ));
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
            view: memory.view(std::mem::take(&mut before.histories)),
            published: std::mem::take(&mut before.published),
            touched: if config.checks.races && kernel.uses_wgmma() {
                kernel.code.iter().map(|i| Touched::of(&i.op)).collect()
            } else {
                Vec::new()
            },
            params: pack_params(kernel, params).map_err(refuse)?,
            shape: Shape::new(config, cluster),
            before,
            waited: AtomicBool::new(false),
            threads: threads as u32,
            warps: threads.div_ceil(LANES as u64) as u32,
            shared_bytes: shared_bytes as u32,
            dynamic_base: dynamic_base as u32,
        })
    }

    pub(crate) fn ctas_per_cluster(&self) -> u32 {
        self.shape.ctas_per_cluster()
    }

    /// `%ctaid` of a CTA by cluster number and rank.
    pub(crate) fn ctaid(&self, cluster: u64, rank: u32) -> [u32; 3] {
        self.shape.ctaid(cluster, rank)
    }

    /// `%tid` of a thread by its number in the CTA.
    pub(crate) fn tid(&self, thread: u32) -> [u32; 3] {
        self.shape.tid(thread)
    }

    fn clusters(&self) -> u64 {
        product(self.shape.clusters())
    }

    /// A cluster's number of all since the stream was last idle.
    pub(crate) fn overall(&self, cluster: u64) -> u64 {
        self.before.clusters + cluster
    }

    /// `griddepcontrol.wait`: the clusters of earlier grids that are complete then.
    pub(crate) fn wait_for_grids(&self) -> Complete {
        self.waited.store(true, Relaxed);
        Complete {
            from: self.before.complete_from,
            to: self.before.clusters,
        }
    }

    /// Everything has run: what a launch that follows may overlap with.
    pub(super) fn end(self) -> Before {
        let clusters = self.clusters();
        let before = Before {
            histories: self.view.into_histories(),
            published: self.published,
            ..self.before
        };
        before.then(
            &self.kernel.name,
            self.shape,
            clusters,
            self.waited.into_inner(),
        )
    }

    /// Initial value of a preset register.
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
            Preset::Shared(at) => return window::of_rank(rank).wrapping_add(at),
            Preset::DynamicSharedBase => {
                return window::of_rank(rank) + u64::from(self.dynamic_base);
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
            Preset::ClusterId(i) => coordinates(cluster, self.shape.clusters())[usize::from(i)],
            Preset::NClusterId(i) => self.shape.clusters()[usize::from(i)],
            Preset::ClusterCtaid(i) => coordinates(rank.into(), self.shape.cluster)[usize::from(i)],
            Preset::ClusterNctaid(i) => self.shape.cluster[usize::from(i)],
            Preset::ClusterCtaRank => rank,
            Preset::ClusterNctaRank => self.ctas_per_cluster(),
            // One CTA an SM, as far as a kernel can tell.
            Preset::SmId => (cluster * u64::from(self.ctas_per_cluster())) as u32 + rank,
            Preset::NSmId => product(self.config.grid).min(u32::MAX.into()) as u32,
            Preset::DynamicSharedBytes => self.config.shared_bytes,
            Preset::TotalSharedBytes => self.shared_bytes,
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
/// `params` holds the bytes of each kernel parameter, as the driver API takes them. Clusters run in parallel on rayon's
/// current pool, started in an order that [`LaunchConfig::schedule_seed`] draws; the warps of one cluster are
/// interleaved on one CPU thread by the same seed, so a fault inside a cluster is reproducible. Results that depend on
/// the order in which clusters access global memory are reproducible on a pool of one thread.
///
/// # Errors
/// [`SimError::BadLaunch`] for geometry or parameters the kernel cannot take, and
/// [`SimError::Fault`] for what the kernel did wrong: the fault of the failing cluster that started first;
/// a hang only if there is no other fault.
pub fn launch(
    module: &Module,
    name: &str,
    config: &LaunchConfig,
    params: &[&[u8]],
    memory: &Memory,
) -> Result<Report, SimError> {
    Stream::new(memory).launch(module, name, config, params)
}

/// Runs a launch to its end.
pub(super) fn run(launch: &Launch<'_>) -> Result<Report, SimError> {
    let start = Instant::now();
    let mut outcome = work::run(launch, launch.clusters());
    let counters = outcome.counters();
    let checks = launch.checks;
    if let Some((_, fault)) = outcome.fault {
        return Err(SimError::Fault(fault));
    }
    Ok(Report {
        warp_instructions: outcome.instructions,
        asked_in_vain: outcome.asked_in_vain,
        elapsed: start.elapsed(),
        coverage: (counters.as_ref().filter(|_| checks.coverage)).map(Coverage::new),
        statistics: (counters.filter(|_| checks.statistics))
            .map(|c| Statistics::new(launch.kernel, &c, launch.source)),
    })
}
