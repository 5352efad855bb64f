//! Parameters of attention to a cache of keys and values.

use bytemuck::{Pod, Zeroable};

use super::{DeviceAddress, ForwardParams};

/// What a launch may find wrong in a cache's arrays, which the host does not read: bits of a status word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CacheFault {
    /// An entry of the block table, of a page with keys that some query sees, is below 0 or not below `num_pages`.
    BadPage = 1,
    /// A length is below 0 or beyond the cache's capacity.
    BadLength = 2,
    /// A key has a position that there are no rotary angles for.
    BadPosition = 4,
    /// A slot is not one of the cache's, and not −1.
    BadSlot = 8,
}

/// Parameters of the decode kernels: `o[b, h, i, :] = Σⱼ P[b, h, i, j] · v[page(b, j), h', j mod page_size, :]`.
///
/// In `forward`, `k` and `v` are pages, whose batch axis counts pages, and `seq_kv` is the most keys of a sequence. A forward pass
/// without a cache has a page for each sequence, and no block table. Where queries are packed q and o have a batch stride of 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct DecodeParams {
    pub forward: ForwardParams,
    /// i32 `[batch, max_pages]`. `None`: page `b` is all of sequence `b`.
    pub block_table: Option<DeviceAddress>,
    /// Elements from one row of the block table to the next.
    pub table_stride: u64,
    /// i32 `[batch]`: keys of each sequence. `None`: those that the launch's lengths say, which are clamped and never bad.
    pub kv_lens: Option<DeviceAddress>,
    /// Receives bits of [`CacheFault`].
    pub status: Option<DeviceAddress>,
    /// f32 `[heads_q]`: a score of each head without a key, in nats.
    pub sinks: Option<DeviceAddress>,
    /// u64 `[batch or 1, seq_q]`: a bit for each of the sequence's last seq_q keys, which a query sees where it is set. `None`: it sees
    /// them all.
    pub tree_mask: Option<DeviceAddress>,
    /// Counters and partial results; see [`crate::tile::kv_tree`].
    pub workspace: u64,
    /// Pages of k and v.
    pub num_pages: u32,
    /// Keys of a page.
    pub page_size: u32,
    /// Query heads to a head of k and v.
    pub group: u32,
    /// Partial results that the workspace has room for.
    pub slots: u32,
    /// Sequences with more queries than this are left to another kernel.
    pub most_queries: u32,
    /// Words of the tree mask from one sequence's to the next one's.
    pub tree_stride: u32,
    /// Which nodes of the tree are the launch's items.
    pub fewest_items: FewestItems,
}

/// From how many nodes of a level on ([`crate::tile::kv_tree`]), in all sequences and heads of a launch, they are its items: the host knows how
/// many the GPU needs to be busy. It decides how fast a launch is, and no bit of its results.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct FewestItems {
    pub groups: u32,
    pub supers: u32,
}

/// Scales of keys, or of values: f32, of which number and place follow from strides, 0 included.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ScaleArg {
    /// `None`: they are all 1.
    pub address: Option<DeviceAddress>,
    /// Elements from one page to the next.
    pub page_stride: i64,
    /// Elements from one head of k and v to the next.
    pub head_stride: i64,
    /// Elements from one key of a page to the next.
    pub place_stride: i64,
}

impl ScaleArg {
    pub const NONE: Self = Self {
        address: None,
        page_stride: 0,
        head_stride: 0,
        place_stride: 0,
    };

    /// The address of scales of which keys of a head have their own.
    #[inline(always)]
    pub fn of_keys(&self) -> Option<DeviceAddress> {
        self.address
            .filter(|_| self.page_stride | self.place_stride != 0)
    }

    /// The address of scales that hold for all keys of a head.
    #[inline(always)]
    pub fn of_head(&self) -> Option<DeviceAddress> {
        self.address
            .filter(|_| self.page_stride | self.place_stride == 0)
    }
}

/// Scales of an e4m3 cache: what its codes stand for is multiplied with them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct CacheScales {
    pub k: ScaleArg,
    pub v: ScaleArg,
}

impl CacheScales {
    pub const NONE: Self = Self {
        k: ScaleArg::NONE,
        v: ScaleArg::NONE,
    };
}
