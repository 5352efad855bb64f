//! The launch that computes the gradient by a bias, beside the other backward kernels.

use kernels_gpu::abi::{AttentionParams, BiasGradientParams, DeviceAddress, PairsArg};
use kernels_gpu::instances::{BIAS, Instance, Operation};
use kernels_gpu::tile::bias_owners::owners;

use super::slopes::smallest;
use crate::Problem;
use crate::plan::unfit::unfit;
use crate::plan::{GpuCapabilities, Operands};

/// The kernel that computes the gradient by the bias of `problem`, if it is asked for: the one of the smallest padded head_dim that
/// fits.
///
/// # Errors
/// Why it cannot run.
pub(super) fn find(
    problem: &Problem,
    gpu: &GpuCapabilities,
) -> Result<Option<&'static Instance>, String> {
    if problem.d_bias().is_none() {
        return Ok(None);
    }
    if let Some(own) = &problem.modifiers().score_mod {
        let name = own.name();
        return Err(format!(
            "it computes no gradient by a bias with score modification {name}"
        ));
    }
    let kernel = smallest(BIAS, Operation::BackwardBias, problem);
    let kernel = kernel.expect("every dtype has one of the largest head_dim");
    unfit(kernel, problem, gpu).map_or(Ok(Some(kernel)), Err)
}

/// What the launch needs beside the parameters of the other backward kernels.
#[derive(Clone, Copy, Debug)]
pub(in crate::plan) struct BiasLaunch {
    pub kernel: &'static Instance,
    pub grid: u32,
    /// Without addresses.
    pub params: BiasGradientParams,
}

impl BiasLaunch {
    /// That of `problem`, which asks for the gradient, with `kernel`, where `attention` is what the kernel is given.
    pub fn new(problem: &Problem, kernel: &'static Instance, attention: &AttentionParams) -> Self {
        let spec = problem.d_bias().expect("it is asked for");
        let [batch, heads, queries, _] = spec.axes();
        let stride = |(size, stride): (usize, i64)| if size == 1 { 0 } else { stride };
        // Also over none, whose sum is 0.
        let params = BiasGradientParams {
            d_bias: PairsArg {
                address: None,
                batch_stride: stride(batch),
                head_stride: stride(heads),
                query_stride: stride(queries),
                key_stride: 1,
            },
            batch: batch.0 as u32,
            heads: heads.0 as u32,
            queries: queries.0 as u32,
            reserved: 0,
        };
        let owners = owners(&params, attention, [kernel.block_m, kernel.block_n]);
        Self {
            kernel,
            grid: owners.grid(),
            params,
        }
    }
}

/// `params` with addresses.
pub(crate) fn bind_bias_gradient(
    params: &BiasGradientParams,
    operands: &Operands,
) -> BiasGradientParams {
    let gradients = operands.gradients.unwrap_or_default();
    let mut params = *params;
    params.d_bias.address = gradients.d_bias.and_then(DeviceAddress::new);
    params
}
