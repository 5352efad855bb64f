//! The kernels of a backward pass: which there are for a problem, and which of them run it.

use bytemuck::Zeroable;
use kernels_gpu::abi::{BackwardParams, DsChunk, RowTerms};
use kernels_gpu::instances::{BACKWARD, Family, Instance, KernelConfig, Operation};
use kernels_gpu::score::is_plain;
use kernels_gpu::wgmma::tensor_map::BackwardMaps;

use super::attention::{backward_attention, dq_sums, dq_sums_bytes, dq_sums_order};
use super::ds_chunks::{DsChunks, queries_operation};
use super::keep_mask::KeepMaskParts;
use super::{bias, slopes};
use crate::Problem;
use crate::plan::GpuCapabilities;
use crate::plan::hopper::words;
use crate::plan::params::tensor_arg;
use crate::plan::unfit::{modified, unfit, with_modifiers};

/// The kernels of one backward pass.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct BackwardKernels {
    pub delta: &'static Instance,
    pub keys: &'static Instance,
    /// dq, after the others.
    pub queries: &'static Instance,
    /// Tensor maps of Hopper's kernels.
    pub maps: Option<BackwardMaps>,
    /// Sums of the gradient by ALiBi's slopes, if it is asked for.
    pub(super) slopes: Option<&'static Instance>,
    /// The gradient by the bias, if it is asked for.
    pub(super) bias: Option<&'static Instance>,
    /// The parts in which dS is stored, if it is.
    pub(super) ds: Option<DsChunks>,
    /// The parts of which a keep mask is in the workspace at a time, if the kernel of dk and dv finds it there.
    pub(super) keep_mask: Option<KeepMaskParts>,
}

impl BackwardKernels {
    /// Whether the kernel of dk and dv adds up dq.
    pub(super) fn adds_dq(&self) -> bool {
        self.keys.operation == Operation::BackwardFused
    }
}

/// Whether dq may be added up while dk and dv are computed.
fn may_fuse(problem: &Problem) -> bool {
    let backward = problem.as_backward().expect("a backward pass");
    !backward.deterministic && dq_sums_bytes(problem) <= workspace_limit_bytes(problem)
}

/// What sums of dq, with a keep mask, or dS may take of the workspace.
pub(super) fn workspace_limit_bytes(problem: &Problem) -> u64 {
    let backward = problem.as_backward().expect("a backward pass");
    backward.workspace_limit_bytes as u64
}

/// The kernels of dk and dv that may run, those first that save the most: all scores are computed once by the first two,
/// and twice by the third.
fn keys_operations(problem: &Problem) -> &'static [Operation] {
    use Operation::{BackwardFused, BackwardKeys, BackwardSplitKeys};
    // None that store dS take modifiers.
    match may_fuse(problem) {
        true => &[BackwardFused, BackwardSplitKeys, BackwardKeys],
        false => &[BackwardSplitKeys, BackwardKeys],
    }
}

/// Whether a block of `kernel` takes one tile after the other, of which there is so no more than one a multiprocessor.
pub(super) fn takes_tiles_in_turn(kernel: &Instance) -> bool {
    matches!(kernel.config, KernelConfig::WgmmaBackward(_))
}

impl BackwardKernels {
    /// Those of `family` that waste least on `problem`: the smallest padded head_dim that fits, of those for the same the
    /// operation that saves most, and of two for that the first in the table that can run.
    ///
    /// # Errors
    /// Why there are none.
    pub fn find(family: Family, problem: &Problem, gpu: &GpuCapabilities) -> Result<Self, String> {
        let dtype = problem.q().dtype;
        let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
        let operations = keys_operations(problem);
        let order = |row: &Instance| operations.iter().position(|is| *is == row.operation);
        let of_family = |row: &&Instance| (row.family, row.dtype) == (family, dtype);
        let mut candidates: Vec<_> = table(problem).iter().filter(of_family).collect();
        candidates.retain(|row| order(row).is_some());
        if candidates.is_empty() {
            let what = with_modifiers(problem);
            return Err(format!("it has no {} backward kernel{what}", dtype.name()));
        }
        let has_bias = problem.modifiers().bias.is_some();
        candidates.retain(|row| row.head_dim as usize >= head_dim && row.is_for(has_bias));
        candidates.sort_by_key(|row| (row.head_dim, order(row)));
        let mut refusal = None;
        for keys in candidates {
            match Self::of(keys, problem, gpu) {
                Ok(kernels) => return Ok(kernels),
                Err(reason) => {
                    refusal.get_or_insert(reason);
                }
            }
        }
        Err(refusal.unwrap_or_else(|| format!("it has no kernel for head_dim {head_dim}")))
    }

    /// `keys`, and those that come with it.
    ///
    /// # Errors
    /// Why one of them cannot run `problem`.
    fn of(
        keys: &'static Instance,
        problem: &Problem,
        gpu: &GpuCapabilities,
    ) -> Result<Self, String> {
        let operation = queries_operation(keys);
        if operation == Operation::BackwardRound && keys.head_dim != dq_sums(problem).dims() {
            return Err("it adds dq wider than its sums are".to_owned());
        }
        let of_operation = |operation| {
            let table = match operation {
                Operation::BackwardDelta => BACKWARD,
                _ => table(problem),
            };
            let of_dtype = table.iter().filter(|row| row.dtype == keys.dtype);
            of_dtype.filter(move |row| row.operation == operation)
        };
        let tile = |row: &'static Instance| row.name.split_once(row.operation.name());
        let like_it = |row: &&'static Instance| match operation {
            // Of no head_dim, unless a score modification is compiled in.
            Operation::BackwardRound => [0, keys.head_dim].contains(&row.head_dim),
            _ => tile(row) == tile(keys),
        };
        let queries = of_operation(operation).find(like_it);
        let queries = queries.expect("kernels of one tile shape come together");
        let delta = of_operation(Operation::BackwardDelta).next();
        for kernel in [keys, queries] {
            unfit(kernel, problem, gpu).map_or(Ok(()), Err)?;
        }
        let is_split = operation == Operation::BackwardSplitQueries;
        let ds = is_split.then(|| {
            let limit = workspace_limit_bytes(problem);
            DsChunks::new(&backward_attention(problem), keys, queries, limit)
        });
        Ok(Self {
            delta: delta.expect("every dtype has one"),
            keys,
            queries,
            maps: maps(keys, problem)?,
            slopes: slopes::find(problem, gpu)?,
            bias: bias::find(problem, gpu)?,
            ds: ds.transpose()?,
            keep_mask: KeepMaskParts::new(problem, keys)?,
        })
    }
}

/// The kernels that may compute dq, dk and dv of `problem`.
fn table(problem: &Problem) -> &'static [Instance] {
    modified(problem).unwrap_or(BACKWARD)
}

/// Tensor maps with which Hopper kernel `keys` runs `problem`, if it is one.
///
/// # Errors
/// Why it cannot.
fn maps(keys: &Instance, problem: &Problem) -> Result<Option<BackwardMaps>, String> {
    if keys.family != Family::Wgmma || problem.is_empty() {
        return Ok(None);
    }
    let params = backward_params(problem, keys);
    // Slopes are bound with the addresses, so that the parameters do not tell of them yet.
    if problem.alibi().is_some() || !is_plain(&params.attention.score) {
        return Err(
            "it computes gradients of plain scores: a positive softmax_scale, no softcap, no ALiBi"
                .to_owned(),
        );
    }
    let refused = |(operand, reason)| format!("TMA cannot reach {operand}: {}", words(reason));
    BackwardMaps::new(&params).map(Some).map_err(refused)
}

/// The parameters of backward kernels for `problem`, without addresses.
pub(super) fn backward_params(problem: &Problem, keys: &Instance) -> BackwardParams {
    let specs = problem.gradients().expect("a backward pass");
    BackwardParams {
        attention: backward_attention(problem),
        d_o: tensor_arg(&specs.d_o),
        dq: tensor_arg(&specs.dq),
        dk: tensor_arg(&specs.dk),
        dv: tensor_arg(&specs.dv),
        terms: RowTerms::zeroed(),
        dq_sums: None,
        dq_sums_order: dq_sums_order(keys) as u32,
        reserved: 0,
        dq_exponents: None,
        tile_count: 0,
        ds: DsChunk::zeroed(),
    }
}
