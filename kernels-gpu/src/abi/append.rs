//! Parameters of the kernel that appends keys and values to a cache.

use bytemuck::{Pod, Zeroable};

use super::{DeviceAddress, TensorArg};

/// Parameters of the append kernels. Row `i` of sequence `b` is key `kv_lens[b] − seq + i` of its cache.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct AppendParams {
    /// New keys, `[batch, heads_kv, seq, head_dim]`.
    pub k: TensorArg,
    /// New values, `[batch, heads_kv, seq, head_dim_v]`.
    pub v: TensorArg,
    /// Written: pages, whose batch axis counts pages.
    pub k_cache: TensorArg,
    /// Written.
    pub v_cache: TensorArg,
    /// Queries, `[batch, heads_q, seq, head_dim]`.
    pub q: TensorArg,
    /// Written: the queries, rotated.
    pub q_rotated: TensorArg,
    /// f32 `[1, 1, positions, rotary_dim / 2]`: cosines of the angles.
    pub cos: TensorArg,
    /// Their sines.
    pub sin: TensorArg,
    /// i32 `[batch, max_pages]`. `None`: page `b` is all of sequence `b`.
    pub block_table: Option<DeviceAddress>,
    /// Elements from one row of the block table to the next.
    pub table_stride: u64,
    /// i32 `[batch, seq]`: where rows go instead of where the block table says, as `page · page_size + place`; −1 is nowhere.
    pub slots: Option<DeviceAddress>,
    /// Elements from one row of the slots to the next.
    pub slots_stride: u64,
    /// i32 `[batch]`: keys of each sequence, the new ones included.
    pub kv_lens: u64,
    /// Receives bits of [`CacheFault`](super::CacheFault).
    pub status: Option<DeviceAddress>,
    /// Pages of the cache.
    pub num_pages: u32,
    /// Keys of a page.
    pub page_size: u32,
    /// The most keys of a sequence.
    pub capacity: u32,
    pub batch: u32,
    /// New rows of a sequence.
    pub seq: u32,
    pub heads_kv: u32,
    /// 0 where there is no q.
    pub heads_q: u32,
    pub head_dim: u32,
    pub head_dim_v: u32,
    /// Components of q and k that are rotated; 0 for none.
    pub rotary_dim: u32,
    /// Whether pairs are neighbours (1) or one of each half (0).
    pub is_interleaved: u32,
    /// Positions that there are angles for.
    pub positions: u32,
}
