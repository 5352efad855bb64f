//! Parameters of the backward kernels.

use bytemuck::{Pod, Zeroable};

use super::tensor::DeviceAddress;
use super::{AttentionParams, TensorArg};

/// The two terms of a row that the gradients of its scores need: f32 arrays in the order of lse,
/// `[batch, heads_q, seq_q]`, varlen `[heads_q, total_q]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct RowTerms {
    /// Device address of lse in bits, `lse · log2 e`; +∞ for a row that sees no key, so that its probabilities are 0.
    pub lse_log2: u64,
    /// Device address of `delta = Σ_c d_o · o − d_lse`.
    pub delta: u64,
}

/// Parameters of the kernel that computes [`RowTerms`] for every row of o.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct DeltaParams {
    pub o: TensorArg,
    pub d_o: TensorArg,
    /// Device address of lse, in nats.
    pub lse: u64,
    /// The loss's gradient by lse, laid out as lse; `None` is 0.
    pub d_lse: Option<DeviceAddress>,
    /// The output.
    pub terms: RowTerms,
    /// Axes of o.
    pub batch: u32,
    pub heads: u32,
    pub seq: u32,
    pub dim: u32,
}

/// Parameters of the kernels that compute dq, dk and dv. With `p` a probability, `dz = p · (d_o · v − delta)` and `dx`
/// the product of dz and the softcap's derivative (1 without softcap),
///
/// `dq[i] = softmax_scale · Σⱼ dx · k[j]`, `dk[j] = softmax_scale · Σᵢ dx · q[i]`, `dv[j] = Σᵢ p · d_o[i]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct BackwardParams {
    pub attention: AttentionParams,
    pub d_o: TensorArg,
    pub dq: TensorArg,
    pub dk: TensorArg,
    pub dv: TensorArg,
    pub terms: RowTerms,
}
