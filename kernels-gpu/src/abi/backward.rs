//! Parameters of the backward kernels.

use bytemuck::{Pod, Zeroable};

use super::tensor::DeviceAddress;
use super::{AttentionParams, TensorArg};

/// Terms of a row that the gradients of its scores need: f32 arrays in the order of lse,
/// `[batch, heads_q, seq_q]`, varlen `[heads_q, total_q]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct RowTerms {
    /// Device address of lse in bits, `lse · log2 e`; +∞ for a row that sees no key, so that its probabilities are 0.
    pub lse_log2: u64,
    /// Device address of `delta = Σ_c d_o · o − d_lse`.
    pub delta: u64,
    /// Device address of the largest |d_o| of the row that is finite, from which kernels that round dS to f16 take its
    /// exponent. `None` for other dtypes.
    pub largest_d_o: Option<DeviceAddress>,
    /// Device address of the largest of those of every chunk of [`DELTA_WARP_ROWS`](crate::config::warp_per_row::DELTA_WARP_ROWS)
    /// rows, counted from the first of all, if there are any.
    pub largest_of_chunk: u64,
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
    /// Device address of what is set to 0, if anything is: the count of tiles, and where dq is to be added up, with its exponents
    /// ([`BackwardParams::tile_count`], [`BackwardParams::dq_sums`], [`BackwardParams::dq_exponents`]).
    pub zeroed: Option<DeviceAddress>,
    /// How many bytes, a multiple of 16.
    pub zeroed_bytes: u64,
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
    /// Where kernels that keep keys add up dq in f32, laid out by [`DqSums`](crate::tile::dq_sums::DqSums). `None` where
    /// another kernel computes dq.
    pub dq_sums: Option<DeviceAddress>,
    /// The [`SumsOrder`](crate::tile::dq_sums::SumsOrder) of those.
    pub dq_sums_order: u32,
    pub reserved: u32,
    /// Device address of u32 `[batch, heads_q]`, where kernels that add up dq times a power of two leave which one, for the kernel that
    /// rounds it: as a biased exponent, 0 before the launch. `None` where dq is added up as it is, or not at all.
    pub dq_exponents: Option<DeviceAddress>,
    /// Device address of a u32 with which blocks that take several tiles count those that are taken: 0 before a launch, and after
    /// it.
    pub tile_count: u64,
    /// What kernels of the split pass leave of dS for each other.
    pub ds: DsChunk,
}

/// A part of dS in a workspace, laid out by [`DsTiles`](crate::tile::ds_tiles::DsTiles): that of some units, heads of k and v
/// of a batch entry, which one launch computes and the next one multiplies with K; or, where a unit's is too large, of some
/// query heads or blocks of queries of one unit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct DsChunk {
    /// Device address of the first unit's dS. `None` where no kernel stores dS.
    pub tiles: Option<DeviceAddress>,
    /// Device address of what the sums of dk and dv have come to, in f32, where a unit is computed in parts.
    pub sums: Option<DeviceAddress>,
    /// Number of the first unit, `batch entry · heads_kv + head`. The grid says how many there are.
    pub first_unit: u64,
    /// Query heads, of each unit's group.
    pub first_head: u32,
    pub end_head: u32,
    /// Blocks of queries, of each head.
    pub first_q_block: u32,
    pub end_q_block: u32,
}

/// Parameters of the kernel that adds up the gradients by ALiBi's slopes: `d_alibi_slopes = −Σ dz · distance`, of which each
/// tile of queries left its part.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct SlopeSumsParams {
    /// Device address of the tiles' sums of `dz · distance`, f32 `[batch, heads, tiles]`.
    pub sums: u64,
    /// Device address of the output, f32 `[heads]`, or `[batch, heads]` if each batch entry has slopes of its own.
    pub d_alibi_slopes: u64,
    pub batch: u32,
    /// Query heads.
    pub heads: u32,
    /// Tiles of a head of a batch entry.
    pub tiles: u32,
    /// 1 if each batch entry has slopes of its own, else 0.
    pub is_batched: u32,
}
