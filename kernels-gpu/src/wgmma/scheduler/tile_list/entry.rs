//! Format of the list of tiles.

use bytemuck::{Pod, Zeroable};

use crate::abi::SequenceRows;
use crate::tile::l2::Sections;

/// Header of the list. 16 bytes, which one load fetches.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ListHeader {
    /// Tiles of the launch: entries times packs. 0 if no sequence has rows.
    pub tiles: u32,
    /// Sections of packs.
    pub sections: Sections,
}

/// One tile of a pack of heads, in the list.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ListedTile {
    pub coord: ListedCoord,
    /// Rows of its sequence.
    pub rows: SequenceRows,
}

/// Coordinate of a tile. 16 bytes, which one load fetches.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct ListedCoord {
    pub cluster_m_block: u32,
    /// Tiles of its sequence.
    pub cluster_m_blocks: u32,
    pub batch: u32,
    /// 0.
    pub reserved: u32,
}
