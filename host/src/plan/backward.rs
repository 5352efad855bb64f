//! The launches of a backward pass: lse in bits and delta of every row, then dk and dv, then dq.
//!
//! Where a family has a kernel that adds up dq while it computes dk and dv, that one is taken, and dq is rounded in the end;
//! unless results are to repeat bit for bit, or the sums of dq need more workspace than is allowed. Where it has a pair of
//! kernels of which one stores dS for the other, those are taken, for as many heads at a time as the workspace holds
//! (`ds_chunks`).

use bytemuck::Zeroable;
use kernels_gpu::abi::{
    AttentionParams, BackwardParams, DeltaParams, DeviceAddress, DsChunk, LengthsParams, RowTerms,
    SinkGradientParams,
};
use kernels_gpu::config::warp_per_row::{self, DELTA_WARP_ROWS};
use kernels_gpu::instances::{BACKWARD, Family, Instance, KernelConfig, Operation};
use kernels_gpu::score::is_plain;
use kernels_gpu::tile::dq_sums::{DqSums, SumsOrder};
use kernels_gpu::tile::grid::TileGrid;
use kernels_gpu::wgmma::scheduler::tile_list::Workspace as TileListWorkspace;
use kernels_gpu::wgmma::tensor_map::BackwardMaps;

use super::bias::{self, BiasLaunch};
use super::ds_chunks::{Chunk, DsChunks, queries_operation};
use super::hopper::words;
use super::modifiers::{StatesOfKernels, sink_gradient_params};
use super::params::{Arrays, attention_params, bind_attention, tensor_arg};
use super::select::{modified, unfit, with_modifiers};
use super::slopes::{self, SlopeLaunches};
use super::{GpuCapabilities, Operands, WORKSPACE_ALIGN_BYTES};
use crate::{DType, GradientOperands, Problem};

/// The kernels of one backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackwardKernels {
    pub delta: &'static Instance,
    pub keys: &'static Instance,
    /// dq, after the others.
    pub queries: &'static Instance,
    /// Tensor maps of Hopper's kernels.
    pub maps: Option<BackwardMaps>,
    /// Sums of the gradient by ALiBi's slopes, if it is asked for.
    slopes: Option<&'static Instance>,
    /// The gradient by the bias, if it is asked for.
    bias: Option<&'static Instance>,
    /// The parts in which dS is stored, if it is.
    ds: Option<DsChunks>,
}

impl BackwardKernels {
    /// Whether the kernel of dk and dv adds up dq.
    fn adds_dq(&self) -> bool {
        self.keys.operation == Operation::BackwardFused
    }
}

/// Whether dq may be added up while dk and dv are computed.
fn may_fuse(problem: &Problem) -> bool {
    let backward = problem.as_backward().expect("a backward pass");
    !backward.deterministic && dq_sums_bytes(problem) <= workspace_limit_bytes(problem)
}

/// What sums of dq, or dS, may take of the workspace.
fn workspace_limit_bytes(problem: &Problem) -> u64 {
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

/// The parameters that every kernel of the pass shares, without addresses.
///
/// Packed operands without a query are one sequence of all keys, none of which is seen: kernels take 0 rows of q for a sign
/// that nothing is packed.
fn backward_attention(problem: &Problem) -> AttentionParams {
    let attention = attention_params(problem);
    if !problem.is_packed() || problem.q().shape.seq > 0 {
        return attention;
    }
    AttentionParams {
        batch: 1,
        seq_q: 0,
        seq_kv: problem.k().shape.seq as u32,
        lengths: LengthsParams::zeroed(),
        ..attention
    }
}

/// Where dq is added up.
fn dq_sums(problem: &Problem) -> DqSums {
    DqSums::new(&backward_attention(problem))
}

/// The order in which the kernel of dk and dv adds up dq, if it does.
fn dq_sums_order(keys: &Instance) -> SumsOrder {
    match keys.family {
        Family::Wgmma => SumsOrder::Lanes,
        _ => SumsOrder::Registers,
    }
}

/// Bytes of dq's sums.
fn dq_sums_bytes(problem: &Problem) -> u64 {
    dq_sums(problem).bytes(&backward_attention(problem))
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
        candidates.retain(|row| row.head_dim as usize >= head_dim);
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
        // The one that rounds dq is of no head_dim.
        let tile = |row: &'static Instance| row.name.split_once(row.operation.name());
        let like_it = |row: &&'static Instance| {
            operation == Operation::BackwardRound || tile(row) == tile(keys)
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
fn backward_params(problem: &Problem, keys: &Instance) -> BackwardParams {
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
        tile_count: 0,
        ds: DsChunk::zeroed(),
    }
}

/// `maps` of operands that are where they are.
pub(crate) fn bind_maps(maps: &BackwardMaps, operands: &Operands) -> BackwardMaps {
    let mut maps = *maps;
    maps.q.address = operands.q;
    maps.k.address = operands.k;
    maps.v.address = operands.v;
    maps.d_o.address = gradients(operands).d_o;
    maps
}

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
    /// Of kernels with modifiers, what the tiles and blocks of each look like.
    pub modified: Option<StatesOfKernels>,
    /// The launch of the gradient by a bias.
    pub bias: Option<BiasLaunch>,
    /// The launch of the gradient by sinks, without addresses.
    pub sinks: Option<SinkGradientParams>,
    pub layout: WorkspaceLayout,
    pub workspace_bytes: usize,
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
        let grid = |kernel: &Instance, heads, seq| {
            let tiles = TileGrid::new(batch, heads, seq, kernel.block_m).grid();
            match takes_tiles_in_turn(kernel) {
                true => tiles.min(gpu.multiprocessors),
                false => tiles,
            }
        };
        let whole = Chunk {
            ds: DsChunk::zeroed(),
            keys_grid: grid(kernels.keys, heads_kv, attention.seq_kv),
            queries_grid: grid(kernels.queries, heads_q, attention.seq_q),
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

/// Whether a block of `kernel` takes one tile after the other, of which there is so no more than one a multiprocessor.
fn takes_tiles_in_turn(kernel: &Instance) -> bool {
    matches!(kernel.config, KernelConfig::WgmmaBackward(_))
}

/// Rows of o, of all heads.
fn rows(problem: &Problem) -> usize {
    let shape = problem.o().shape;
    shape.batch * shape.heads * shape.seq
}

/// Where things lie in the workspace of a backward pass.
///
/// ```text
/// 0    what other launches find as they left it ([`TileListWorkspace`])
/// 32   lse in bits, delta, and for f16 the largest |d_o|, of every row; the last also of every chunk of rows
/// ..   the count of tiles, of kernels that take them in turn
/// ..   sums of dq, or a chunk of dS and sums of dk and dv
/// ..   a sum of each tile for the gradient by slopes
/// ..   states of the blocks of kernels with modifiers
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkspaceLayout {
    /// Bytes of an array of rows, and of one of chunks of rows.
    array_bytes: u64,
    chunks_bytes: u64,
    has_largest_d_o: bool,
    /// 0 where no kernel counts tiles.
    tile_count_bytes: u64,
    /// 0 without sums.
    dq_sums_bytes: u64,
    /// 0 where no dS is stored.
    ds_bytes: u64,
    /// 0 where heads of k and v are computed whole.
    ds_sums_bytes: u64,
    /// 0 where no gradient by slopes is asked for.
    slope_sums_bytes: u64,
    /// States of the tiles and blocks of kernels with modifiers.
    states_bytes: u64,
}

/// Bytes that are left alone: no less than the semaphore of the tile count, which is 0 between launches.
pub(super) const RESERVED_BYTES: u64 = 32;
const _: () = {
    let semaphore = TileListWorkspace::TILE_COUNT_SEMAPHORE;
    assert!(semaphore + TileListWorkspace::TILE_COUNT_SEMAPHORE_BYTES <= RESERVED_BYTES);
    assert!(RESERVED_BYTES.is_multiple_of(WORKSPACE_ALIGN_BYTES));
};

/// Bytes of the count of tiles, so that the sums behind it begin with a sector.
const TILE_COUNT_BYTES: u64 = 32;

impl WorkspaceLayout {
    fn new(
        problem: &Problem,
        kernels: &BackwardKernels,
        modified: Option<&StatesOfKernels>,
    ) -> Self {
        let bytes = rows(problem) as u64 * size_of::<f32>() as u64;
        let (ds_bytes, ds_sums_bytes) = kernels.ds.map_or((0, 0), |ds| ds.bytes());
        Self {
            array_bytes: bytes.next_multiple_of(WORKSPACE_ALIGN_BYTES),
            chunks_bytes: bytes
                .div_ceil(DELTA_WARP_ROWS)
                .next_multiple_of(WORKSPACE_ALIGN_BYTES),
            has_largest_d_o: problem.q().dtype == DType::F16,
            tile_count_bytes: match takes_tiles_in_turn(kernels.keys) {
                true => TILE_COUNT_BYTES,
                false => 0,
            },
            dq_sums_bytes: match kernels.adds_dq() {
                true => dq_sums_bytes(problem),
                false => 0,
            },
            ds_bytes,
            ds_sums_bytes,
            slope_sums_bytes: kernels.slopes.map_or(0, |kernel| {
                let tiles = slopes::tiles(kernel, &backward_attention(problem));
                tiles.count * size_of::<f32>() as u64
            }),
            states_bytes: modified.map_or(0, StatesOfKernels::bytes),
        }
    }

    /// Bytes that are set to 0 before the kernels of dk, dv and dq run.
    fn zeroed_bytes(&self) -> u64 {
        self.tile_count_bytes + self.dq_sums_bytes
    }

    /// Where the arrays end, and what is set to 0 begins.
    fn tile_count(&self) -> u64 {
        let largest_bytes = match self.has_largest_d_o {
            true => self.array_bytes + self.chunks_bytes,
            false => 0,
        };
        RESERVED_BYTES + 2 * self.array_bytes + largest_bytes
    }

    /// Where sums of dq or dS begin.
    fn sums(&self) -> u64 {
        self.tile_count() + self.tile_count_bytes
    }

    fn bytes(&self) -> usize {
        (self.states() + self.states_bytes) as usize
    }

    /// Where the states of blocks begin, from the workspace's beginning.
    pub(super) fn states(&self) -> u64 {
        self.slope_sums(0) + self.slope_sums_bytes
    }

    /// The arrays of a workspace at `address`.
    fn terms(&self, address: u64) -> RowTerms {
        let array = |index: u64| address + RESERVED_BYTES + index * self.array_bytes;
        let largest_d_o = DeviceAddress::new(array(2)).filter(|_| self.has_largest_d_o);
        RowTerms {
            lse_log2: array(0),
            delta: array(1),
            largest_d_o,
            largest_of_chunk: array(3),
        }
    }

    /// The sums of dq in a workspace at `address`, if there are any.
    fn dq_sums(&self, address: u64) -> Option<DeviceAddress> {
        let sums = DeviceAddress::new(address + self.sums());
        sums.filter(|_| self.dq_sums_bytes > 0)
    }

    /// dS in a workspace at `address`, if it is stored.
    fn ds(&self, address: u64) -> Option<DeviceAddress> {
        let ds = DeviceAddress::new(address + self.sums());
        ds.filter(|_| self.ds_bytes > 0)
    }

    /// Sums of dk and dv in a workspace at `address`, if they wait there.
    fn ds_sums(&self, address: u64) -> Option<DeviceAddress> {
        let sums = DeviceAddress::new(address + self.sums() + self.ds_bytes);
        sums.filter(|_| self.ds_sums_bytes > 0)
    }

    /// Address of the tiles' sums for the gradient by slopes, in a workspace at `address`.
    pub(crate) fn slope_sums(&self, address: u64) -> u64 {
        address + self.sums() + self.dq_sums_bytes + self.ds_bytes + self.ds_sums_bytes
    }
}

/// The addresses of gradients, which the checks have seen.
fn gradients(operands: &Operands) -> GradientOperands {
    operands.gradients.unwrap_or_default()
}

/// `params` with addresses.
pub(crate) fn bind_delta(
    params: &DeltaParams,
    layout: &WorkspaceLayout,
    operands: &Operands,
    workspace: u64,
) -> DeltaParams {
    let GradientOperands { d_o, d_lse, .. } = gradients(operands);
    let mut params = *params;
    params.o.address = operands.o;
    params.d_o.address = d_o;
    params.lse = operands.lse.unwrap_or_default();
    params.d_lse = d_lse.and_then(DeviceAddress::new);
    params.terms = layout.terms(workspace);
    let zeroed = DeviceAddress::new(workspace + layout.tile_count());
    params.zeroed = zeroed.filter(|_| layout.zeroed_bytes() > 0);
    params
}

/// `params` with addresses.
pub(crate) fn bind_sink_gradient(
    params: &SinkGradientParams,
    layout: &WorkspaceLayout,
    operands: &Operands,
    arrays: &Arrays,
    workspace: u64,
) -> SinkGradientParams {
    let terms = layout.terms(workspace);
    SinkGradientParams {
        lse_log2: terms.lse_log2,
        delta: terms.delta,
        sinks: arrays.modifiers.sinks.unwrap_or_default(),
        d_sinks: gradients(operands).d_sinks.unwrap_or_default(),
        ..*params
    }
}

/// `params` with addresses.
pub(crate) fn bind_backward(
    params: &BackwardParams,
    layout: &WorkspaceLayout,
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
        d_alibi_slopes: _,
        d_sinks: _,
        d_bias: _,
    } = gradients(operands);
    let mut params = *params;
    bind_attention(&mut params.attention, operands, arrays);
    params.d_o.address = d_o;
    params.dq.address = dq;
    params.dk.address = dk;
    params.dv.address = dv;
    params.terms = layout.terms(workspace);
    params.dq_sums = layout.dq_sums(workspace);
    params.tile_count = workspace + layout.tile_count();
    params.ds.tiles = layout.ds(workspace);
    params.ds.sums = layout.ds_sums(workspace);
    params
}
