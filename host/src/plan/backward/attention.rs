//! What all kernels of a backward pass are given, and the sums of dq that follow from it.

use bytemuck::Zeroable;
use kernels_gpu::abi::{AttentionParams, LengthsParams};
use kernels_gpu::instances::{Family, Instance};
use kernels_gpu::tile::dq_sums::{DqSums, SumsOrder};

use crate::Problem;
use crate::plan::params::attention_params;

/// The parameters that every kernel of the pass shares, without addresses.
///
/// Packed operands without a query are one sequence of all keys, none of which is seen: kernels take 0 rows of q for a sign
/// that nothing is packed.
pub(super) fn backward_attention(problem: &Problem) -> AttentionParams {
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
pub(super) fn dq_sums(problem: &Problem) -> DqSums {
    DqSums::new(&backward_attention(problem))
}

/// The order in which the kernel of dk and dv adds up dq, if it does.
pub(super) fn dq_sums_order(keys: &Instance) -> SumsOrder {
    match keys.family {
        Family::Wgmma => SumsOrder::Lanes,
        _ => SumsOrder::Registers,
    }
}

/// Bytes of dq's sums.
pub(super) fn dq_sums_bytes(problem: &Problem) -> u64 {
    dq_sums(problem).bytes(&backward_attention(problem))
}
