//! Tile shapes of the Hopper backward kernels that pass dS through a workspace.

use super::biases::Biases;
use super::limits::SM90_SHARED_BYTES;
use super::wgmma::{ATOM_ROW_BYTES, WARPGROUP, WARPGROUP_ROWS};
use super::wgmma_backward::WgmmaBackwardConfig;
use crate::layout::ds_tile;

/// Bytes of an element of P on its way from one warpgroup to the other, at most.
const P_ELEMENT_BYTES: u32 = 3;

/// Bytes of an mbarrier.
const BARRIER_BYTES: u32 = size_of::<u64>() as u32;

/// Of the kernel of dk and dv: two consumer warpgroups for the same 64 keys, one with P and dV, one with dS and dK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitKeysConfig {
    /// What it keeps and what passes; `consumers` counts the warpgroups that have different keys.
    pub blocks: WgmmaBackwardConfig,
}

impl SplitKeysConfig {
    /// Consumer warpgroups.
    pub const CONSUMERS: u32 = 2;
    /// Stages of P.
    pub const P_STAGES: u32 = 2;

    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        (Self::CONSUMERS + 1) * WARPGROUP
    }

    /// Bytes of a stage of P.
    pub const fn p_bytes(&self) -> u32 {
        WARPGROUP_ROWS * self.blocks.block_n * P_ELEMENT_BYTES
    }

    /// Whether P could be written where the P before in its stage is still read. Where Q has no more stages, it cannot: Q of a
    /// block is loaded when the dS warpgroup is done with the block whose stages it takes, P's too.
    pub const fn waits_for_p(&self) -> bool {
        self.blocks.stages > Self::P_STAGES
    }

    /// Offset of the stages of P: behind all else.
    pub const fn p_offset(&self) -> u32 {
        self.blocks.shared_bytes().next_multiple_of(ATOM_ROW_BYTES)
    }

    /// Offset of P's mbarriers: a full and an empty one for each stage.
    pub const fn p_barriers_offset(&self) -> u32 {
        self.p_offset() + Self::P_STAGES * self.p_bytes()
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.p_barriers_offset() + 2 * Self::P_STAGES * BARRIER_BYTES
    }

    /// Panics, when evaluated at compile time, on a shape that cannot work.
    const fn check(&self) {
        assert!(self.shared_bytes() <= SM90_SHARED_BYTES);
        assert!(self.blocks.registers_fit(Self::CONSUMERS));
        assert!(self.blocks.consumers == 1);
        assert!(self.blocks.block_m() == ds_tile::ROWS && self.blocks.block_n == ds_tile::ROWS);
    }
}

/// Of the kernel of dq: consumer warpgroups of 64 queries each, past which pass blocks of K and their tiles of dS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitQueriesConfig {
    /// K passes as the only operand.
    pub blocks: WgmmaBackwardConfig,
}

impl SplitQueriesConfig {
    /// Bytes of a stage: a block of K, and a tile of dS for each consumer.
    pub const fn stage_bytes(&self) -> u32 {
        self.blocks.stage_bytes() + self.blocks.consumers * ds_tile::BYTES
    }

    /// Offset in a stage of a consumer's tile of dS.
    pub const fn ds_offset(&self, warpgroup: u32) -> u32 {
        self.blocks.stage_bytes() + warpgroup * ds_tile::BYTES
    }

    /// Offset of the words that say which tile it is.
    pub const fn tile_offset(&self) -> u32 {
        self.blocks.stages * self.stage_bytes()
    }

    /// Offset of the mbarriers: a full and an empty one for each stage.
    pub const fn barriers_offset(&self) -> u32 {
        self.tile_offset() + WgmmaBackwardConfig::TILE_BYTES
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.barriers_offset() + 2 * self.blocks.stages * BARRIER_BYTES
    }

    /// Panics, when evaluated at compile time, on a shape that cannot work.
    const fn check(&self) {
        assert!(self.shared_bytes() <= SM90_SHARED_BYTES);
        assert!(self.blocks.registers_fit(self.blocks.consumers));
        assert!(self.blocks.block_n == ds_tile::ROWS);
    }
}

/// 128 registers of dV or dK leave room for one block's scores: so P and dV in one warpgroup, dS and dK in another, each with
/// S or dP computed 64 wide from shared memory, and the sums 256 wide from registers.
pub const KEYS_HD256: SplitKeysConfig = SplitKeysConfig {
    blocks: WgmmaBackwardConfig {
        head_dim: 256,
        consumers: 1,
        block_n: 64,
        stages: 2,
        ds_blocks: 0,
        biases: Biases::None,
        producer_registers: 40,
        consumer_registers: 232,
    },
};

/// As [`KEYS_HD256`], with room for a third stage.
pub const KEYS_HD192: SplitKeysConfig = SplitKeysConfig {
    blocks: WgmmaBackwardConfig {
        head_dim: 192,
        stages: 3,
        ds_blocks: 0,
        biases: Biases::None,
        ..KEYS_HD256.blocks
    },
};

/// One product alone. 742 TFLOP/s at 16k on an H200; clusters of two that share K give no more.
pub const QUERIES_HD256: SplitQueriesConfig = SplitQueriesConfig {
    blocks: WgmmaBackwardConfig {
        consumers: 2,
        stages: 4,
        ds_blocks: 0,
        biases: Biases::None,
        ..KEYS_HD256.blocks
    },
};

/// As [`QUERIES_HD256`].
pub const QUERIES_HD192: SplitQueriesConfig = SplitQueriesConfig {
    blocks: WgmmaBackwardConfig {
        head_dim: 192,
        ..QUERIES_HD256.blocks
    },
};

const _: () = {
    KEYS_HD192.check();
    KEYS_HD256.check();
    QUERIES_HD192.check();
    QUERIES_HD256.check();
};
