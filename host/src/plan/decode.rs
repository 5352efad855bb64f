//! The launch of attention to a cache: one kernel, whose blocks find their work from the lengths on the device.

use bytemuck::Zeroable;
use kernels_gpu::abi::{CacheScales, DecodeParams, DeviceAddress, ScaleArg};
use kernels_gpu::config::decode::{DecodeConfig, DecodeWorkspace};
use kernels_gpu::instances::{DECODE, Family, Instance, KernelConfig};
use kernels_gpu::tile::kv_tree::most_items;

use super::GpuCapabilities;
use super::operands::Operands;
use super::params::{Arrays, bind_forward, forward_params};
use super::select::instance_unfit;
use crate::{CacheLayout, DType, Problem, TensorSpec};

/// Shared memory that the system takes of an SM for each block.
const SYSTEM_SHARED_BYTES: u32 = 1024;

/// The kernel of `family` for a problem that reads a cache, of the smallest padded head_dim, and its launch.
///
/// # Errors
/// Why there is none.
pub(super) fn find_decode(
    family: Family,
    problem: &Problem,
    gpu: &GpuCapabilities,
) -> Result<(&'static Instance, DecodeLaunch), String> {
    let dtype = problem.q().dtype;
    let head_dim = problem.q().shape.dim.max(problem.v().shape.dim);
    let of_cache = problem.k().dtype;
    let is_e4m3 = |kernel: &Instance| match kernel.config {
        KernelConfig::Decode(config) => config.is_e4m3,
        _ => false,
    };
    let mut of_dtype = DECODE
        .iter()
        .filter(|kernel| kernel.family == family && kernel.dtype == dtype)
        .filter(|kernel| is_e4m3(kernel) == (of_cache == DType::E4m3))
        .peekable();
    if of_dtype.peek().is_none() {
        let (dtype, of_cache) = (dtype.name(), of_cache.name());
        return Err(format!(
            "it has no {dtype} kernel for a cache of {of_cache}"
        ));
    }
    let kernel = of_dtype.find(|kernel| kernel.head_dim as usize >= head_dim);
    let kernel = kernel.ok_or_else(|| format!("it has no kernel for head_dim {head_dim}"))?;
    if let Some(reason) = instance_unfit(kernel, gpu) {
        return Err(reason);
    }
    Ok((kernel, DecodeLaunch::new(problem, kernel, gpu)?))
}

/// The launch of a decode kernel.
#[derive(Debug)]
pub(super) struct DecodeLaunch {
    pub params: DecodeParams,
    /// What kernels of e4m3 caches are given too.
    pub scales: Option<CacheScales>,
    pub grid: u32,
    pub workspace_bytes: usize,
    pub zeroed_bytes: usize,
}

impl DecodeLaunch {
    /// # Errors
    /// Why `kernel` cannot run the problem.
    fn new(problem: &Problem, kernel: &Instance, gpu: &GpuCapabilities) -> Result<Self, String> {
        let KernelConfig::Decode(config) = kernel.config else {
            unreachable!("a kernel of the table of decode kernels");
        };
        let too_large = || "its items of work are more than it can number".to_owned();
        let heads_kv = problem.k().shape.heads as u64;
        let rows = (problem.seq_q() as u64).saturating_mul(problem.group() as u64);
        let tile_rows = u64::from(DecodeConfig::ROWS);
        let row_tiles = rows.div_ceil(tile_rows);
        let of_rows = (problem.batch() as u64)
            .saturating_mul(heads_kv)
            .saturating_mul(row_tiles);
        let blocks = u64::from(gpu.multiprocessors * blocks_of_sm(config, gpu));
        let capacity = problem.seq_kv() as u64;
        let items = most_items(of_rows, capacity, config.chunk_keys().into(), blocks);
        let fits = |items: &u64| *items < i32::MAX as u64;
        let items = Some(items).filter(fits).ok_or_else(too_large)?;
        let workspace = DecodeWorkspace::new(items).ok_or_else(too_large)?;
        let partials = items * config.partial_bytes(rows.min(tile_rows) as u32);
        let zeroed_bytes = workspace.zeroed_bytes();
        let shape = problem.k().shape;
        Ok(Self {
            params: DecodeParams {
                forward: forward_params(problem),
                table_stride: match problem.cache_layout() {
                    Some(CacheLayout::Paged { table_stride, .. }) => table_stride as u64,
                    _ => 0,
                },
                num_pages: shape.batch as u32,
                page_size: shape.seq as u32,
                row_tiles: row_tiles as u32,
                slots: workspace.slots,
                ..DecodeParams::zeroed()
            },
            scales: config.is_e4m3.then(|| cache_scales(problem)),
            grid: blocks.min(items) as u32,
            workspace_bytes: (zeroed_bytes + partials) as usize,
            zeroed_bytes: zeroed_bytes as usize,
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
pub(crate) fn bind_scales(scales: &CacheScales, operands: &Operands) -> CacheScales {
    let cache = operands.cache.expect("checked operands");
    let addresses = cache.scales.map(|scales| scales.map(DeviceAddress::new));
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

/// `params` with addresses.
pub(crate) fn bind_decode(
    params: &DecodeParams,
    operands: &Operands,
    lse_address: u64,
    arrays: &Arrays,
    workspace: u64,
) -> DecodeParams {
    let cache = operands.cache.expect("checked operands");
    let address = |of: Option<u64>| of.and_then(DeviceAddress::new);
    DecodeParams {
        forward: bind_forward(&params.forward, operands, lse_address, arrays),
        block_table: address(cache.block_table),
        kv_lens: cache.kv_lens,
        status: address(cache.status),
        sinks: address(arrays.modifiers.sinks),
        workspace,
        ..*params
    }
}
