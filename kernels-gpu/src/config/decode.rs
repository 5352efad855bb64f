//! Tile shapes of the decode kernels.

use super::limits::SM86_SHARED_BYTES;
use crate::layout::fragment::{TILE_K, TILE_N};
use crate::layout::key_tree::{FAN_OUT_SHIFT, Tree};
use crate::layout::swizzle::row_bytes;
use crate::units::{F32_BYTES, HALF_BYTES};

/// Tile shape of one decode kernel: rows (queries × heads of a group) against the keys of a step, by 8 warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeConfig {
    /// Largest head_dim and head_dim_v; smaller ones are padded with zeros in shared memory.
    pub head_dim: usize,
    /// Rows of a tile: 8 or 16.
    pub rows: u32,
    /// Blocks that fit an SM at once; bounds the registers of a thread.
    pub min_blocks: u32,
    /// Whether keys and values are e4m3 codes with scales, and not 16-bit elements of q's type.
    pub is_e4m3: bool,
    /// Whether codes are converted by `cvt`, which GPUs have from sm_89 on.
    pub has_cvt: bool,
}

impl DecodeConfig {
    pub const WARPS: u32 = 8;
    pub const THREADS: u32 = Self::WARPS * 32;
    /// Keys of a warp that an instruction multiplies V of.
    pub const V_KEYS: u32 = TILE_K as u32;
    /// Such instructions of a step and 16 components, at most.
    pub const MOST_V_STEPS: usize = 2;
    /// Most [`steps_ahead`](Self::steps_ahead).
    pub const MOST_AHEAD: usize = 3;
    /// Rows that an instruction multiplies V of, whose state a thread holds.
    pub const HALF_ROWS: u32 = TILE_N as u32;
    /// Bytes of the ring of K and V, whatever the head_dim: what fits the tightest GPUs, and is twice or thrice what an SM has
    /// in flight where memory is busy.
    const RING_BYTES: u32 = 96 * 1024;
    /// Bytes of K and V of a chunk, whose partial result is then at most 4 % of it.
    const CHUNK_BYTES: u32 = 128 * 1024;
    /// Components that a part of K or V has: a step of more is copied and multiplied in parts, so that the ring holds three.
    const PART_DIMS: usize = 128;
    /// Rows of the largest tiles.
    pub const MOST_ROWS: u32 = 2 * Self::HALF_ROWS;
    /// Words that a block's threads exchange about its item of work.
    pub const INFO_WORDS: u32 = 80;

    /// Bytes of an element of K and V.
    #[inline(always)]
    pub const fn kv_bytes(&self) -> u32 {
        if self.is_e4m3 { 1 } else { HALF_BYTES }
    }

    /// Halves of the tile: 8 rows each.
    #[inline(always)]
    pub const fn halves(&self) -> usize {
        (self.rows / Self::HALF_ROWS) as usize
    }

    /// Components of a part of K and V.
    #[inline(always)]
    pub const fn part_dims(&self) -> usize {
        if self.head_dim < Self::PART_DIMS {
            self.head_dim
        } else {
            Self::PART_DIMS
        }
    }

    /// Parts of K, and of V.
    #[inline(always)]
    pub const fn parts(&self) -> usize {
        self.head_dim / self.part_dims()
    }

    /// 16-bit units of a row of a part, by which rows lie in shared memory.
    #[inline(always)]
    pub const fn row_units(&self) -> usize {
        self.part_dims() * self.kv_bytes() as usize / HALF_BYTES as usize
    }

    /// Keys of a step that a warp has to itself: of codes as many bytes as of 16-bit elements.
    #[inline(always)]
    pub const fn warp_keys(&self) -> u32 {
        Self::V_KEYS * HALF_BYTES / self.kv_bytes()
    }

    /// Instructions that multiply V of a step and 16 components.
    #[inline(always)]
    pub const fn v_steps(&self) -> usize {
        (self.warp_keys() / Self::V_KEYS) as usize
    }

    /// Keys of a step.
    #[inline(always)]
    pub const fn step_keys(&self) -> u32 {
        Self::WARPS * self.warp_keys()
    }

    /// Scores of a step that a lane holds of each of its rows.
    #[inline(always)]
    pub const fn score_cols(&self) -> usize {
        self.warp_keys() as usize / 4
    }

    /// Bytes of a warp's keys of a part.
    #[inline(always)]
    pub const fn warp_bytes(&self) -> u32 {
        self.warp_keys() * row_bytes(self.row_units())
    }

    /// Bytes of a step's part of K, or V.
    #[inline(always)]
    pub const fn slot_bytes(&self) -> u32 {
        Self::WARPS * self.warp_bytes()
    }

    /// Parts, those of K and those of V in turn, that the ring holds.
    #[inline(always)]
    pub const fn slots(&self) -> u32 {
        Self::RING_BYTES / self.slot_bytes()
    }

    /// Keys of a chunk.
    #[inline(always)]
    pub const fn chunk_keys(&self) -> u32 {
        Self::CHUNK_BYTES / (2 * self.head_dim as u32 * self.kv_bytes())
    }

    /// The order in which keys are reduced: groups have as many keys of any cache, so that as many blocks find work.
    #[inline(always)]
    pub const fn tree(&self) -> Tree {
        Tree {
            chunk_keys: self.chunk_keys(),
            group_shift: if self.is_e4m3 {
                FAN_OUT_SHIFT - 1
            } else {
                FAN_OUT_SHIFT
            },
        }
    }

    /// Steps whose keys are located when a step's scores are complete, beyond that step: a ring's worth.
    #[inline(always)]
    pub const fn steps_ahead(&self) -> usize {
        let parts = self.parts();
        (self.slots() as usize + parts).div_ceil(2 * parts) - 1
    }

    /// Steps of a chunk.
    #[inline(always)]
    pub const fn chunk_steps(&self) -> u32 {
        self.chunk_keys() / self.step_keys()
    }

    /// Components of the output that warps merge at a time: as many as a warp has room for, of 8 rows, where its keys were.
    #[inline(always)]
    pub const fn round_dims(&self) -> u32 {
        self.warp_bytes() / (Self::HALF_ROWS * F32_BYTES)
    }

    /// Components of a round that a thread merges.
    #[inline(always)]
    pub const fn round_cols(&self) -> usize {
        (self.round_dims() / (Self::WARPS * 4)) as usize
    }

    /// Rounds in which the output of 8 rows is merged.
    #[inline(always)]
    pub const fn rounds(&self) -> usize {
        self.head_dim / self.round_dims() as usize
    }

    /// Output columns that a thread holds of each of its rows, once the warps' are merged.
    #[inline(always)]
    pub const fn output_cols(&self) -> usize {
        self.head_dim / 32
    }

    /// Where maxima of the warps start, `[row][warp]`: behind the ring.
    pub const MAX_OFFSET: u32 = Self::RING_BYTES;
    /// Where the words about the item start.
    pub const INFO_OFFSET: u32 = Self::MAX_OFFSET + Self::MOST_ROWS * Self::WARPS * F32_BYTES;

    /// Dynamic shared memory of a launch.
    #[inline(always)]
    pub const fn shared_bytes(&self) -> u32 {
        Self::INFO_OFFSET + Self::INFO_WORDS * F32_BYTES
    }

    /// Words of a thread's state for one of its rows: output, maximum, part of the sum.
    #[inline(always)]
    pub const fn state_words(&self) -> u32 {
        self.output_cols() as u32 + 2
    }

    /// Bytes of a partial result of a tile, where heads of K and V have `rows` rows each.
    #[inline(always)]
    pub const fn partial_bytes(&self, rows: u32) -> u64 {
        let is_half = self.rows <= Self::HALF_ROWS || rows <= Self::HALF_ROWS;
        let halves = if is_half { 1 } else { 2 };
        halves * (self.state_words() * F32_BYTES * Self::THREADS) as u64
    }
}

pub const HD64: DecodeConfig = DecodeConfig {
    head_dim: 64,
    rows: 8,
    min_blocks: 2,
    is_e4m3: false,
    has_cvt: false,
};
pub const HD128: DecodeConfig = DecodeConfig {
    head_dim: 128,
    ..HD64
};
/// One block an SM, as Q and the output take 96 registers.
pub const HD256: DecodeConfig = DecodeConfig {
    head_dim: 256,
    min_blocks: 1,
    ..HD64
};
pub const HD64_ROWS16: DecodeConfig = DecodeConfig { rows: 16, ..HD64 };
/// One block an SM, for the same reason.
pub const HD128_ROWS16: DecodeConfig = DecodeConfig {
    rows: 16,
    min_blocks: 1,
    ..HD128
};

pub const E4M3_HD64: DecodeConfig = HD64.of_e4m3();
pub const E4M3_HD128: DecodeConfig = HD128.of_e4m3();
pub const E4M3_HD256: DecodeConfig = HD256.of_e4m3();
/// One block an SM: two would spill a register.
pub const E4M3_HD64_ROWS16: DecodeConfig = DecodeConfig {
    min_blocks: 1,
    ..HD64_ROWS16.of_e4m3()
};
pub const E4M3_HD128_ROWS16: DecodeConfig = HD128_ROWS16.of_e4m3();

pub const CVT_HD64: DecodeConfig = E4M3_HD64.by_cvt();
pub const CVT_HD64_ROWS16: DecodeConfig = E4M3_HD64_ROWS16.by_cvt();
pub const CVT_HD128: DecodeConfig = E4M3_HD128.by_cvt();
pub const CVT_HD128_ROWS16: DecodeConfig = E4M3_HD128_ROWS16.by_cvt();
pub const CVT_HD256: DecodeConfig = E4M3_HD256.by_cvt();

impl DecodeConfig {
    const fn of_e4m3(self) -> Self {
        Self {
            is_e4m3: true,
            ..self
        }
    }

    const fn by_cvt(self) -> Self {
        Self {
            has_cvt: true,
            ..self
        }
    }
}

/// Every tile shape.
pub const CONFIGS: [DecodeConfig; 15] = [
    HD64,
    HD64_ROWS16,
    HD128,
    HD128_ROWS16,
    HD256,
    E4M3_HD64,
    E4M3_HD64_ROWS16,
    E4M3_HD128,
    E4M3_HD128_ROWS16,
    E4M3_HD256,
    CVT_HD64,
    CVT_HD64_ROWS16,
    CVT_HD128,
    CVT_HD128_ROWS16,
    CVT_HD256,
];

const _: () = {
    let mut i = 0;
    while i < CONFIGS.len() {
        let config = CONFIGS[i];
        assert!(config.shared_bytes() <= SM86_SHARED_BYTES);
        assert!(
            config.slots() >= 3,
            "a part that is computed on, and two that are copied"
        );
        assert!(
            config.rows * row_bytes(config.head_dim) <= config.slot_bytes(),
            "Q passes through a slot"
        );
        assert!(config.chunk_keys().is_multiple_of(config.step_keys()));
        assert!(config.v_steps() <= DecodeConfig::MOST_V_STEPS);
        assert!(config.warp_keys() <= 32, "a lane locates a key");
        assert!(config.steps_ahead() <= DecodeConfig::MOST_AHEAD);
        // The same state, whichever kernel of a head_dim computes it.
        assert!(config.rounds() * config.round_cols() == config.output_cols());
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
