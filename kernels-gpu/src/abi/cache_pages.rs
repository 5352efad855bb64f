//! Where the keys and values of a cache lie, for Hopper's kernels.

use bytemuck::{Pod, Zeroable};

use super::{AttentionParams, DeviceAddress};

/// The pages of a cache, as the kernels find keys in them that copy by TMA.
///
/// Key `j` of sequence `b` lies in place `j mod 2^page_shift` of page `block_table[b][j >> page_shift]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct CachePages {
    /// i32 `[batch, max_pages]`. Of a contiguous cache i32 `[batch]` of the workspace, in which [`CheckCacheParams`]'s kernel writes
    /// that page `b` is all of sequence `b`.
    pub block_table: Option<DeviceAddress>,
    /// Elements from one row of the block table to the next.
    pub table_stride: u64,
    /// i32 `[batch]` of the workspace: keys of each sequence as that kernel found them, [`POISONED`] where a length or a page cannot
    /// be, or [`SKIPPED`].
    ///
    /// [`POISONED`]: Self::POISONED
    /// [`SKIPPED`]: Self::SKIPPED
    pub lens: Option<DeviceAddress>,
    /// Pages of k and v.
    pub num_pages: u32,
    /// The page size is 2 to this power.
    pub page_shift: u32,
    /// Keys of a tensor map's box, of which a page holds a whole number; [`CACHE_BOX_ROWS`], which ptxas is not to know: it would
    /// unroll loops over boxes, and have no registers for the rest.
    ///
    /// [`CACHE_BOX_ROWS`]: crate::config::wgmma::WgmmaConfig::CACHE_BOX_ROWS
    pub box_rows: u32,
    /// Sequences.
    pub batch: u32,
}

impl CachePages {
    /// Stands for the length of a sequence whose rows of o and lse are NaN.
    pub const POISONED: i32 = -1;
    /// Stands for the length of a sequence that has no tiles: without queries, or with so few that another kernel takes them.
    pub const SKIPPED: i32 = -2;
    /// [`page_shift`](Self::page_shift) where a page is all of a sequence: no sequence has so many keys.
    pub const WHOLE_SEQUENCE: u32 = 31;

    /// Of a launch that reads no cache.
    pub const NONE: Self = Self {
        block_table: None,
        table_stride: 0,
        lens: None,
        num_pages: 0,
        page_shift: 0,
        box_rows: 0,
        batch: 0,
    };

    /// Whether a page is all of a sequence.
    pub const fn is_contiguous(&self) -> bool {
        self.page_shift == Self::WHOLE_SEQUENCE
    }

    /// Keys of a page, where a sequence has `seq_kv` at most.
    pub const fn page_size(&self, seq_kv: u32) -> u32 {
        if self.is_contiguous() {
            seq_kv
        } else {
            1 << self.page_shift
        }
    }
}

/// Parameters of the kernel that checks a cache's lengths and pages for the kernels that follow it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct CheckCacheParams {
    /// As the attention kernel takes it; operands are not read.
    pub attention: AttentionParams,
    /// Its lens are written.
    pub pages: CachePages,
    /// i32 `[batch]`: keys of each sequence, which may be anything.
    pub kv_lens: Option<DeviceAddress>,
    /// Receives bits of [`CacheFault`](super::CacheFault).
    pub status: Option<DeviceAddress>,
    /// Sequences with fewer queries are [`CachePages::SKIPPED`].
    pub fewest_queries: u32,
    /// 0.
    pub reserved: u32,
}
