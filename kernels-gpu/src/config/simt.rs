//! Tile shapes of the fp32 kernels.

use super::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES};
use crate::units::F32_BYTES;

/// Tile shape of one fp32 forward kernel ([`crate::instances`]).
///
/// A block of `threads` owns `block_m` query rows. Threads form a grid of `threads / LANES_PER_ROW` by
/// `LANES_PER_ROW`; each holds `thread_rows` rows of the score tile and of the output tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimtConfig {
    /// Largest head_dim and head_dim_v; smaller ones are padded with zeros in shared memory.
    pub head_dim: usize,
    /// Threads in a block.
    pub threads: u32,
    /// Query rows a thread holds.
    pub thread_rows: usize,
    /// Head dimensions of K in one pipeline stage.
    pub k_chunk: usize,
    /// Blocks that fit an SM at once; bounds the registers of a thread.
    pub min_blocks: u32,
}

impl SimtConfig {
    /// Lanes that share a query row: half a warp, so that row reductions are four shuffles.
    pub const LANES_PER_ROW: usize = 16;
    /// Columns of the score tile: eight a thread.
    pub const BLOCK_N: usize = Self::LANES_PER_ROW * Self::SCORE_COLS;
    /// Score columns a thread holds. With eight rows, 64 FMAs pay for 16 16-byte shared loads a 4-wide
    /// step, which is under what the load unit can serve.
    pub const SCORE_COLS: usize = 8;
    /// Pipeline stages: one being computed on, one being filled.
    pub const STAGES: usize = 2;
    /// Appended to a row of Q and K so that 16-byte loads of eight consecutive rows touch every bank once.
    pub const ROW_PAD: usize = 4;
    /// Appended to a row of P: two rows written at once by a warp then fall in different halves of the banks.
    pub const P_PAD: usize = 16;

    /// Rows of the grid of threads: what is between two of a thread's query rows.
    pub const fn row_groups(&self) -> u32 {
        self.threads / Self::LANES_PER_ROW as u32
    }

    /// Query rows a block owns.
    pub const fn block_m(&self) -> usize {
        self.row_groups() as usize * self.thread_rows
    }

    /// Output columns a thread holds of each of its rows.
    pub const fn output_cols(&self) -> usize {
        self.head_dim / Self::LANES_PER_ROW
    }

    /// Rows of V in one pipeline stage: as many elements as a chunk of K.
    pub const fn v_chunk(&self) -> usize {
        Self::BLOCK_N * self.k_chunk / self.head_dim
    }

    /// Elements of the Q tile in shared memory, padding included.
    pub const fn q_elems(&self) -> usize {
        self.block_m() * (self.head_dim + Self::ROW_PAD)
    }

    /// Elements of the P tile in shared memory, padding included.
    pub const fn p_elems(&self) -> usize {
        self.block_m() * (Self::BLOCK_N + Self::P_PAD)
    }

    /// Elements of one pipeline stage: a chunk of K with its padding, the larger of the two.
    pub const fn stage_elems(&self) -> usize {
        Self::BLOCK_N * (self.k_chunk + Self::ROW_PAD)
    }

    /// Offset of P; Q lies before it.
    pub const fn p_offset(&self) -> u32 {
        self.q_elems() as u32 * F32_BYTES
    }

    /// Offset of the pipeline's stages.
    pub const fn stages_offset(&self) -> u32 {
        self.p_offset() + self.p_elems() as u32 * F32_BYTES
    }

    /// Bytes of one pipeline stage.
    pub const fn stage_bytes(&self) -> u32 {
        self.stage_elems() as u32 * F32_BYTES
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.stages_offset() + Self::STAGES as u32 * self.stage_bytes()
    }

    /// Offset of P in a backward kernel; two operands as large as Q lie before it.
    pub const fn backward_p_offset(&self) -> u32 {
        2 * self.p_offset()
    }

    /// Offset of the pipeline's stages in a backward kernel.
    pub const fn backward_stages_offset(&self) -> u32 {
        self.backward_p_offset() + self.p_elems() as u32 * F32_BYTES
    }

    /// Dynamic shared memory of a launch of a backward kernel.
    pub const fn backward_shared_bytes(&self) -> u32 {
        self.backward_stages_offset() + Self::STAGES as u32 * self.stage_bytes()
    }
}

/// head_dim ≤ 64. Two blocks fit an SM.
pub const HD64: SimtConfig = SimtConfig {
    head_dim: 64,
    threads: 128,
    thread_rows: 8,
    k_chunk: 32,
    min_blocks: 2,
};
/// head_dim ≤ 128. Two blocks fit an SM.
pub const HD128: SimtConfig = SimtConfig {
    head_dim: 128,
    threads: 128,
    thread_rows: 8,
    k_chunk: 32,
    min_blocks: 2,
};
/// [`HD128`] for [`SM86_SHARED_BYTES`], where one block fits an SM: it has as many warps as two blocks of the other. With
/// half the stage all 64 rows stay, and with them how often K and V are read.
pub const HD128_SMEM99K: SimtConfig = SimtConfig {
    head_dim: 128,
    threads: 256,
    thread_rows: 4,
    k_chunk: 16,
    min_blocks: 1,
};
/// head_dim ≤ 256. Four rows a thread, as the output tile alone takes 16 registers a row.
pub const HD256: SimtConfig = SimtConfig {
    head_dim: 256,
    threads: 256,
    thread_rows: 4,
    k_chunk: 32,
    min_blocks: 1,
};
/// [`HD256`] for [`SM86_SHARED_BYTES`]: with half the stage 48 rows fit, with a whole one 32. Four warps of six rows a
/// thread: 14 shared loads for 192 FMAs of a 4-wide step of S = Q Kᵀ, where eight warps of three take 22. By count, not by
/// measurement.
pub const HD256_SMEM99K: SimtConfig = SimtConfig {
    head_dim: 256,
    threads: 128,
    thread_rows: 6,
    k_chunk: 16,
    min_blocks: 1,
};

/// Backward, head_dim ≤ 64: two blocks fit an SM of [`SM90_SHARED_BYTES`](super::limits::SM90_SHARED_BYTES), and one with
/// less.
pub const BACKWARD_HD64: SimtConfig = SimtConfig {
    head_dim: 64,
    threads: 128,
    thread_rows: 8,
    k_chunk: 32,
    min_blocks: 2,
};
/// [`BACKWARD_HD64`] for [`SM86_SHARED_BYTES`].
pub const BACKWARD_HD64_SMEM99K: SimtConfig = SimtConfig {
    k_chunk: 16,
    min_blocks: 1,
    ..BACKWARD_HD64
};
/// Backward, head_dim ≤ 128: one block fits an SM, so it has eight warps, which leaves four rows a thread.
pub const BACKWARD_HD128: SimtConfig = SimtConfig {
    head_dim: 128,
    threads: 256,
    thread_rows: 4,
    k_chunk: 32,
    min_blocks: 1,
};
/// [`BACKWARD_HD128`] for [`SM86_SHARED_BYTES`]: half the rows and half the stage.
pub const BACKWARD_HD128_SMEM99K: SimtConfig = SimtConfig {
    thread_rows: 2,
    k_chunk: 16,
    ..BACKWARD_HD128
};
/// Backward, head_dim ≤ 256: 48 rows, as two operands of them and P fill shared memory.
pub const BACKWARD_HD256: SimtConfig = SimtConfig {
    head_dim: 256,
    threads: 256,
    thread_rows: 3,
    k_chunk: 16,
    min_blocks: 1,
};
/// [`BACKWARD_HD256`] for [`SM86_SHARED_BYTES`]: 24 rows of four warps.
pub const BACKWARD_HD256_SMEM99K: SimtConfig = SimtConfig {
    threads: 128,
    ..BACKWARD_HD256
};

/// With modifiers, which take registers: fewer rows a thread.
pub const MODIFIED_HD64: SimtConfig = SimtConfig {
    thread_rows: 4,
    ..HD64
};
/// As [`MODIFIED_HD64`]: it has few rows a thread already.
pub const MODIFIED_HD128: SimtConfig = HD128_SMEM99K;
/// As [`MODIFIED_HD64`].
pub const MODIFIED_HD256: SimtConfig = SimtConfig {
    thread_rows: 4,
    ..HD256_SMEM99K
};
/// As [`MODIFIED_HD64`], backward.
pub const MODIFIED_BACKWARD_HD64: SimtConfig = SimtConfig {
    thread_rows: 4,
    ..BACKWARD_HD64_SMEM99K
};
/// With modifiers: what fits every GPU.
pub const MODIFIED_BACKWARD_HD128: SimtConfig = BACKWARD_HD128_SMEM99K;
/// As [`MODIFIED_BACKWARD_HD128`].
pub const MODIFIED_BACKWARD_HD256: SimtConfig = BACKWARD_HD256_SMEM99K;

const _: () = {
    let configs = [
        BACKWARD_HD64,
        BACKWARD_HD64_SMEM99K,
        BACKWARD_HD128,
        BACKWARD_HD128_SMEM99K,
        BACKWARD_HD256,
        BACKWARD_HD256_SMEM99K,
    ];
    let mut i = 0;
    while i < configs.len() {
        let config = configs[i];
        assert!(config.backward_shared_bytes() <= SM80_SHARED_BYTES);
        assert!(config.stage_elems() >= config.v_chunk() * config.head_dim);
        assert!((4 * config.threads as usize).is_multiple_of(config.head_dim));
        // Every other one is for the tightest GPUs.
        assert!(i % 2 == 0 || config.backward_shared_bytes() <= SM86_SHARED_BYTES);
        i += 1;
    }
};

const _: () = {
    let configs = [
        HD64,
        HD128,
        HD128_SMEM99K,
        HD256,
        HD256_SMEM99K,
        MODIFIED_HD64,
        MODIFIED_HD256,
    ];
    let mut i = 0;
    while i < configs.len() {
        let config = configs[i];
        assert!(config.shared_bytes() <= SM80_SHARED_BYTES);
        assert!(config.stage_elems() >= config.v_chunk() * config.head_dim);
        assert!(
            (4 * config.threads as usize).is_multiple_of(config.head_dim),
            "a copy step covers whole rows"
        );
        i += 1;
    }
    assert!(HD128_SMEM99K.shared_bytes() <= SM86_SHARED_BYTES);
    assert!(HD256_SMEM99K.shared_bytes() <= SM86_SHARED_BYTES);
};
