//! Tile shapes of the `mma.sync` kernels.

use super::limits::SM86_SHARED_BYTES;
use crate::layout::fragment::{TILE_K, TILE_M};
use crate::layout::swizzle::{row_bytes, row_vec16s};
use crate::units::{F32_BYTES, HALF_BYTES};

/// Tile shape of one `mma.sync` forward kernel ([`crate::instances`]).
///
/// A block of `warps` warps owns `block_m` query rows; a warp owns `warp_tiles` accumulator tiles of 16 rows, all of
/// `block_n` keys of the scores and all head dimensions of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaConfig {
    /// Bytes of an element of q, k, v and o.
    pub element_bytes: u32,
    /// Largest head_dim and head_dim_v; smaller ones are padded with zeros in shared memory.
    pub head_dim: usize,
    pub warps: u32,
    /// 16-row tiles of a warp: each fragment of K and V loaded from shared memory is used this many times.
    pub warp_tiles: usize,
    /// Keys a step of the loop covers.
    pub block_n: usize,
    /// Stages of K and V. Of two, one is computed on while the other is filled; of one, V is filled while K is computed on, and the
    /// next K while V is.
    pub stages: u32,
    /// Whether Q stays in registers, or its fragments are loaded again for each block of keys.
    pub q_in_registers: bool,
    /// Blocks that fit an SM at once; bounds the registers of a thread.
    pub min_blocks: u32,
}

impl MmaConfig {
    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }

    /// Query rows a block owns.
    pub const fn block_m(&self) -> usize {
        self.warps as usize * self.warp_tiles * TILE_M
    }

    /// Rows of a warp that a lane holds a part of: two a tile.
    pub const fn lane_rows(&self) -> usize {
        self.warp_tiles * 2
    }

    /// Score columns a lane holds of each of its rows.
    pub const fn score_cols(&self) -> usize {
        self.block_n / 4
    }

    /// Output columns a lane holds of each of its rows.
    pub const fn output_cols(&self) -> usize {
        self.head_dim / 4
    }

    /// Columns of 16 bits that a row has in shared memory: what [`crate::layout::swizzle`] counts in.
    pub const fn columns(&self) -> usize {
        self.head_dim * (self.element_bytes / HALF_BYTES) as usize
    }

    /// Steps of the contraction over head dimensions: 32 bytes of a row each.
    pub const fn k_steps(&self) -> usize {
        self.columns() / TILE_K
    }

    /// Pieces of a row that neighbouring lanes copy together: a whole 128-byte line, or half of one where rows are not
    /// made of whole lines.
    pub const fn copy_lanes(columns: usize) -> u32 {
        if row_vec16s(columns).is_multiple_of(8) {
            8
        } else {
            4
        }
    }

    /// Bytes of a block of K, or of V.
    pub const fn operand_bytes(&self) -> u32 {
        self.block_n as u32 * row_bytes(self.columns())
    }

    /// Bytes of one stage: a block of K, then a block of V.
    pub const fn stage_bytes(&self) -> u32 {
        2 * self.operand_bytes()
    }

    /// Bytes of the tile of Q, and of the output tile that takes its place.
    pub const fn q_bytes(&self) -> u32 {
        self.block_m() as u32 * row_bytes(self.columns())
    }

    /// Where the tile of Q starts. The stages start at 0; Q follows them, unless it moves to registers before the
    /// second stage is filled, and then it may lie there.
    pub const fn q_offset(&self) -> u32 {
        if self.q_in_registers {
            self.stage_bytes()
        } else {
            self.stages * self.stage_bytes()
        }
    }

    /// Bytes of the tile's numbers, five times four words. They follow the stages and Q.
    pub const TILE_INFO_BYTES: u32 = 80;

    /// Where the tile's numbers start.
    pub const fn tile_info_offset(&self) -> u32 {
        let stages = self.stages * self.stage_bytes();
        let q_end = self.q_offset() + self.q_bytes();
        if q_end > stages { q_end } else { stages }
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.tile_info_offset() + Self::TILE_INFO_BYTES
    }
}

// TFLOP/s below: one H200, CUDA 13, 16,384 tokens, hidden size 2048, medians of one run; FA2 is PyTorch 2.11's flash
// backend in the same run.

/// Three blocks an SM: bf16, seq 8192, full (FA2 220): 264, with two 242.
pub const HD32: MmaConfig = MmaConfig {
    element_bytes: HALF_BYTES,
    head_dim: 32,
    warps: 4,
    warp_tiles: 2,
    block_n: 64,
    stages: 2,
    q_in_registers: true,
    min_blocks: 3,
};
/// bf16, seq 8192, full (FA2 305): 346. With `block_n` 32 and three blocks an SM 302; with eight warps of one tile 290.
pub const HD64: MmaConfig = MmaConfig {
    element_bytes: HALF_BYTES,
    head_dim: 64,
    warps: 4,
    warp_tiles: 2,
    block_n: 64,
    stages: 2,
    q_in_registers: true,
    min_blocks: 2,
};
/// bf16, seq 8192, full (FA2 343): 361, with Q in registers 311.
pub const HD96: MmaConfig = MmaConfig {
    element_bytes: HALF_BYTES,
    head_dim: 96,
    warps: 4,
    warp_tiles: 2,
    block_n: 64,
    stages: 2,
    q_in_registers: false,
    min_blocks: 2,
};
/// bf16, seq 8192, full (FA2 356): 404. Q does not fit in registers beside the output. With `block_n` 48 or 32 350; with eight
/// warps of one tile, for which the loads from shared memory bind, 269.
pub const HD128: MmaConfig = MmaConfig {
    element_bytes: HALF_BYTES,
    head_dim: 128,
    warps: 4,
    warp_tiles: 2,
    block_n: 64,
    stages: 2,
    q_in_registers: false,
    min_blocks: 2,
};
/// One tile a warp, as two take too many registers. bf16, seq 2048, full (FA2 297): 314, with `block_n` 32 279.
pub const HD192: MmaConfig = MmaConfig {
    element_bytes: HALF_BYTES,
    head_dim: 192,
    warps: 4,
    warp_tiles: 1,
    block_n: 64,
    stages: 2,
    q_in_registers: true,
    min_blocks: 2,
};
/// One tile a warp and 64 rows a block, so that two blocks hide each other's barriers and ends. bf16, full and causal: seq 8192
/// 344 and 313 (FA2 325, 283), seq 512 255 and 181 (259, 184); with one block of 128 rows 327 and 293, 246 and 162.
pub const HD256: MmaConfig = MmaConfig {
    element_bytes: HALF_BYTES,
    head_dim: 256,
    warps: 4,
    warp_tiles: 1,
    block_n: 32,
    stages: 2,
    q_in_registers: true,
    min_blocks: 2,
};

/// With modifiers, which take registers: half the keys of [`HD64`].
pub const MODIFIED_HD64: MmaConfig = MmaConfig {
    block_n: 32,
    ..HD64
};
/// As [`MODIFIED_HD64`].
pub const MODIFIED_HD128: MmaConfig = MmaConfig {
    block_n: 32,
    ..HD128
};
/// With modifiers: Q stays in shared memory.
pub const MODIFIED_HD256: MmaConfig = MmaConfig {
    q_in_registers: false,
    ..HD256
};

// f32 as sums of tf32 parts, below: one H200, 16,384 tokens, hidden size 2048, seq 4096, full; PyTorch's memory-efficient
// attention 36 and 46. Q's fragments are split again for each block of keys, so Q stays in shared memory.

/// 68; with 64 keys a step 70, spilling; with three blocks an SM 64, with eight warps of one tile 59.
pub const F32_HD64: MmaConfig = MmaConfig {
    element_bytes: F32_BYTES,
    head_dim: 64,
    warps: 4,
    warp_tiles: 2,
    block_n: 32,
    stages: 2,
    q_in_registers: false,
    min_blocks: 2,
};
/// 67, of one stage, as two blocks would not fit an SM with two. With two stages of 16 keys 60; with 64 rows a block, one tile
/// a warp, 62; three blocks of those an SM 54.
pub const F32_HD128: MmaConfig = MmaConfig {
    head_dim: 128,
    stages: 1,
    ..F32_HD64
};

/// Every tile shape.
pub const CONFIGS: [MmaConfig; 8] = [HD32, HD64, HD96, HD128, HD192, HD256, F32_HD64, F32_HD128];

const _: () = {
    let mut i = 0;
    while i < CONFIGS.len() {
        let config = CONFIGS[i];
        assert!(config.shared_bytes() <= SM86_SHARED_BYTES);
        assert!(
            config.element_bytes == F32_BYTES
                || (config.block_m() + 1) * row_vec16s(config.columns()) * size_of::<u32>()
                    <= config.stage_bytes() as usize,
            "the mask of non-finite elements, which f32 goes without, fits a stage"
        );
        let rows_per_step = config.threads() / MmaConfig::copy_lanes(config.columns());
        assert!(
            (config.block_n as u32).is_multiple_of(rows_per_step)
                && (config.block_m() as u32).is_multiple_of(rows_per_step),
            "a copy step covers whole rows of the tile"
        );
        i += 1;
    }
};
