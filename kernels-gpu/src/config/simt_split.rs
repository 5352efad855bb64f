//! Tile shapes of the two fp32 backward kernels between which dS passes.

use super::limits::SM90_SHARED_BYTES;
use super::simt::SimtConfig;
use crate::units::F32_BYTES;

/// The kernel of dk and dv: two groups of threads for the same keys, of which one holds P and dV, and one dS and dK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitKeysConfig {
    /// The tile of one group; its `threads` are the group's.
    pub group: SimtConfig,
}

impl SplitKeysConfig {
    /// Groups of a block.
    pub const GROUPS: u32 = 2;

    /// Threads of a block.
    pub const fn threads(&self) -> u32 {
        Self::GROUPS * self.group.threads
    }

    /// Offset of P, and of dS behind it; K and V lie before.
    pub const fn pairs_offset(&self) -> u32 {
        Self::GROUPS * self.group.p_offset()
    }

    /// Bytes of P, and of dS.
    pub const fn pairs_bytes(&self) -> u32 {
        self.group.p_elems() as u32 * F32_BYTES
    }

    /// Offset of the first group's stages.
    pub const fn stages_offset(&self) -> u32 {
        self.pairs_offset() + Self::GROUPS * self.pairs_bytes()
    }

    /// Bytes of a group's stages.
    pub const fn stages_bytes(&self) -> u32 {
        SimtConfig::STAGES as u32 * self.group.stage_bytes()
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.stages_offset() + Self::GROUPS * self.stages_bytes()
    }
}

/// The kernel of dq: a block owns as many queries as the other passes at a time, and all dimensions of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitQueriesConfig {
    pub keys: SplitKeysConfig,
    pub threads: u32,
    /// Keys of a pipeline stage.
    pub key_chunk: usize,
    /// Blocks that fit an SM at once; bounds the registers of a thread.
    pub min_blocks: u32,
}

impl SplitQueriesConfig {
    /// Queries that a block owns, and a tile of dS has.
    pub const BLOCK_M: usize = SimtConfig::BLOCK_N;
    /// Queries that a thread holds.
    pub const THREAD_ROWS: usize = 8;

    /// Threads that share a query.
    pub const fn lanes(&self) -> usize {
        self.threads as usize * Self::THREAD_ROWS / Self::BLOCK_M
    }

    /// Dimensions that a thread holds of each of its queries.
    pub const fn thread_cols(&self) -> usize {
        self.keys.group.head_dim / self.lanes()
    }

    /// Keys of a tile of dS.
    pub const fn block_n(&self) -> usize {
        self.keys.group.block_m()
    }

    /// Bytes of dS in a stage, behind which K lies.
    pub const fn ds_bytes(&self) -> u32 {
        (self.key_chunk * Self::BLOCK_M) as u32 * F32_BYTES
    }

    /// Bytes of a stage.
    pub const fn stage_bytes(&self) -> u32 {
        self.ds_bytes() + (self.key_chunk * self.keys.group.head_dim) as u32 * F32_BYTES
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        SimtConfig::STAGES as u32 * self.stage_bytes()
    }
}

/// head_dim ≤ 64.
pub const HD64: SplitQueriesConfig = SplitQueriesConfig {
    keys: SplitKeysConfig {
        group: SimtConfig {
            head_dim: 64,
            threads: 128,
            thread_rows: 8,
            k_chunk: 32,
            min_blocks: 1,
        },
    },
    threads: 128,
    key_chunk: 32,
    min_blocks: 3,
};
/// head_dim ≤ 128. With a group for each of P and dS a thread holds 8 × 8 of every product: 16 shared loads of 16 bytes pay
/// for 256 FMAs, what an SM serves in the time of the FMAs. Without groups it would be 4 × 8, and 12 for 128.
pub const HD128: SplitQueriesConfig = SplitQueriesConfig {
    keys: SplitKeysConfig {
        group: SimtConfig {
            head_dim: 128,
            ..HD64.keys.group
        },
    },
    threads: 256,
    key_chunk: 32,
    min_blocks: 2,
};
/// head_dim ≤ 256: 48 keys, which is what K, V and the sums have room for.
pub const HD256: SplitQueriesConfig = SplitQueriesConfig {
    keys: SplitKeysConfig {
        group: SimtConfig {
            head_dim: 256,
            thread_rows: 6,
            k_chunk: 16,
            ..HD64.keys.group
        },
    },
    threads: 256,
    key_chunk: 16,
    min_blocks: 1,
};

const _: () = {
    let configs = [HD64, HD128, HD256];
    let mut i = 0;
    while i < configs.len() {
        let config = configs[i];
        let group = config.keys.group;
        assert!(config.keys.shared_bytes() <= SM90_SHARED_BYTES);
        assert!(config.shared_bytes() * config.min_blocks <= SM90_SHARED_BYTES);
        assert!(group.stage_elems() >= group.v_chunk() * group.head_dim);
        assert!((4 * group.threads as usize).is_multiple_of(group.head_dim));
        assert!((4 * config.threads as usize).is_multiple_of(group.head_dim));
        assert!(config.block_n().is_multiple_of(config.key_chunk));
        i += 1;
    }
};
