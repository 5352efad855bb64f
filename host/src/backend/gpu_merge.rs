//! The launch that merges partial results on a device.

use bytemuck::{bytes_of, cast_slice};
use kernels_gpu::abi::{self, MergeParams, TensorArg};
use kernels_gpu::config::warp_per_row;
use kernels_gpu::instances::MERGE;

use super::device::{Device, Launch};
use super::embedded::ptx_of;
use crate::merge::{Merge, MergeTensor};
use crate::plan::instance_unfit;
use crate::plan::params::tensor_arg;
use crate::{Error, GpuCapabilities, Shape};

/// Copies the parts' addresses to the device, and queues the kernel.
///
/// # Errors
/// Those of [`Backend::merge_raw`](crate::Backend::merge_raw).
///
/// # Safety
/// As [`Backend::merge_raw`](crate::Backend::merge_raw).
pub(super) unsafe fn run<D: Device>(
    device: &mut D,
    gpu: &GpuCapabilities,
    merge: &Merge<'_>,
) -> Result<(), Error> {
    let dtype = merge.o.spec.dtype;
    let kernel = MERGE.iter().find(|row| row.dtype == dtype);
    let kernel = kernel.expect("every dtype has one");
    if let Some(reason) = instance_unfit(kernel, gpu) {
        let wrong = format!("{} cannot run: {reason}", kernel.name);
        return Err(Error::argument(
            "backend",
            wrong,
            "it must be a GPU that can run it",
        ));
    }
    let parts = merge.parts.iter().map(|part| abi::MergePart {
        o: argument(&part.o),
        lse: argument(&part.lse),
    });
    let parts: Vec<_> = parts.collect();
    let mut table = device.alloc(size_of_val(&*parts))?;
    device.write(&mut table, cast_slice(&parts))?;
    let Shape {
        batch,
        heads,
        seq,
        dim,
    } = merge.o.spec.shape;
    let params = MergeParams {
        parts: device.address(&table),
        o: argument(&merge.o),
        lse: merge.lse.address,
        count: parts.len() as u32,
        batch: batch as u32,
        heads: heads as u32,
        seq: seq as u32,
        dim: dim as u32,
        reserved: 0,
    };
    let launch = Launch {
        kernel,
        ptx: &ptx_of,
        grid: warp_per_row::grid(batch as u64 * heads as u64 * seq as u64),
        params: &[bytes_of(&params)],
        begins_early: false,
    };
    // SAFETY: these are the kernel's parameters, and the caller vouches for the operands. The table is freed in the
    // order of the stream, after the launch.
    unsafe { device.launch(&launch) }
}

/// A tensor as a kernel argument.
fn argument(tensor: &MergeTensor) -> TensorArg {
    TensorArg {
        address: tensor.address,
        ..tensor_arg(&tensor.spec)
    }
}
