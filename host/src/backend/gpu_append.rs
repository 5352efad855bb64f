//! The launch that appends to a cache on a device.

use bytemuck::{Zeroable, bytes_of};
use kernels_gpu::abi::{AppendParams, CacheScales, DeviceAddress, TensorArg};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::{APPEND, APPEND_E4M3};

use super::device::{Device, Launch};
use super::embedded::ptx_of;
use crate::append::AppendOperands;
use crate::plan::decode::scale_arg;
use crate::plan::instance_unfit;
use crate::plan::params::tensor_arg;
use crate::problem::{AppendProblem, RotaryStyle};
use crate::{CacheLayout, DType, Error, GpuCapabilities, TensorSpec};

/// Queues the kernel.
///
/// # Errors
/// Those of [`Backend::append_raw`](crate::Backend::append_raw).
///
/// # Safety
/// As [`Backend::append_raw`](crate::Backend::append_raw).
pub(super) unsafe fn run<D: Device>(
    device: &mut D,
    gpu: &GpuCapabilities,
    problem: &AppendProblem,
    operands: &AppendOperands,
) -> Result<(), Error> {
    let dtype = problem.k.dtype;
    let is_e4m3 = problem.k_cache.dtype == DType::E4m3;
    let table = if is_e4m3 { APPEND_E4M3 } else { APPEND };
    let Some(kernel) = table.iter().find(|row| row.dtype == dtype) else {
        let wrong = format!("no GPU kernel appends {} rows", dtype.name());
        return Err(Error::argument("k", wrong, "f16 or bf16, or the CPU"));
    };
    if let Some(reason) = instance_unfit(kernel, gpu) {
        let wrong = format!("{} cannot run: {reason}", kernel.name);
        let allowed = "it must be a GPU that can run it";
        return Err(Error::argument("backend", wrong, allowed));
    }
    let params = params(problem, operands);
    let scales = scales(problem, operands);
    let both = [bytes_of(&params), bytes_of(&scales)];
    let shape = problem.k.shape;
    let heads = 2 * shape.heads as u64 + u64::from(params.heads_q);
    let launch = Launch {
        kernel,
        ptx: &ptx_of,
        grid: warp_per_row::grid(shape.batch as u64 * shape.seq as u64 * heads),
        params: if is_e4m3 { &both } else { &both[..1] },
        begins_early: false,
    };
    // SAFETY: these are the kernel's parameters, and the caller vouches for the operands.
    unsafe { device.launch(&launch) }
}

/// The scales of an e4m3 cache.
fn scales(problem: &AppendProblem, operands: &AppendOperands) -> CacheScales {
    let Some(([k, v], [at_k, at_v])) = problem.scales.zip(operands.cache.scales) else {
        return CacheScales::NONE;
    };
    CacheScales {
        k: scale_arg(&k, Some(at_k)),
        v: scale_arg(&v, Some(at_v)),
    }
}

fn params(problem: &AppendProblem, operands: &AppendOperands) -> AppendParams {
    let argument = |spec: &TensorSpec, address: u64| TensorArg {
        address,
        ..tensor_arg(spec)
    };
    let pair = |specs: Option<[TensorSpec; 2]>, addresses: Option<[u64; 2]>| {
        let [first, second] = specs
            .zip(addresses)
            .map_or([TensorArg::zeroed(); 2], |([first, second], [at, next])| {
                [argument(&first, at), argument(&second, next)]
            });
        (first, second)
    };
    let (q, q_rotated) = pair(problem.q, operands.q);
    let rotary = problem.rotary;
    let (cos, sin) = pair(
        rotary.map(|rotary| [rotary.cos, rotary.sin]),
        operands.rotary,
    );
    let address = |of: Option<u64>| of.and_then(DeviceAddress::new);
    let (new, pages) = (problem.k.shape, problem.k_cache.shape);
    AppendParams {
        k: argument(&problem.k, operands.k),
        v: argument(&problem.v, operands.v),
        k_cache: argument(&problem.k_cache, operands.k_cache),
        v_cache: argument(&problem.v_cache, operands.v_cache),
        q,
        q_rotated,
        cos,
        sin,
        block_table: address(operands.cache.block_table),
        table_stride: match problem.layout {
            CacheLayout::Paged { table_stride, .. } => table_stride as u64,
            CacheLayout::Contiguous => 0,
        },
        slots: address(operands.slots),
        slots_stride: problem.slots_stride.unwrap_or(0) as u64,
        kv_lens: operands.cache.kv_lens,
        status: address(operands.cache.status),
        num_pages: pages.batch as u32,
        page_size: pages.seq as u32,
        capacity: problem.capacity() as u32,
        batch: new.batch as u32,
        seq: new.seq as u32,
        heads_kv: new.heads as u32,
        heads_q: problem.q.map_or(0, |[q, _]| q.shape.heads as u32),
        head_dim: new.dim as u32,
        head_dim_v: problem.v.shape.dim as u32,
        rotary_dim: problem.rotary_dim() as u32,
        is_interleaved: rotary
            .is_some_and(|rotary| rotary.style == RotaryStyle::Interleaved)
            .into(),
        positions: rotary.map_or(0, |rotary| rotary.cos.shape.seq as u32),
    }
}
