//! Launch parameters that all attention operations share.

use bytemuck::{Pod, Zeroable};

use super::{LengthsParams, MaskParams, ScoreParams, TensorArg};

/// Inputs and options of attention.
///
/// `P[b, h, i, :] = softmax(score(q[b, h, i, :] · k[b, h', j, :]))ⱼ` with `h' = h / (heads_q / heads_kv)`, over the
/// visible keys `j`.
///
/// A *varlen* launch packs its `batch` sequences one after the other along the rows of its operands ([`LengthsParams`]);
/// batch strides are ignored then.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct AttentionParams {
    pub q: TensorArg,
    pub k: TensorArg,
    pub v: TensorArg,
    pub batch: u32,
    pub heads_q: u32,
    pub heads_kv: u32,
    /// Query rows of each sequence; of the longest if lengths differ.
    pub seq_q: u32,
    /// Keys of each sequence; of the longest if lengths differ.
    pub seq_kv: u32,
    pub head_dim: u32,
    pub head_dim_v: u32,
    pub mask: MaskParams,
    pub score: ScoreParams,
    pub lengths: LengthsParams,
}
