//! The launches that compute the gradient by ALiBi's slopes: a sum of each tile of queries, then of each slope's tiles.

use kernels_gpu::abi::{AttentionParams, SlopeSumsParams};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{Instance, Operation, SLOPES};
use kernels_gpu::tile::grid::TileGrid;

use crate::Problem;
use crate::plan::unfit::{modified, unfit, with_modifiers};
use crate::plan::{GpuCapabilities, Operands};

/// The kernel that computes the tiles' sums of `problem`, if the gradient is asked for: the one of the smallest padded head_dim
/// that fits.
///
/// # Errors
/// Why it cannot run.
pub(super) fn find(
    problem: &Problem,
    gpu: &GpuCapabilities,
) -> Result<Option<&'static Instance>, String> {
    if problem.d_alibi_slopes().is_none() {
        return Ok(None);
    }
    let table = modified(problem).unwrap_or(SLOPES);
    let kernel = smallest(table, Operation::BackwardSlopes, problem).ok_or_else(|| {
        let what = with_modifiers(problem);
        format!("it computes no gradient by ALiBi's slopes{what}")
    })?;
    unfit(kernel, problem, gpu).map_or(Ok(Some(kernel)), Err)
}

/// The kernel of `table` that performs `operation` on `problem` with the smallest padded head_dim.
pub(super) fn smallest(
    table: &'static [Instance],
    operation: Operation,
    problem: &Problem,
) -> Option<&'static Instance> {
    let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
    let fits = |row: &&Instance| {
        (row.operation, row.dtype) == (operation, problem.q().dtype)
            && row.head_dim as usize >= head_dim
    };
    table.iter().filter(fits).min_by_key(|row| row.head_dim)
}

/// The tiles of queries of a launch of `kernel`.
pub(super) fn tiles(kernel: &Instance, attention: &AttentionParams) -> TileGrid {
    let AttentionParams {
        batch,
        heads_q,
        seq_q,
        ..
    } = *attention;
    TileGrid::new(batch, heads_q, seq_q, kernel.block_m)
}

/// What the two launches need beside the parameters of the other backward kernels.
#[derive(Clone, Debug)]
pub(in crate::plan) struct SlopeLaunches {
    pub kernel: &'static Instance,
    pub grid: u32,
    /// Without addresses.
    pub sums: SlopeSumsParams,
    pub sums_grid: u32,
}

impl SlopeLaunches {
    /// Those of `problem` with `kernel`, where `attention` is what the kernel is given.
    pub fn new(problem: &Problem, kernel: &'static Instance, attention: &AttentionParams) -> Self {
        let is_batched = problem.alibi().is_some_and(|slopes| slopes.is_batched());
        let tiles_of_head = attention.seq_q.div_ceil(kernel.block_m);
        let batch = problem.batch();
        let slopes = problem.q().shape.heads as u64 * if is_batched { batch as u64 } else { 1 };
        Self {
            kernel,
            grid: tiles(kernel, attention).grid(),
            sums: SlopeSumsParams {
                sums: 0,
                d_alibi_slopes: 0,
                batch: batch as u32,
                heads: attention.heads_q,
                tiles: tiles_of_head,
                is_batched: is_batched.into(),
            },
            sums_grid: warp_per_row::grid(slopes),
        }
    }
}

/// `params` with addresses, of which that of the tiles' `sums` lies in the workspace.
pub(crate) fn bind_slope_sums(
    params: &SlopeSumsParams,
    operands: &Operands,
    sums: u64,
) -> SlopeSumsParams {
    let gradients = operands.gradients.unwrap_or_default();
    SlopeSumsParams {
        sums,
        d_alibi_slopes: gradients.d_alibi_slopes.unwrap_or_default(),
        ..*params
    }
}
