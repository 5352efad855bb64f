//! Tile shapes of the decode kernels.

use super::limits::SM86_SHARED_BYTES;
use crate::layout::fragment::TILE_M;
use crate::layout::swizzle::row_bytes;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Tile shape of one decode kernel: 16 rows (queries × heads of a group) against the keys of a step, by 8 warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeConfig {
    /// Largest head_dim and head_dim_v; smaller ones are padded with zeros in shared memory.
    pub head_dim: usize,
    /// Blocks that fit an SM at once; bounds the registers of a thread.
    pub min_blocks: u32,
    /// Whether keys and values are e4m3 codes with scales, and not 16-bit elements of q's type.
    pub is_e4m3: bool,
    /// Keys that a warp scores in a step: a multiple of 8.
    pub warp_keys: u32,
}

impl DecodeConfig {
    pub const WARPS: u32 = 8;
    pub const THREADS: u32 = Self::WARPS * 32;
    /// Rows of a tile.
    pub const ROWS: u32 = TILE_M as u32;
    /// Bytes of the ring of K and V, whatever the head_dim: what fits the tightest GPUs, and is twice or thrice what an SM has
    /// in flight where memory is busy. Of an e4m3 cache, scales and P are among them, behind a shorter ring.
    const RING_BYTES: u32 = 96 * 1024;
    const E4M3_RING_BYTES: u32 = 80 * 1024;
    /// Bytes of K and V of a chunk of 16-bit elements, whose partial result is then at most 4 % of it.
    const CHUNK_BYTES: u32 = 128 * 1024;
    /// Words that a block's threads exchange about its item of work.
    pub const INFO_WORDS: u32 = 48;

    /// Keys of a step.
    pub const fn step_keys(&self) -> u32 {
        Self::WARPS * self.warp_keys
    }

    /// Bytes of an element of K and V.
    pub const fn kv_bytes(&self) -> u32 {
        if self.is_e4m3 { 1 } else { HALF_BYTES }
    }

    /// 16-bit units of a row of K or V, by which rows lie in shared memory.
    pub const fn row_units(&self) -> usize {
        self.head_dim * self.kv_bytes() as usize / HALF_BYTES as usize
    }

    /// Bytes of a step's K, or V.
    pub const fn operand_bytes(&self) -> u32 {
        self.step_keys() * row_bytes(self.row_units())
    }

    const fn ring_bytes(&self) -> u32 {
        if self.is_e4m3 {
            Self::E4M3_RING_BYTES
        } else {
            Self::RING_BYTES
        }
    }

    /// Operands, K and V in turn, that the ring holds.
    pub const fn slots(&self) -> u32 {
        self.ring_bytes() / self.operand_bytes()
    }

    /// Keys of a chunk; as many of an e4m3 cache, so that as many blocks find work.
    pub const fn chunk_keys(&self) -> u32 {
        Self::CHUNK_BYTES / (2 * row_bytes(self.head_dim))
    }

    /// Steps of a chunk.
    pub const fn chunk_steps(&self) -> u32 {
        self.chunk_keys() / self.step_keys()
    }

    /// Scores of a step that a lane holds of each of its rows.
    pub const fn score_cols(&self) -> usize {
        self.warp_keys as usize / 4
    }

    /// Bytes of the scales of a step's keys, and as many of its values behind them.
    pub const fn scales_bytes(&self) -> u32 {
        self.step_keys() * F32_BYTES
    }

    /// Where the scales of slot 0 start, behind the ring; every slot has two rows of them.
    pub const fn scales_offset(&self) -> u32 {
        self.ring_bytes()
    }

    /// Where the tile of P, 16 rows × the keys of a step, starts.
    pub const fn p_offset(&self) -> u32 {
        if self.is_e4m3 {
            let scales = self.slots() * 2 * self.scales_bytes();
            self.scales_offset() + scales
        } else {
            Self::RING_BYTES
        }
    }

    const fn p_bytes(&self) -> u32 {
        Self::ROWS * row_bytes(self.step_keys() as usize)
    }

    /// Output columns that a lane holds of each of its rows.
    pub const fn output_cols(&self) -> usize {
        self.head_dim / 32
    }

    /// Where maxima of the warps start, `[row][warp]`: behind the ring and P of a 16-bit cache.
    pub const MAX_OFFSET: u32 = Self::RING_BYTES + Self::ROWS * row_bytes(64);
    /// Where the words about the item start.
    pub const INFO_OFFSET: u32 = Self::MAX_OFFSET + Self::ROWS * Self::WARPS * F32_BYTES;

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        Self::INFO_OFFSET + Self::INFO_WORDS * F32_BYTES
    }

    /// Words of a thread's state for one of its two rows: output, maximum, part of the sum.
    pub const fn state_words(&self) -> u32 {
        self.output_cols() as u32 + 2
    }

    /// Bytes of a partial result of tiles with `rows` rows at most: threads hold two halves of 8 rows.
    pub const fn partial_bytes(&self, rows: u32) -> u64 {
        let halves = if rows <= Self::ROWS / 2 { 1 } else { 2 };
        halves * (self.state_words() * F32_BYTES * Self::THREADS) as u64
    }
}

pub const HD64: DecodeConfig = DecodeConfig {
    head_dim: 64,
    min_blocks: 2,
    is_e4m3: false,
    warp_keys: 8,
};
pub const HD128: DecodeConfig = DecodeConfig {
    head_dim: 128,
    min_blocks: 2,
    is_e4m3: false,
    warp_keys: 8,
};
/// One block an SM, as Q takes 64 registers.
pub const HD256: DecodeConfig = DecodeConfig {
    head_dim: 256,
    min_blocks: 1,
    is_e4m3: false,
    warp_keys: 8,
};

/// Twice the keys a step, which is as many bytes as of a 16-bit cache.
pub const E4M3_HD64: DecodeConfig = DecodeConfig {
    is_e4m3: true,
    warp_keys: 16,
    ..HD64
};
pub const E4M3_HD128: DecodeConfig = DecodeConfig {
    is_e4m3: true,
    warp_keys: 16,
    ..HD128
};
/// As many keys as of a 16-bit cache: of more the ring would hold two operands.
pub const E4M3_HD256: DecodeConfig = DecodeConfig {
    is_e4m3: true,
    ..HD256
};

/// Every tile shape.
pub const CONFIGS: [DecodeConfig; 6] = [HD64, HD128, HD256, E4M3_HD64, E4M3_HD128, E4M3_HD256];

const _: () = {
    let mut i = 0;
    while i < CONFIGS.len() {
        let config = CONFIGS[i];
        assert!(config.shared_bytes() <= SM86_SHARED_BYTES);
        assert!(
            config.slots() >= 3,
            "K and V of a step, and one that is copied"
        );
        assert!(config.p_offset() + config.p_bytes() <= DecodeConfig::MAX_OFFSET);
        assert!(config.chunk_keys().is_multiple_of(config.step_keys()));
        i += 1;
    }
};

/// Where things lie in a launch's workspace. Plans that share one must agree in [`zeroed_bytes`](Self::zeroed_bytes): what
/// one counts with must not be where another leaves partial results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeWorkspace {
    /// Partial results that there is room for.
    pub slots: u32,
}

impl DecodeWorkspace {
    /// Levels above the items, each with a counter for a node.
    pub const LEVELS: u64 = 3;
    /// Bytes of the counter of items.
    const HEADER_BYTES: u64 = 64;
    /// So few slots that it does not matter.
    const LEAST_SLOTS: u64 = 4096;

    /// One with room for `items` partial results; `None` if these are too many to be numbered.
    pub fn new(items: u64) -> Option<Self> {
        let slots = items.max(Self::LEAST_SLOTS).checked_next_power_of_two()?;
        let slots = u32::try_from(slots).ok()?;
        Some(Self { slots })
    }

    /// Bytes from the first on that are 0 between launches.
    pub const fn zeroed_bytes(&self) -> u64 {
        Self::HEADER_BYTES + Self::LEVELS * self.slots as u64 * F32_BYTES as u64
    }

    /// Offset of the counter of the node of `level`, from 0 for the lowest above items, whose first item is `slot`.
    #[inline(always)]
    pub const fn counter(&self, level: u32, slot: u32) -> u64 {
        let index = level as u64 * self.slots as u64 + slot as u64;
        Self::HEADER_BYTES + index * F32_BYTES as u64
    }

    /// Offset of partial result `slot`.
    #[inline(always)]
    pub const fn partial(&self, slot: u32, partial_bytes: u64) -> u64 {
        self.zeroed_bytes() + slot as u64 * partial_bytes
    }
}
