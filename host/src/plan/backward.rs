//! The launches of a backward pass: lse in bits and delta of every row, then dk and dv, then dq.

use bytemuck::Zeroable;
use kernels_gpu::abi::{BackwardParams, DeltaParams, DeviceAddress, RowTerms};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{BACKWARD, Family, Instance, Operation};
use kernels_gpu::tile::grid::TileGrid;

use super::params::{Arrays, attention_params, bind_attention, tensor_arg};
use super::select::instance_unfit;
use super::{GpuCapabilities, Operands, WORKSPACE_ALIGN_BYTES};
use crate::{GradientOperands, Problem};

/// The kernels of one backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackwardKernels {
    pub delta: &'static Instance,
    pub keys: &'static Instance,
    pub queries: &'static Instance,
}

impl BackwardKernels {
    /// Those of `family` that waste least on `problem`: the smallest padded head_dim that fits, and of two for the same
    /// the first in the table that can run.
    ///
    /// # Errors
    /// Why there are none.
    pub fn find(family: Family, problem: &Problem, gpu: &GpuCapabilities) -> Result<Self, String> {
        let dtype = problem.q().dtype;
        let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
        let of_operation = |operation| {
            let of_dtype = BACKWARD.iter().filter(move |row| row.dtype == dtype);
            of_dtype.filter(move |row| row.operation == operation)
        };
        let of_family = || of_operation(Operation::BackwardKeys).filter(|row| row.family == family);
        if of_family().next().is_none() {
            return Err(format!("it has no {} backward kernel", dtype.name()));
        }
        let wide_enough = of_family().filter(|row| row.head_dim as usize >= head_dim);
        let mut candidates: Vec<_> = wide_enough.collect();
        candidates.sort_by_key(|row| row.head_dim);
        let mut refusal = None;
        for keys in candidates {
            match instance_unfit(keys, gpu) {
                None => {
                    let like_it = |row: &&Instance| {
                        (row.family, row.head_dim, row.shared_bytes)
                            == (family, keys.head_dim, keys.shared_bytes)
                    };
                    let queries = of_operation(Operation::BackwardQueries).find(like_it);
                    let delta = of_operation(Operation::BackwardDelta).next();
                    return Ok(Self {
                        delta: delta.expect("every dtype has one"),
                        keys,
                        queries: queries.expect("both are made of one tile shape"),
                    });
                }
                Some(reason) => {
                    refusal.get_or_insert(reason);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| format!("it has no kernel for head_dim {head_dim}")))
    }
}

/// The parameters of the kernels, without addresses.
#[derive(Clone, Debug)]
pub(super) struct BackwardLaunches {
    pub delta: DeltaParams,
    pub delta_grid: u32,
    pub params: BackwardParams,
    pub keys_grid: u32,
    pub queries_grid: u32,
    pub workspace_bytes: usize,
}

impl BackwardLaunches {
    /// Those of `problem`, which is a backward pass and not empty.
    pub fn new(problem: &Problem, kernels: &BackwardKernels) -> Self {
        let specs = problem.gradients().expect("a backward pass");
        let attention = attention_params(problem);
        let o = problem.o().shape;
        let terms = RowTerms::zeroed();
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
        };
        let (batch, heads_q, heads_kv) = (attention.batch, attention.heads_q, attention.heads_kv);
        let keys = TileGrid::new(batch, heads_kv, attention.seq_kv, kernels.keys.block_m);
        let queries = TileGrid::new(batch, heads_q, attention.seq_q, kernels.queries.block_m);
        Self {
            delta,
            delta_grid: warp_per_row::grid(rows(problem) as u64),
            params: BackwardParams {
                attention,
                d_o: tensor_arg(&specs.d_o),
                dq: tensor_arg(&specs.dq),
                dk: tensor_arg(&specs.dk),
                dv: tensor_arg(&specs.dv),
                terms,
            },
            keys_grid: keys.grid(),
            queries_grid: queries.grid(),
            workspace_bytes: 2 * array_bytes(problem),
        }
    }
}

/// Rows of o, of all heads.
fn rows(problem: &Problem) -> usize {
    let shape = problem.o().shape;
    shape.batch * shape.heads * shape.seq
}

/// Bytes of one of the two arrays in the workspace.
fn array_bytes(problem: &Problem) -> usize {
    (rows(problem) * size_of::<f32>()).next_multiple_of(WORKSPACE_ALIGN_BYTES as usize)
}

/// Where lse in bits and delta lie in a workspace at `address`.
fn terms(problem: &Problem, address: u64) -> RowTerms {
    RowTerms {
        lse_log2: address,
        delta: address + array_bytes(problem) as u64,
    }
}

/// The addresses of gradients, which the checks have seen.
fn gradients(operands: &Operands) -> GradientOperands {
    operands.gradients.unwrap_or_default()
}

/// `params` with addresses.
pub(crate) fn bind_delta(
    params: &DeltaParams,
    problem: &Problem,
    operands: &Operands,
    workspace: u64,
) -> DeltaParams {
    let GradientOperands { d_o, d_lse, .. } = gradients(operands);
    let mut params = *params;
    params.o.address = operands.o;
    params.d_o.address = d_o;
    params.lse = operands.lse.unwrap_or_default();
    params.d_lse = d_lse.and_then(DeviceAddress::new);
    params.terms = terms(problem, workspace);
    params
}

/// `params` with addresses.
pub(crate) fn bind_backward(
    params: &BackwardParams,
    problem: &Problem,
    operands: &Operands,
    arrays: &Arrays,
    workspace: u64,
) -> BackwardParams {
    let GradientOperands {
        d_o,
        d_lse: _,
        dq,
        dk,
        dv,
    } = gradients(operands);
    let mut params = *params;
    bind_attention(&mut params.attention, operands, arrays);
    params.d_o.address = d_o;
    params.dq.address = dq;
    params.dk.address = dk;
    params.dv.address = dv;
    params.terms = terms(problem, workspace);
    params
}
