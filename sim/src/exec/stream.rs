//! Launches one after the other, and launches that begin before the one before has ended.

use std::ops::Deref;

use super::config::{LaunchConfig, Report};
use super::launch::{self, Launch};
use super::shape::Shape;
use crate::checks::Published;
use crate::error::SimError;
use crate::memory::Memory;
use crate::memory::global::Histories;
use crate::module::Module;

/// A queue of launches on one device memory, as a stream of a driver.
///
/// [`Self::launch`] waits for everything before it. [`Self::launch_dependent`] is programmatic dependent launch
/// (PTX ISA §9.7.13.13, `griddepcontrol`; the driver's attribute `PROGRAMMATIC_STREAM_SERIALIZATION`): on a GPU such a
/// grid begins once every CTA of the grid before has executed `griddepcontrol.launch_dependents` or ended, and
/// what that grid writes, before or after, is visible only to threads that come after a `griddepcontrol.wait`.
///
/// Grids are run one after the other here, so the values a dependent grid reads are the final ones; what is checked is
/// order. An access of a dependent grid to memory that a grid before it accessed, one of both writing, is a
/// [`GridOverlap`](crate::FaultKind::GridOverlap) unless it comes after a `griddepcontrol.wait` of its own thread or of
/// one that it synchronised with. A wait covers the grid directly before; those before that only if some thread of
/// that grid waited in turn.
///
/// ```
/// use ptx_sim::{LaunchConfig, Memory, Module, Stream};
///
/// let kernel = |name: &str, wait: &str| format!(
///     ".visible .entry {name}(.param .u64 p) {{ .reg .b64 %rd1; ld.param.u64 %rd1, [p]; {wait} st.global.u32 [%rd1], 1; ret; }}"
/// );
/// let ptx = format!(
///     ".version 8.0\n.target sm_90a\n.address_size 64\n{}{}{}",
///     kernel("first", "griddepcontrol.launch_dependents;"),
///     kernel("patient", "griddepcontrol.wait;"),
///     kernel("hasty", ""),
/// );
/// let module = Module::parse(&ptx)?;
/// let memory = Memory::new();
/// let p = memory.alloc(4)?.to_le_bytes();
/// let config = LaunchConfig::new([1, 1, 1], [1, 1, 1]);
///
/// let mut stream = Stream::new(&memory);
/// stream.launch(&module, "first", &config, &[&p])?;
/// stream.launch_dependent(&module, "patient", &config, &[&p])?;
/// assert!(stream.launch_dependent(&module, "hasty", &config, &[&p]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Stream<M> {
    memory: M,
    before: Option<Before>,
}

impl<M: Deref<Target = Memory>> Stream<M> {
    /// An empty stream, on memory that it borrows or shares.
    pub fn new(memory: M) -> Self {
        Self {
            memory,
            before: None,
        }
    }

    /// Runs a kernel after everything launched before, as [`crate::launch`] does.
    ///
    /// # Errors
    /// As [`crate::launch`].
    pub fn launch(
        &mut self,
        module: &Module,
        name: &str,
        config: &LaunchConfig,
        params: &[&[u8]],
    ) -> Result<Report, SimError> {
        self.before = None;
        self.launch_dependent(module, name, config, params)
    }

    /// Runs a kernel that may begin before the launch before it has ended.
    ///
    /// # Errors
    /// As [`crate::launch`]. Nothing is before the next launch then.
    pub fn launch_dependent(
        &mut self,
        module: &Module,
        name: &str,
        config: &LaunchConfig,
        params: &[&[u8]],
    ) -> Result<Report, SimError> {
        let before = self.before.take().unwrap_or_default();
        let kernel = module.kernel(name)?;
        let launch = Launch::new(module, kernel, config, params, &self.memory, before)?;
        let report = launch::run(&launch)?;
        self.before = Some(launch.end());
        Ok(report)
    }
}

/// A grid that may not have ended.
pub(crate) struct Grid {
    /// Number of its first cluster, of all clusters since the stream was last idle.
    first: u64,
    kernel: String,
    shape: Shape,
}

/// Earlier grids that a launch may overlap with.
#[derive(Default)]
pub(crate) struct Before {
    pub(super) grids: Vec<Grid>,
    /// Clusters of all of them.
    pub(super) clusters: u64,
    /// From this one on they are complete when the last grid is.
    pub(super) complete_from: u64,
    pub(super) histories: Histories,
    pub(super) published: Published,
}

impl Before {
    /// Adds a grid of `clusters` that has been run. `waited`: one of its threads waited for those before.
    pub(super) fn then(mut self, kernel: &str, shape: Shape, clusters: u64, waited: bool) -> Self {
        let first = self.clusters;
        self.grids.push(Grid {
            first,
            kernel: kernel.to_owned(),
            shape,
        });
        self.clusters += clusters;
        if !waited {
            self.complete_from = first;
        }
        self
    }

    /// A thread of an earlier grid, in words.
    pub(crate) fn who(&self, cluster: u64, slot: u32) -> String {
        let after = self.grids.partition_point(|grid| grid.first <= cluster);
        match after.checked_sub(1).map(|i| &self.grids[i]) {
            Some(grid) => {
                let thread = grid.shape.thread(cluster - grid.first, slot);
                format!("{thread} of kernel `{}`, launched before", grid.kernel)
            }
            None => "a thread of a kernel launched before".to_owned(),
        }
    }
}
