//! The parameters and grids of a backward pass's launches.

use bytemuck::Zeroable;
use kernels_gpu::abi::{
    BackwardParams, DeltaParams, DsChunk, KeepMaskArg, RowTerms, SinkGradientParams,
};
use kernels_gpu::config::warp_per_row::{self, DELTA_WARP_ROWS};
use kernels_gpu::instances::Instance;
use kernels_gpu::tile::grid::TileGrid;

use super::attention::backward_attention;
use super::bias::BiasLaunch;
use super::ds_chunks::Chunk;
use super::kernels::{BackwardKernels, backward_params, takes_tiles_in_turn};
use super::layout::{WorkspaceLayout, rows};
use super::slopes::SlopeLaunches;
use crate::Problem;
use crate::plan::GpuCapabilities;
use crate::plan::modifiers::{StatesOfKernels, sink_gradient_params};
use crate::plan::params::tensor_arg;

/// The parameters of the kernels, without addresses.
#[derive(Clone, Debug)]
pub(super) struct BackwardLaunches {
    pub delta: DeltaParams,
    pub delta_grid: u32,
    pub params: BackwardParams,
    /// The launches of the other two kernels, in turn.
    pub chunks: Vec<Chunk>,
    /// Those of the gradient by slopes, behind them.
    pub slopes: Option<SlopeLaunches>,
    /// Of a pass with modifiers, the launches of the kernel of dk and dv: one, or one for each part whose keep mask is in memory.
    pub modified_keys: Vec<ModifiedKeys>,
    /// Of kernels with modifiers, what the tiles and blocks of each look like.
    pub modified: Option<StatesOfKernels>,
    /// The launch of the gradient by a bias.
    pub bias: Option<BiasLaunch>,
    /// The launch of the gradient by sinks, without addresses.
    pub sinks: Option<SinkGradientParams>,
    pub layout: WorkspaceLayout,
    pub workspace_bytes: usize,
}

/// A launch of the kernel of dk and dv with modifiers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModifiedKeys {
    /// The mask that is made for it, without an address.
    pub keep_mask: Option<KeepMaskArg>,
    pub grid: u32,
}

impl BackwardLaunches {
    /// Those of `problem`, which is a backward pass and not empty, on `gpu`.
    pub fn new(problem: &Problem, kernels: &BackwardKernels, gpu: &GpuCapabilities) -> Self {
        let specs = problem.gradients().expect("a backward pass");
        let attention = backward_attention(problem);
        let o = problem.o().shape;
        let terms = RowTerms::zeroed();
        let modified = (!problem.modifiers().is_none()).then(|| {
            let all = [
                Some(kernels.keys),
                Some(kernels.queries),
                kernels.slopes,
                kernels.bias,
            ];
            StatesOfKernels::new(problem, &attention, all.into_iter().flatten())
        });
        let layout = WorkspaceLayout::new(problem, kernels, modified.as_ref());
        let delta = DeltaParams {
            o: tensor_arg(problem.o()),
            d_o: tensor_arg(&specs.d_o),
            lse: 0,
            d_lse: None,
            terms,
            batch: o.batch as u32,
            heads: o.heads as u32,
            seq: o.seq as u32,
            dim: o.dim as u32,
            zeroed: None,
            zeroed_bytes: layout.zeroed_bytes(),
        };
        let (batch, heads_q, heads_kv) = (attention.batch, attention.heads_q, attention.heads_kv);
        let grid = |kernel: &Instance, batch, heads, seq| {
            let tiles = TileGrid::new(batch, heads, seq, kernel.block_m).grid();
            match takes_tiles_in_turn(kernel) {
                true => tiles.min(gpu.multiprocessors),
                false => tiles,
            }
        };
        let whole = Chunk {
            ds: DsChunk::zeroed(),
            keys_grid: grid(kernels.keys, batch, heads_kv, attention.seq_kv),
            queries_grid: grid(kernels.queries, batch, heads_q, attention.seq_q),
        };
        let at_once = ModifiedKeys {
            keep_mask: None,
            grid: whole.keys_grid,
        };
        let of_part = |part: KeepMaskArg| ModifiedKeys {
            keep_mask: Some(part),
            grid: grid(kernels.keys, 1, part.units, attention.seq_kv),
        };
        Self {
            delta,
            // It sets words to 0 also where there are no rows.
            delta_grid: warp_per_row::grid((rows(problem) as u64).div_ceil(DELTA_WARP_ROWS))
                .max(u32::from(layout.zeroed_bytes() > 0)),
            params: backward_params(problem, kernels.keys),
            chunks: kernels.ds.map_or(vec![whole], |ds| ds.iter().collect()),
            slopes: kernels
                .slopes
                .map(|kernel| SlopeLaunches::new(problem, kernel, &attention)),
            modified_keys: kernels
                .keep_mask
                .map_or(vec![at_once], |parts| parts.iter().map(of_part).collect()),
            modified,
            bias: kernels
                .bias
                .map(|kernel| BiasLaunch::new(problem, kernel, &attention)),
            sinks: problem
                .d_sinks()
                .map(|_| sink_gradient_params(&attention, o.seq)),
            workspace_bytes: layout.bytes(),
            layout,
        }
    }
}
