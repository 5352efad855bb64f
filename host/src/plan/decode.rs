//! The launch of a decode kernel: attention to a cache, or a forward pass of few queries. Its blocks find their work from the
//! lengths on the device.

use bytemuck::Zeroable;
use kernels_gpu::abi::{CacheScales, DecodeParams, DeviceAddress, FewestItems, ScaleArg};
use kernels_gpu::config::decode::{DecodeConfig, DecodeWorkspace};
use kernels_gpu::instances::{Arch, DECODE, Instance};

use super::GpuCapabilities;
use super::operands::Operands;
use super::params::{Arrays, bind_forward, forward_params};
use super::unfit::{instance_unfit, with_modifiers};
use crate::{CacheLayout, DType, Problem, TensorSpec};

/// Shared memory that the system takes of an SM for each block.
const SYSTEM_SHARED_BYTES: u32 = 1024;

/// The decode kernel for `problem`, of the smallest padded head_dim, and its launch; for sequences of at most `most_queries`, if that
/// is said, which are mostly single ones.
///
/// # Errors
/// Why there is none.
pub(super) fn find_decode(
    problem: &Problem,
    gpu: &GpuCapabilities,
    most_queries: Option<u32>,
) -> Result<(&'static Instance, DecodeLaunch), String> {
    check_covered(problem)?;
    let dtype = problem.q().dtype;
    let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
    let of_keys = problem.k().dtype;
    let is_e4m3 = of_keys == DType::E4m3;
    let converts = is_e4m3 && Arch::Sm89.runs_on(gpu.compute_capability);
    let reads = |config: &DecodeConfig| (config.is_e4m3, config.has_cvt) == (is_e4m3, converts);
    let mut of_dtype = DECODE
        .iter()
        .filter(|kernel| kernel.dtype == dtype && kernel.decode().is_some_and(reads))
        .peekable();
    if of_dtype.peek().is_none() {
        let of_cache = match problem.cache_layout() {
            None => String::new(),
            Some(_) => format!(" for a cache of {}", of_keys.name()),
        };
        return Err(format!("it has no {} kernel{of_cache}", dtype.name()));
    }
    let rows = match most_queries {
        None => problem.seq_q().saturating_mul(problem.group()),
        Some(_) => problem.group(),
    };
    let mut of_head_dim = of_dtype.skip_while(|kernel| (kernel.head_dim as usize) < head_dim);
    let smallest = of_head_dim.next();
    let smallest = smallest.ok_or_else(|| format!("it has no kernel for head_dim {head_dim}"))?;
    // Of the same head_dim, one whose tiles hold all rows, or the one with most.
    let kernel = of_head_dim
        .take_while(|kernel| kernel.head_dim == smallest.head_dim)
        .fold(smallest, |kernel, next| {
            if (kernel.block_m as usize) < rows {
                next
            } else {
                kernel
            }
        });
    if let Some(reason) = instance_unfit(kernel, gpu) {
        return Err(reason);
    }
    let most_queries = most_queries.unwrap_or(u32::MAX);
    Ok((
        kernel,
        DecodeLaunch::new(problem, kernel, gpu, most_queries)?,
    ))
}

/// Refuses what no decode kernel does.
fn check_covered(problem: &Problem) -> Result<(), String> {
    if problem.gradients().is_some() {
        return Err("it has no kernel for gradients".to_owned());
    }
    if problem.is_packed() && problem.cache_layout().is_none() {
        return Err("it has no kernel for packed sequences without a cache".to_owned());
    }
    if !problem.modifiers().are_of_caches() {
        return Err(format!("it has no kernel{}", with_modifiers(problem)));
    }
    Ok(())
}

/// The launch of a decode kernel.
#[derive(Debug)]
pub(super) struct DecodeLaunch {
    pub params: DecodeParams,
    /// What kernels of e4m3 caches are given too.
    pub scales: Option<CacheScales>,
    pub grid: u32,
    pub workspace_bytes: usize,
    pub counter_bytes: usize,
}

impl DecodeLaunch {
    /// # Errors
    /// Why `kernel` cannot run the problem.
    fn new(
        problem: &Problem,
        kernel: &Instance,
        gpu: &GpuCapabilities,
        most_queries: u32,
    ) -> Result<Self, String> {
        let config = kernel.decode().expect("of the table of decode kernels");
        let too_large = || "its items of work are more than it can number".to_owned();
        let heads_kv = problem.k().shape.heads as u64;
        let rows = (problem.seq_q() as u64).saturating_mul(problem.group() as u64);
        let tile_rows = u64::from(config.rows);
        // Kernels count rows in 32 bits, past the last by less than a tile.
        if rows > i32::MAX as u64 {
            return Err(too_large());
        }
        let batch = problem.batch() as u64;
        let most_rows = rows.min(u64::from(most_queries).saturating_mul(problem.group() as u64));
        let mut row_tiles = batch.saturating_mul(most_rows.div_ceil(tile_rows));
        if problem.is_packed() {
            // Of all rows together, and a tile that is not full for each sequence.
            let all_rows = (problem.q().shape.seq as u64).saturating_mul(problem.group() as u64);
            row_tiles = row_tiles.min((all_rows / tile_rows).saturating_add(batch));
        }
        let of_rows = heads_kv.saturating_mul(row_tiles);
        let blocks_of_sm = blocks_of_sm(config, gpu);
        let blocks = u64::from(gpu.multiprocessors * blocks_of_sm);
        let fewest_items = fewest_items(gpu.multiprocessors, blocks_of_sm);
        let capacity = problem.seq_kv() as u64;
        let items = fewest_items.most_items(of_rows, capacity, config.tree());
        let fits = |items: &u64| *items < i32::MAX as u64;
        let items = Some(items).filter(fits).ok_or_else(too_large)?;
        let workspace = DecodeWorkspace::new(items).ok_or_else(too_large)?;
        let partials = items * config.partial_bytes(rows as u32);
        let counter_bytes = workspace.zeroed_bytes();
        let shape = problem.k().shape;
        let mut forward = forward_params(problem);
        if problem.is_packed() {
            forward.attention.q.batch_stride = 0;
            forward.o.batch_stride = 0;
        }
        Ok(Self {
            params: DecodeParams {
                forward,
                table_stride: match problem.cache_layout() {
                    Some(CacheLayout::Paged { table_stride, .. }) => table_stride as u64,
                    _ => 0,
                },
                num_pages: shape.batch as u32,
                page_size: shape.seq as u32,
                group: problem.group() as u32,
                slots: workspace.slots,
                most_queries,
                tree_stride: (problem.modifiers().tree.as_ref())
                    .map_or(0, |tree| tree.stride() as u32),
                fewest_items,
                ..DecodeParams::zeroed()
            },
            scales: config.is_e4m3.then(|| cache_scales(problem)),
            grid: blocks.min(items) as u32,
            workspace_bytes: (counter_bytes + partials) as usize,
            counter_bytes: counter_bytes as usize,
        })
    }
}

/// The scales of an e4m3 cache, without addresses.
fn cache_scales(problem: &Problem) -> CacheScales {
    let Some(specs) = problem.cache_scales() else {
        return CacheScales::NONE;
    };
    let [k, v] = specs.map(|spec| scale_arg(&spec, None));
    CacheScales { k, v }
}

/// Scales as a kernel argument.
pub(crate) fn scale_arg(spec: &TensorSpec, address: Option<u64>) -> ScaleArg {
    ScaleArg {
        address: address.and_then(DeviceAddress::new),
        page_stride: spec.strides.batch,
        head_stride: spec.strides.head,
        place_stride: spec.strides.seq,
    }
}

/// `scales` with addresses.
pub(crate) fn bind_scales(scales: &CacheScales, arrays: &Arrays) -> CacheScales {
    let scales_of = arrays.cache.and_then(|cache| cache.scales);
    let addresses = scales_of.map(|scales| scales.map(DeviceAddress::new));
    let [k, v] = addresses.unwrap_or([None; 2]);
    CacheScales {
        k: ScaleArg {
            address: k,
            ..scales.k
        },
        v: ScaleArg {
            address: v,
            ..scales.v
        },
    }
}

/// Blocks of a kernel that an SM runs at once.
fn blocks_of_sm(config: &DecodeConfig, gpu: &GpuCapabilities) -> u32 {
    let of_sm = gpu.shared_bytes.saturating_add(SYSTEM_SHARED_BYTES);
    let by_memory = of_sm / (config.shared_bytes() + SYSTEM_SHARED_BYTES);
    by_memory.clamp(1, config.min_blocks)
}

/// From how many nodes on these are a launch's items, on so many multiprocessors with so many blocks each. Groups are the faster ones from
/// where they keep memory about as busy as their chunks do, which one block on each multiprocessor is slower to do, and supers where each block
/// takes some (`bench/results/decode-log.md`, "Small launches").
fn fewest_items(multiprocessors: u32, blocks_of_sm: u32) -> FewestItems {
    let percent_of_sms = if blocks_of_sm > 1 { 50 } else { 36 };
    FewestItems {
        groups: (multiprocessors * percent_of_sms).div_ceil(100),
        supers: multiprocessors * blocks_of_sm * 4,
    }
}

/// `params` with addresses.
pub(crate) fn bind_decode(
    params: &DecodeParams,
    operands: &Operands,
    lse_address: u64,
    arrays: &Arrays,
    workspace: u64,
) -> DecodeParams {
    let cache = arrays.cache;
    let address = |of: Option<u64>| of.and_then(DeviceAddress::new);
    DecodeParams {
        forward: bind_forward(&params.forward, operands, lse_address, arrays),
        block_table: address(cache.and_then(|cache| cache.block_table)),
        kv_lens: address(cache.map(|cache| cache.kv_lens)),
        status: address(cache.and_then(|cache| cache.status)),
        sinks: address(arrays.modifiers.sinks),
        tree_mask: address(arrays.modifiers.tree_mask),
        workspace,
        ..*params
    }
}
