//! Numbers of the nodes of the tree by which a cached sequence's keys are reduced ([`crate::tile::kv_tree`]).

/// Groups of a super, and chunks of a group at most; a shift.
pub const FAN_OUT_SHIFT: u32 = 3;

/// Level of the nodes that all have the row as parent.
pub const SUPER: u32 = 2;

/// Sizes of the tree's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Keys of a chunk.
    pub chunk_keys: u32,
    /// Chunks of a group; a shift, of 1 at least.
    pub group_shift: u32,
}

impl Tree {
    /// Chunks of a node of `level`; a shift.
    #[inline(always)]
    pub const fn shift(&self, level: u32) -> u32 {
        match level {
            0 => 0,
            _ => self.group_shift + (level - 1) * FAN_OUT_SHIFT,
        }
    }

    /// Nodes of `level` that the next level's have; a shift.
    #[inline(always)]
    pub const fn fan_out_shift(&self, level: u32) -> u32 {
        match level {
            0 => self.group_shift,
            _ => FAN_OUT_SHIFT,
        }
    }

    /// The parent of a node; the row is parent 0 of the supers.
    #[inline(always)]
    pub const fn parent(&self, level: u32, node: u32) -> u32 {
        if level == SUPER {
            0
        } else {
            node >> self.fan_out_shift(level)
        }
    }
}
