//! Parameters of the forward kernels.

use bytemuck::{Pod, Zeroable};

use super::{AttentionParams, TensorArg};

/// Parameters of every forward kernel: `o[b, h, i, :] = Σⱼ P[b, h, i, j] · v[b, h', j, :]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct ForwardParams {
    pub attention: AttentionParams,
    pub o: TensorArg,
    /// Device address of `lse`, f32 `[batch, heads_q, seq_q]`, contiguous, in nats; varlen `[heads_q, total_q]`.
    pub lse: u64,
}
