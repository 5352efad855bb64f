//! Launch plans: the kernels chosen for a problem, their grids and parameters, and the workspace, without addresses.
//!
//! A [`Plan`] is made once from a [`Problem`] and a backend's [`Capabilities`], and then launched with addresses
//! ([`Operands`]) any number of times. This module does not depend on backends.
//!
//! | file | what it does |
//! |---|---|
//! | `select` | which variants are *eligible*, which one is *preferred*, and its kernel |
//! | `backward` | the launches of a backward pass |
//! | `decode` | the launch of a decode kernel: of attention to a cache, or of few queries |
//! | `few_queries` | the rule by which a forward pass runs one |
//! | `slopes` | those of the gradient by ALiBi's slopes |
//! | `bias` | that of the gradient by a bias |
//! | `ds_chunks` | a backward pass in parts, where dS lies in the workspace |
//! | `hopper` | launch data of Hopper's kernels: packed GQA, tensor maps, the order of tiles |
//! | `modifiers` | masks, biases, sinks and dropout: their parameters, and what tiles and blocks look like |
//! | `params` | a kernel's parameters: first all that follows from the problem, then the addresses |
//! | `operands` | the addresses, and checks of them |
//! | `plans` | the plans of a problem that is launched often |
//! | `capabilities` | the properties of a backend from which kernels are chosen |

pub(crate) mod backward;
pub(crate) mod bias;
mod capabilities;
pub(crate) mod decode;
mod ds_chunks;
mod few_queries;
mod hopper;
pub(crate) mod modifiers;
mod operands;
pub(crate) mod params;
mod plans;
mod select;
mod short_sequences;
pub(crate) mod slopes;
mod tile_order;

use kernels_gpu::abi::{
    BackwardParams, BiasGradientParams, BlockStatesParams, CacheScales, CheckCacheParams,
    DecodeParams, DeltaParams, ForwardParams, ModifierParams, SinkGradientParams, SlopeSumsParams,
};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{
    Arch, BLOCK_STATES, CHECK_CACHE, Family, Instance, SINK_GRADIENT, SLOPE_SUMS, TILE_LIST,
};
use kernels_gpu::tile::grid::TileGrid;
use kernels_gpu::wgmma::scheduler::tile_list::TileListParams;
use kernels_gpu::wgmma::tensor_map::BackwardMaps;

pub use capabilities::{Capabilities, GpuCapabilities};
pub(crate) use hopper::HopperForward;
pub use modifiers::ModifierOperands;
pub use operands::{CacheOperands, GradientOperands, Operands, WORKSPACE_ALIGN_BYTES, Workspace};
pub use plans::Plans;
pub use select::{eligible, find_instance, instance_unfit, preferred, why_not};

use crate::{Error, Problem, Variant};
use backward::{BackwardKernels, BackwardLaunches, WorkspaceLayout};
use decode::DecodeLaunch;
use hopper::checked_cache_bytes;
use modifiers::{StatesLaunch, StatesOfKernels, modifier_params};
use select::{How, Kernel, Question, choose};

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

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub kernel: &'static Instance,
    /// Number of blocks.
    pub grid: u32,
    /// Where its workspace begins in that of the plan, in bytes.
    pub workspace_begin: u64,
    /// Whether it may begin before the step before it has ended, as kernels of Hopper wait for that by themselves.
    pub begins_early: bool,
    pub params: StepParams,
}

/// Parameters of a step's kernel, without addresses.
#[derive(Clone, Debug)]
pub(crate) enum StepParams {
    /// The parameters of every forward kernel.
    Forward(ForwardParams),
    /// Those, and the launch data of a Hopper kernel; and where in the workspace the lengths of a cache are.
    HopperForward(ForwardParams, Box<HopperForward>, Option<u64>),
    /// All of these.
    ModifiedHopperForward(
        ForwardParams,
        Box<HopperForward>,
        Box<ModifierParams>,
        Option<u64>,
    ),
    /// The parameters of the kernel that computes lse in bits and delta.
    Delta(DeltaParams, WorkspaceLayout),
    /// Those of every other backward kernel.
    Backward(BackwardParams, WorkspaceLayout),
    /// Those, and the tensor maps of Hopper's kernels, of operands at address 0.
    HopperBackward(BackwardParams, Box<BackwardMaps>, WorkspaceLayout),
    /// The parameters of the kernel that computes tiles' sums of the gradient by slopes, whose address it is given too.
    Slopes(BackwardParams, WorkspaceLayout),
    /// The parameters of the kernel that adds them up.
    SlopeSums(SlopeSumsParams, WorkspaceLayout),
    /// The parameters of a forward kernel with modifiers, and where the states of its blocks are in the workspace.
    ModifiedForward(ForwardParams, Box<ModifierParams>, Option<u64>),
    /// The same of a backward kernel.
    ModifiedBackward(
        BackwardParams,
        Box<ModifierParams>,
        WorkspaceLayout,
        Option<u64>,
    ),
    /// The same of a Hopper kernel, and the tensor maps, of operands at address 0.
    ModifiedHopperBackward(
        BackwardParams,
        Box<BackwardMaps>,
        Box<ModifierParams>,
        WorkspaceLayout,
        Option<u64>,
    ),
    /// The parameters of the kernel that finds states, and where it leaves them in the workspace.
    BlockStates(Box<BlockStatesParams>, u64),
    /// As `Slopes`, with modifiers.
    ModifiedSlopes(
        BackwardParams,
        Box<ModifierParams>,
        WorkspaceLayout,
        Option<u64>,
    ),
    /// The parameters of the kernel that computes the gradient by a bias.
    BiasGradient(
        BackwardParams,
        Box<ModifierParams>,
        Box<BiasGradientParams>,
        WorkspaceLayout,
        Option<u64>,
    ),
    /// The parameters of the kernel that computes the gradient by sinks.
    SinkGradient(SinkGradientParams, WorkspaceLayout),
    /// The parameters of a decode kernel, and the scales of a cache of e4m3.
    Decode(Box<DecodeParams>, Option<CacheScales>),
    /// The parameters of the kernel that lists tiles for the next step; and where in the workspace the lengths of a cache are.
    TileList(TileListParams, Option<u64>),
    /// The parameters of the kernel that checks a cache, and where in the workspace it leaves lengths.
    CheckCache(Box<CheckCacheParams>, u64),
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

    /// Adds the launches of a Hopper kernel, for sequences with `fewest_queries` at least.
    fn add_hopper(
        &mut self,
        instance: &'static Instance,
        hopper: Box<HopperForward>,
        params: &ForwardParams,
        fewest_queries: u32,
    ) {
        let tile = instance.wgmma().expect("a Hopper kernel has such a tile");
        let list = hopper.tile_list(params, tile);
        // Behind that of a decode kernel.
        let begin = (self.workspace_bytes as u64).next_multiple_of(WORKSPACE_ALIGN_BYTES);
        self.workspace_begin = begin;
        let bytes = HopperForward::workspace(list.as_ref()).bytes;
        self.workspace_bytes = (begin + bytes) as usize;
        let lens = self.add_cache_check(&hopper, params, fewest_queries);
        if let Some(list) = list {
            self.add(&TILE_LIST, 1, StepParams::TileList(list, lens));
        }
        let grid = hopper.schedule.clusters * tile.cluster;
        // A cache's has sinks at most, which are told with its pages.
        let params = match self.problem.modifiers().is_none() || hopper.pages.is_some() {
            true => StepParams::HopperForward(*params, hopper, lens),
            false => {
                let (modifiers, place) = self.add_forward_states(instance, params);
                StepParams::ModifiedHopperForward(*params, hopper, modifiers, place)
            }
        };
        self.add(instance, grid, params);
    }

    /// Adds the launch that checks a cache, if one is read; returns where in the workspace it leaves lengths, which lie behind what
    /// else there is.
    fn add_cache_check(
        &mut self,
        hopper: &HopperForward,
        params: &ForwardParams,
        fewest_queries: u32,
    ) -> Option<u64> {
        let pages = hopper.pages?;
        let offset = self.workspace_bytes as u64 - self.workspace_begin;
        self.workspace_bytes += checked_cache_bytes(&pages);
        let check = Box::new(CheckCacheParams {
            attention: params.attention,
            pages,
            kv_lens: None,
            status: None,
            fewest_queries,
            reserved: 0,
        });
        let check = StepParams::CheckCache(check, offset);
        self.add(&CHECK_CACHE, pages.batch, check);
        Some(offset)
    }

    /// Adds the launch of a decode kernel.
    fn add_decode(&mut self, instance: &'static Instance, launch: DecodeLaunch) {
        self.workspace_bytes = launch.workspace_bytes;
        self.counter_bytes = Some(launch.counter_bytes);
        let params = StepParams::Decode(Box::new(launch.params), launch.scales);
        self.add(instance, launch.grid, params);
    }

    /// Adds the launches of a forward kernel with modifiers.
    fn add_modified(&mut self, instance: &'static Instance, params: &ForwardParams) {
        let (modifiers, place) = self.add_forward_states(instance, params);
        let attention = &params.attention;
        let (batch, heads) = (attention.batch, attention.heads_q);
        let tiles = TileGrid::new(batch, heads, attention.seq_q, instance.block_m);
        let params = StepParams::ModifiedForward(*params, modifiers, place);
        self.add(instance, tiles.grid(), params);
    }

    /// Adds the launch that finds states for a forward kernel, behind what else there is in the workspace; returns what the
    /// kernel is given.
    fn add_forward_states(
        &mut self,
        instance: &Instance,
        params: &ForwardParams,
    ) -> (Box<ModifierParams>, Option<u64>) {
        let tile = [instance.block_m, instance.block_n];
        let states = StatesLaunch::new(&self.problem, &params.attention, tile);
        let others = (self.workspace_bytes as u64).max(backward::RESERVED_BYTES);
        let offset = others.next_multiple_of(WORKSPACE_ALIGN_BYTES);
        let (modifiers, place) = self.add_states(states.as_ref(), offset);
        if let Some(states) = states {
            self.workspace_bytes = (offset + states.bytes) as usize;
        }
        (Box::new(modifiers), place)
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

    /// Adds the launches of a backward pass, except those without rows, whose grids are empty.
    fn add_backward(&mut self, kernels: &BackwardKernels, gpu: &GpuCapabilities) {
        let launches = BackwardLaunches::new(&self.problem, kernels, gpu);
        self.workspace_bytes = launches.workspace_bytes;
        let layout = launches.layout;
        let delta = StepParams::Delta(launches.delta, layout);
        self.add_unless_empty(kernels.delta, launches.delta_grid, delta);
        if let Some(states) = &launches.modified {
            self.add_modified_backward(kernels, &launches, states);
            return;
        }
        for chunk in &launches.chunks {
            let mut params = launches.params;
            params.ds = chunk.ds;
            for (kernel, grid) in [
                (kernels.keys, chunk.keys_grid),
                (kernels.queries, chunk.queries_grid),
            ] {
                // The one that rounds dq is no Hopper kernel.
                let maps = kernels.maps.filter(|_| kernel.family == Family::Wgmma);
                let params = match maps {
                    None => StepParams::Backward(params, layout),
                    Some(maps) => StepParams::HopperBackward(params, Box::new(maps), layout),
                };
                self.add_unless_empty(kernel, grid, params);
            }
        }
        if let Some(slopes) = launches.slopes {
            let params = StepParams::Slopes(launches.params, layout);
            self.add_unless_empty(slopes.kernel, slopes.grid, params);
            let sums = StepParams::SlopeSums(slopes.sums, layout);
            self.add_unless_empty(&SLOPE_SUMS, slopes.sums_grid, sums);
        }
    }

    /// Adds the launches of backward kernels with modifiers.
    fn add_modified_backward(
        &mut self,
        kernels: &BackwardKernels,
        launches: &BackwardLaunches,
        states: &StatesOfKernels,
    ) {
        let &BackwardLaunches { layout, params, .. } = launches;
        let chunk = &launches.chunks[0];
        let mut found = Vec::new();
        for (kernel, grid) in [
            (kernels.keys, chunk.keys_grid),
            (kernels.queries, chunk.queries_grid),
        ] {
            if grid > 0 {
                let (modifiers, place) = self.states_of(kernel, launches, states, &mut found);
                // The one that rounds dq is no Hopper kernel.
                let maps = kernels.maps.filter(|_| kernel.family == Family::Wgmma);
                let params = match maps.map(Box::new) {
                    None => StepParams::ModifiedBackward(params, modifiers, layout, place),
                    Some(maps) => {
                        StepParams::ModifiedHopperBackward(params, maps, modifiers, layout, place)
                    }
                };
                self.add(kernel, grid, params);
            }
        }
        if let Some(slopes) = &launches.slopes {
            if slopes.grid > 0 {
                let (modifiers, place) =
                    self.states_of(slopes.kernel, launches, states, &mut found);
                let params = StepParams::ModifiedSlopes(params, modifiers, layout, place);
                self.add(slopes.kernel, slopes.grid, params);
            }
            let sums = StepParams::SlopeSums(slopes.sums, layout);
            self.add_unless_empty(&SLOPE_SUMS, slopes.sums_grid, sums);
        }
        if let Some(bias) = launches.bias.filter(|bias| bias.grid > 0) {
            let (modifiers, place) = self.states_of(bias.kernel, launches, states, &mut found);
            let of = Box::new(bias.params);
            let params = StepParams::BiasGradient(params, modifiers, of, layout, place);
            self.add(bias.kernel, bias.grid, params);
        }
        if let Some(sinks) = launches.sinks {
            let grid = warp_per_row::grid(sinks.heads.into());
            self.add(
                &SINK_GRADIENT,
                grid,
                StepParams::SinkGradient(sinks, layout),
            );
        }
    }

    /// What `kernel` is given of modifiers. Adds the launch that finds its states, unless that of a kernel before, which are
    /// `found`, did.
    fn states_of(
        &mut self,
        kernel: &Instance,
        launches: &BackwardLaunches,
        states: &StatesOfKernels,
        found: &mut Vec<usize>,
    ) -> (Box<ModifierParams>, Option<u64>) {
        let Some(index) = states.index(kernel) else {
            return (Box::new(modifier_params(&self.problem)), None);
        };
        let offset = launches.layout.states() + states.offset(index);
        let launch = states.launch(index);
        if found.contains(&index) {
            let modifiers = launch.map_or_else(
                || modifier_params(&self.problem),
                |launch| launch.params.modifiers,
            );
            return (Box::new(modifiers), launch.map(|_| offset));
        }
        found.push(index);
        let (modifiers, place) = self.add_states(launch, offset);
        (Box::new(modifiers), place)
    }

    fn add_unless_empty(&mut self, kernel: &'static Instance, grid: u32, params: StepParams) {
        if grid > 0 {
            self.add(kernel, grid, params);
        }
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
