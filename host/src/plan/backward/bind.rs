//! The parameters with addresses.

use kernels_gpu::abi::{BackwardParams, DeltaParams, DeviceAddress, SinkGradientParams};
use kernels_gpu::wgmma::tensor_map::BackwardMaps;

use super::layout::WorkspaceLayout;
use crate::GradientOperands;
use crate::plan::Operands;
use crate::plan::params::{Arrays, bind_attention};

/// `maps` of operands that are where they are.
pub(crate) fn bind_maps(maps: &BackwardMaps, operands: &Operands) -> BackwardMaps {
    let mut maps = *maps;
    maps.q.address = operands.q;
    maps.k.address = operands.k;
    maps.v.address = operands.v;
    maps.d_o.address = gradients(operands).d_o;
    maps
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
    params.dq_exponents = layout.dq_exponents(workspace);
    params.tile_count = workspace + layout.tile_count();
    params.ds.tiles = layout.ds(workspace);
    params.ds.sums = layout.ds_sums(workspace);
    params
}
