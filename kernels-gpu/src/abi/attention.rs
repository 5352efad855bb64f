//! What every operation of attention is launched with.

use bytemuck::{Pod, Zeroable};

use super::{LengthsParams, MaskParams, ScoreParams, TensorArg};

/// The inputs of attention, and what is computed of them, whatever the operation.
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
    /// Rows of a sequence of q; where lengths differ, of the longest.
    pub seq_q: u32,
    /// Rows of a sequence of k and v; where lengths differ, of the longest.
    pub seq_kv: u32,
    pub head_dim: u32,
    pub head_dim_v: u32,
    pub mask: MaskParams,
    pub score: ScoreParams,
    pub lengths: LengthsParams,
}
