//! A launch of a plan.

use kernels_gpu::abi::{
    BackwardParams, BiasGradientParams, BlockStatesParams, CacheScales, CheckCacheParams,
    DecodeParams, DeltaParams, ForwardParams, KeepMaskParams, ModifierParams, SinkGradientParams,
    SlopeSumsParams,
};
use kernels_gpu::instances::Instance;
use kernels_gpu::wgmma::scheduler::tile_list::TileListParams;
use kernels_gpu::wgmma::tensor_map::BackwardMaps;

use super::backward::WorkspaceLayout;
use super::hopper::HopperForward;

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
    /// The parameters of the kernel that makes a keep mask in the workspace, and where states are there.
    KeepMask(Box<KeepMaskParams>, WorkspaceLayout, Option<u64>),
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
