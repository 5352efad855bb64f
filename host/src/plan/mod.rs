//! Launch plans: the kernels chosen for a problem, their grids and parameters, and the workspace, without addresses.
//!
//! A [`Plan`] is made once from a [`Problem`] and a backend's [`Capabilities`], and then launched with addresses
//! ([`Operands`]) any number of times. This module does not depend on backends.
//!
//! | file | what it does |
//! |---|---|
//! | `select` | which variants are *eligible*, which one is *preferred*, and its kernel |
//! | `unfit` | why a kernel cannot run a problem |
//! | `kernel` | a kernel that was found, and what it is launched with |
//! | `step` | a launch |
//! | `forward` | the launches of a forward pass, and of attention to a cache |
//! | `backward/` | the kernels and launches of a backward pass |
//! | `decode` | the launch of a decode kernel: of attention to a cache, or of few queries |
//! | `few_queries` | the rule by which a forward pass runs one |
//! | `hopper` | launch data of Hopper's kernels: packed GQA, tensor maps, the order of tiles |
//! | `modifiers` | masks, biases, sinks and dropout: their parameters, and what tiles and blocks look like |
//! | `params` | a kernel's parameters: first all that follows from the problem, then the addresses |
//! | `operands` | the addresses, and checks of them |
//! | `plans` | the plans of a problem that is launched often |
//! | `capabilities` | the properties of a backend from which kernels are chosen |

pub(crate) mod backward;
mod capabilities;
pub(crate) mod decode;
mod few_queries;
mod forward;
pub(crate) mod hopper;
mod kernel;
pub(crate) mod modifiers;
mod operands;
pub(crate) mod params;
mod plans;
mod select;
mod short_sequences;
mod step;
mod tile_order;
mod unfit;

use kernels_gpu::abi::{ForwardParams, ModifierParams};
use kernels_gpu::instances::{Arch, BLOCK_STATES, Instance};
use kernels_gpu::tile::grid::TileGrid;

pub use capabilities::{Capabilities, GpuCapabilities};
pub use modifiers::ModifierOperands;
pub use operands::{CacheOperands, GradientOperands, Operands, WORKSPACE_ALIGN_BYTES, Workspace};
pub use plans::Plans;
pub use select::{eligible, find_instance, preferred, why_not};
pub(crate) use step::{Step, StepParams};
pub use unfit::instance_unfit;

use crate::{Error, Problem, Variant};
use kernel::{How, Kernel};
use modifiers::{StatesLaunch, modifier_params};
use select::{Question, choose};

/// How one problem is run on one kind of device: the kernels, in order, with everything but addresses.
///
/// Made by [`Backend::plan`](crate::Backend::plan) and run by [`Backend::launch`](crate::Backend::launch), any number of
/// times, on any backend of the same kind: one GPU model's plans run on each GPU of that model.
///
/// ```
/// use ferroflash::{Backend, Cpu, ForwardOptions, Layout, Problem, Shape, TensorSpec};
/// use ferroflash::DType;
///
/// # fn main() -> Result<(), ferroflash::Error> {
/// let shape = Shape { batch: 1, heads: 2, seq: 5, dim: 8 };
/// let spec = TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)?;
/// let problem = Problem::new(spec, spec, spec, spec, &ForwardOptions::new())?;
/// let plan = Cpu::new().plan(&problem)?;
/// assert_eq!((plan.kernel_name().as_str(), plan.workspace_bytes()), ("fa_fwd_cpu_f32_tiled", 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Plan {
    problem: Problem,
    /// Capabilities of the backends that can run it.
    made_for: Capabilities,
    variant: Variant,
    /// The kernel that computes the result; the other steps prepare for it. `None` on the CPU.
    kernel: Option<&'static Instance>,
    /// Launches in order; empty on the CPU, or if there is nothing to compute.
    steps: Vec<Step>,
    workspace_bytes: usize,
    /// Where the workspace of steps that are added begins.
    workspace_begin: u64,
    /// How many of them are counters of a decode kernel, which are 0 between launches.
    counter_bytes: Option<usize>,
}

impl Plan {
    /// Plans `problem` for a backend with capabilities `here`, with operands at multiples of 16 bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] if no variant, or not the forced one, can run it.
    pub fn new(problem: &Problem, here: &Capabilities) -> Result<Self, Error> {
        Self::make(problem, here, &Question::new(problem, here, None))
    }

    /// Plans `problem` for a backend with capabilities `here`, and operands at addresses like those of `operands`: if
    /// one is not a multiple of 16 bytes, the kernel is one that takes any address.
    ///
    /// # Errors
    /// [`Error::Argument`] if no variant, or not the forced one, can run it.
    pub fn for_operands(
        problem: &Problem,
        here: &Capabilities,
        operands: &Operands,
    ) -> Result<Self, Error> {
        let misaligned = operands.misaligned_for_tma();
        Self::make(problem, here, &Question::new(problem, here, misaligned))
    }

    fn make(problem: &Problem, here: &Capabilities, asked: &Question<'_>) -> Result<Self, Error> {
        let choice = choose(asked)?;
        let mut plan = Self {
            problem: problem.clone(),
            made_for: *here,
            variant: choice.variant,
            kernel: choice.kernel.as_ref().map(|kernel| kernel.instance),
            steps: Vec::new(),
            workspace_bytes: 0,
            workspace_begin: 0,
            counter_bytes: None,
        };
        if let (Some(kernel), Capabilities::Gpu(gpu)) = (choice.kernel, here) {
            plan.add_steps(kernel, asked.params(), gpu);
        }
        Ok(plan)
    }

    /// Adds the launches with which `kernel` runs the problem.
    fn add_steps(&mut self, kernel: Kernel, params: &ForwardParams, gpu: &GpuCapabilities) {
        let Kernel { instance, how } = kernel;
        match how {
            How::NotAtAll => {}
            How::Backward(kernels) => self.add_backward(&kernels, gpu),
            How::Decode(launch) => self.add_decode(instance, *launch),
            How::Modified => self.add_modified(instance, params),
            How::Plain => {
                let attention = &params.attention;
                let (batch, heads) = (attention.batch, attention.heads_q);
                let tiles = TileGrid::new(batch, heads, attention.seq_q, instance.block_m);
                self.add(instance, tiles.grid(), StepParams::Forward(*params));
            }
            How::Hopper(hopper, companion) => {
                let mut fewest_queries = 0;
                if let Some((decode, launch)) = companion {
                    fewest_queries = launch.params.most_queries + 1;
                    self.add_decode(decode, *launch);
                }
                self.add_hopper(instance, hopper, params, fewest_queries);
            }
        }
    }

    /// Adds the launch that finds states, at `offset` of the workspace; returns what the kernel is given that reads them.
    fn add_states(
        &mut self,
        states: Option<&StatesLaunch>,
        offset: u64,
    ) -> (ModifierParams, Option<u64>) {
        let Some(states) = states else {
            return (modifier_params(&self.problem), None);
        };
        let params = StepParams::BlockStates(Box::new(states.params), offset);
        let score_mod = self.problem.modifiers().score_mod.as_ref();
        let kernel = score_mod.map_or(&BLOCK_STATES, |own| own.block_states());
        self.add(kernel, states.grid, params);
        (states.params.modifiers, Some(offset))
    }

    fn add(&mut self, kernel: &'static Instance, grid: u32, params: StepParams) {
        self.steps.push(Step {
            kernel,
            grid,
            workspace_begin: self.workspace_begin,
            begins_early: !self.steps.is_empty() && kernel.arch == Arch::Sm90a,
            params,
        });
    }

    /// The problem that this plan runs.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Capabilities of the backends that can run this plan.
    pub fn made_for(&self) -> &Capabilities {
        &self.made_for
    }

    /// The variant that runs it.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Name of the kernel that does the work.
    pub fn kernel_name(&self) -> String {
        match self.kernel {
            Some(kernel) => kernel.name.to_owned(),
            None => {
                let pass = match (self.problem.gradients(), self.problem.cache_layout()) {
                    (Some(_), _) => "bwd",
                    (None, Some(_)) => "decode",
                    (None, None) => "fwd",
                };
                let dtype = self.problem.q().dtype.name();
                format!("fa_{pass}_cpu_{dtype}_{}", self.variant)
            }
        }
    }

    /// Names of all kernels that it launches, in order; none on the CPU.
    pub fn kernel_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.steps.iter().map(|step| step.kernel.name)
    }

    /// Query heads of a group whose rows share a tile of that kernel, if it is one that may pack them or not (packed GQA), as the
    /// next power of two; else 1.
    pub fn heads_per_tile(&self) -> u32 {
        let packed = self.steps.iter().find_map(|step| match &step.params {
            StepParams::HopperForward(_, hopper, _) => Some(hopper.pack_gqa.heads()),
            _ => None,
        });
        packed.unwrap_or(1)
    }

    /// Bytes that [`Operands::workspace`] must have, unless the backend is to use its own; 0 if none is needed.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// How many of those bytes, from the first on, must be 0 before a workspace's first use: none of a backward pass, which
    /// writes what it reads. A workspace that other plans use too is zeroed as the one that needs most asks for. A plan of
    /// [`Variant::Decode`] shares one only with those of the same number here, as it leaves other contents behind these bytes.
    pub fn zeroed_workspace_bytes(&self) -> usize {
        match (self.counter_bytes, self.problem.gradients()) {
            (Some(counters), _) => counters,
            (None, None) => self.workspace_bytes,
            (None, Some(_)) => 0,
        }
    }

    /// How many of the workspace's bytes are counters of a decode kernel; `None` of a plan without.
    pub(crate) fn counter_bytes(&self) -> Option<usize> {
        self.counter_bytes
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns an error if a backend with capabilities `here` cannot launch this plan on `operands`.
    pub(crate) fn check(&self, here: &Capabilities, operands: &Operands) -> Result<(), Error> {
        if self.made_for != *here {
            let wrong = format!("it was made for {:?}", self.made_for);
            return Err(Error::argument(
                "plan",
                wrong,
                format!("one made for {here:?}"),
            ));
        }
        if self.problem.is_empty() {
            return Ok(());
        }
        operands.check(self)?;
        let is_hopper = |step: &Step| {
            use StepParams::{
                HopperBackward, HopperForward, ModifiedHopperBackward, ModifiedHopperForward,
            };
            matches!(
                step.params,
                HopperForward(..)
                    | ModifiedHopperForward(..)
                    | HopperBackward(..)
                    | ModifiedHopperBackward(..)
            )
        };
        match operands
            .misaligned_for_tma()
            .filter(|_| self.steps.iter().any(is_hopper))
        {
            None => Ok(()),
            Some(misaligned) => Err(misaligned.refuse(self)),
        }
    }
}
