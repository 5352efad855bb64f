//! Launch parameters of the kernel that lists tiles.

use bytemuck::{Pod, Zeroable};

use super::{Workspace, capacity};
use crate::abi::AttentionParams;
use crate::config::wgmma::WgmmaConfig;
use crate::wgmma::pack_gqa::PackGqa;

/// The launch whose tiles are listed, and the list's place.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct TileListParams {
    /// As the attention kernel takes it; operands are not read.
    pub attention: AttentionParams,
    /// Rows of a tile.
    pub cluster_m: u32,
    pub pack_gqa: PackGqa,
    /// Capacity of the list, in entries.
    pub capacity: u32,
    /// Device address of the launch's [`Workspace`].
    pub workspace: u64,
    /// Whether k and v are a cache: queries alone may be packed then, and `seqused_kv` is
    /// [`CachePages::lens`](crate::abi::CachePages::lens).
    pub reads_cache: u32,
    /// Blocks of a cluster, which work on a tile.
    pub cluster: u32,
}

impl TileListParams {
    /// The tiles of varlen `attention` in packs of `pack_gqa`, for a kernel of shape `config`; `None` if there may be
    /// more than 32 bits can count.
    pub fn new(
        attention: &AttentionParams,
        config: &WgmmaConfig,
        pack_gqa: PackGqa,
        workspace: u64,
    ) -> Option<Self> {
        let cluster_m = config.cluster_m();
        Some(Self {
            attention: *attention,
            cluster_m,
            pack_gqa,
            capacity: capacity(attention, pack_gqa, cluster_m)?,
            workspace,
            reads_cache: config.cached as u32,
            cluster: config.cluster,
        })
    }

    /// Layout of the workspace.
    pub const fn layout(&self) -> Workspace {
        Workspace::varlen(self.capacity, self.attention.batch)
    }
}
