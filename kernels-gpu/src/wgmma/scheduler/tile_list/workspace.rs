//! The workspace in device memory of the Hopper kernels of a launch.

use super::{ListHeader, ListedTile};
use crate::abi::AttentionParams;
use crate::wgmma::pack_gqa::PackGqa;

/// Layout of a workspace, in bytes from its start, and its size.
///
/// ```text
/// 0    tile count semaphore, u32: 0 before a launch and after it; the kernel that lists tiles sets it too
/// 16   header of the list of tiles     what follows is there in listed launches only, and is written before it is read
/// 32   entries
/// ..   a word for every sequence, which the list is made with
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Offset of the sequences' words.
    pub notes: u64,
    /// Bytes of the whole workspace.
    pub bytes: u64,
}

impl Workspace {
    /// Alignment of its address: the width of the loads from it. At a multiple of 32, which a GPU's allocations have,
    /// each entry is a sector of its own.
    pub const ALIGN: u64 = 16;
    /// Offset of the tile count semaphore.
    pub const TILE_COUNT_SEMAPHORE: u64 = 0;
    /// Offset of the [`ListHeader`].
    pub const HEADER: u64 = 16;
    /// Offset of the [`ListedTile`]s.
    pub const ENTRIES: u64 = Self::HEADER + size_of::<ListHeader>() as u64;
    /// Bytes of the semaphore, which the caller sets to 0 once.
    pub const TILE_COUNT_SEMAPHORE_BYTES: u64 = size_of::<u32>() as u64;

    /// The workspace of a launch without a list.
    pub const DENSE: Self = Self {
        notes: Self::TILE_COUNT_SEMAPHORE_BYTES,
        bytes: Self::TILE_COUNT_SEMAPHORE_BYTES,
    };

    /// The workspace of a listed launch of `batch` sequences, whose list has at most `capacity` entries ([`capacity`]).
    pub const fn varlen(capacity: u32, batch: u32) -> Self {
        let notes = Self::ENTRIES + capacity as u64 * size_of::<ListedTile>() as u64;
        Self {
            notes,
            bytes: notes + batch as u64 * size_of::<u32>() as u64,
        }
    }
}

/// Upper bound on the entries in the list of varlen `params`, for tiles of `cluster_m` rows, whatever the lengths are;
/// `None` if 32 bits cannot count them.
pub const fn capacity(params: &AttentionParams, pack_gqa: PackGqa, cluster_m: u32) -> Option<u32> {
    let heads = pack_gqa.heads() as u64;
    let (batch, tile) = (params.batch as u64, cluster_m as u64);
    let most = if params.lengths.has_cu_seqlens() {
        // All tiles but the last of each sequence are whole.
        (params.lengths.total_q as u64 * heads / tile).saturating_add(batch)
    } else {
        (params.seq_q as u64 * heads)
            .div_ceil(tile)
            .saturating_mul(batch)
    };
    if most <= u32::MAX as u64 {
        Some(most as u32)
    } else {
        None
    }
}
