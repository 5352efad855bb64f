//! Tile shapes of the `mma.sync` backward kernels.

use super::biases::Biases;
use super::limits::{SM80_SHARED_BYTES, SM86_SHARED_BYTES, SM90_SHARED_BYTES};
use super::mma::MmaConfig;
use crate::layout::fragment::{TILE_M, TILE_N};
use crate::layout::swizzle::row_bytes;
use crate::units::F32_BYTES;

/// Tile shape of the `mma.sync` backward kernels of one head_dim ([`crate::instances`]).
///
/// A block keeps `block_m` rows of one side (K and V, or Q and dO) and passes over the other side, `block_n` rows at a time.
/// Its warps form a grid over each product's result, whose number of rows is given here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaBackwardConfig {
    /// Largest head_dim and head_dim_v; smaller ones are padded with zeros in shared memory.
    pub head_dim: usize,
    pub warps: u32,
    pub block_m: usize,
    pub block_n: usize,
    /// Rows of the grid over scores, `block_m` × `block_n`.
    pub score_warps: usize,
    /// Rows of the grid over the gradients of what is kept, `block_m` × `head_dim`.
    pub output_warps: usize,
    /// Rows of the grid over a block's part of dq, `block_n` × `head_dim`.
    pub dq_warps: usize,
    /// In how many parts, one after the other, a warp takes its columns of that, so that they find registers beside its
    /// sums.
    pub dq_parts: usize,
    /// Whether one half of the warps computes scores while the other multiplies with them, of a kernel that adds dq up with two
    /// stages; all warps are in step otherwise.
    pub takes_turns: bool,
    /// Places for dS. Two where a block's is read, for dq, while the next one's is written: with two stages, unless halves of the
    /// warps that take turns wait for each other there.
    pub ds_places: u32,
    /// Blocks of the passing side in shared memory: one being computed on and one being filled, or one whose two operands
    /// are filled in turn.
    pub stages: u32,
    /// What becomes of biases, of a kernel with modifiers.
    pub biases: Biases,
    /// Blocks that fit an SM at once; bounds the registers of a thread.
    pub min_blocks: u32,
}

/// Rows and columns of a result that a warp has, as a lane holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarpTile {
    /// Rows of the grid of warps.
    pub warps_m: usize,
    /// Groups of consecutive warps that have rows of their own.
    pub groups: usize,
    /// Warps of a group.
    pub group_warps: u32,
    /// Rows and columns of the warp's part.
    pub rows: usize,
    pub cols: usize,
    /// How many such parts beside each other the warp has.
    pub parts: usize,
}

impl WarpTile {
    const fn new(warps: u32, groups: usize, warps_m: usize, rows: usize, cols: usize) -> Self {
        Self {
            warps_m,
            groups,
            group_warps: warps / groups as u32,
            rows: rows / warps_m,
            cols: cols / (warps as usize / warps_m),
            parts: 1,
        }
    }

    /// Rows that a lane holds a part of.
    pub const fn lane_rows(&self) -> usize {
        self.rows / (TILE_M / 2)
    }

    /// Columns that a lane holds of each of its rows.
    pub const fn lane_cols(&self) -> usize {
        self.cols / 4
    }

    /// First row and column of warp `warp`.
    #[inline(always)]
    pub const fn origin(&self, warp: u32) -> (u32, u32) {
        let group_rows = (self.warps_m / self.groups) as u32;
        let (group, member) = (warp / self.group_warps, warp % self.group_warps);
        (
            (group * group_rows + member % group_rows) * self.rows as u32,
            member / group_rows * (self.cols * self.parts) as u32,
        )
    }
}

impl MmaBackwardConfig {
    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        self.warps * 32
    }

    /// Groups of warps that have the same rows of the scores and of the gradients of what is kept: P and dS pass between
    /// the warps of a group alone.
    pub const fn groups(&self) -> usize {
        if self.score_warps < self.output_warps {
            self.score_warps
        } else {
            self.output_warps
        }
    }

    /// Threads of a group of warps.
    pub const fn group_threads(&self) -> u32 {
        self.threads() / self.groups() as u32
    }

    /// Whether a warp has all of its rows' P and dS, which are operands as they lie in its registers.
    pub const fn multiplies_registers(&self) -> bool {
        self.groups() == self.warps as usize
    }

    /// A warp's part of the scores.
    pub const fn scores(&self) -> WarpTile {
        self.warp_tile(self.score_warps, self.block_n)
    }

    /// A warp's part of the gradient of a kept operand.
    pub const fn output(&self) -> WarpTile {
        self.warp_tile(self.output_warps, self.head_dim)
    }

    const fn warp_tile(&self, warps_m: usize, cols: usize) -> WarpTile {
        WarpTile::new(self.warps, self.groups(), warps_m, self.block_m, cols)
    }

    /// A warp's part of a block's contribution to dq, at a time; the columns of its parts follow one another.
    pub const fn dq(&self) -> WarpTile {
        let whole = WarpTile::new(self.warps, 1, self.dq_warps, self.block_n, self.head_dim);
        WarpTile {
            cols: whole.cols / self.dq_parts,
            parts: self.dq_parts,
            ..whole
        }
    }

    /// The same configuration, of kernels with modifiers, that does this with biases.
    pub const fn with_biases(self, biases: Biases) -> Self {
        Self { biases, ..self }
    }

    /// Bytes of one operand that is kept. Both begin shared memory.
    pub const fn kept_bytes(&self) -> u32 {
        self.block_m as u32 * row_bytes(self.head_dim)
    }

    /// Bytes of a block of one operand that passes.
    pub const fn passing_bytes(&self) -> u32 {
        self.block_n as u32 * row_bytes(self.head_dim)
    }

    /// Where the stages of the passing operands begin, each of the first operand and then of the second.
    pub const fn stages_offset(&self) -> u32 {
        2 * self.kept_bytes()
    }

    /// Where P is; dS follows it.
    pub const fn p_offset(&self) -> u32 {
        self.stages_offset() + self.stages * 2 * self.passing_bytes()
    }

    /// Bytes of P, or of dS.
    pub const fn p_bytes(&self) -> u32 {
        self.block_m as u32 * row_bytes(self.block_n)
    }

    /// Where lse and delta of queries are: those of a block that passes, a stage after the other, or of all that are kept.
    pub const fn terms_offset(&self) -> u32 {
        self.p_offset() + (1 + self.ds_places) * self.p_bytes()
    }

    /// Bytes of the numbers of the tile's sequence, twice four words.
    pub const SEQUENCE_BYTES: u32 = 32;

    /// Where they are: behind the terms.
    pub const fn sequence_offset(&self) -> u32 {
        let passing = self.stages as usize * self.block_n;
        let rows = if passing > self.block_m {
            passing
        } else {
            self.block_m
        };
        self.terms_offset() + 2 * rows as u32 * F32_BYTES
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.sequence_offset() + Self::SEQUENCE_BYTES
    }

    /// Bytes of the marks of elements that must not stay finite, a bit for each of one gradient's. They take the place of P or
    /// of dS.
    pub const fn marks_bytes(&self) -> u32 {
        (self.block_m * self.head_dim) as u32 / u8::BITS
    }
}

/// Three blocks an SM of [`SM90_SHARED_BYTES`] hide each other's barriers, two of sm_80. It fits [`SM86_SHARED_BYTES`].
pub const HD64: MmaBackwardConfig = MmaBackwardConfig {
    head_dim: 64,
    warps: 4,
    block_m: 64,
    block_n: 64,
    score_warps: 2,
    output_warps: 2,
    dq_warps: 2,
    dq_parts: 1,
    takes_turns: false,
    ds_places: 1,
    stages: 2,
    biases: Biases::Read,
    min_blocks: 2,
};
/// A warp has 32 keys to itself, whose P and dS are operands as they lie in its registers: of [`HD64`]'s bytes through shared
/// memory a sixth is gone, and one of two barriers.
pub const FUSED_HD64: MmaBackwardConfig = MmaBackwardConfig {
    block_m: 128,
    block_n: 32,
    score_warps: 4,
    output_warps: 4,
    ds_places: 2,
    ..HD64
};
/// One block fills an SM of sm_80.
pub const HD128: MmaBackwardConfig = MmaBackwardConfig {
    head_dim: 128,
    warps: 8,
    block_m: 128,
    block_n: 64,
    score_warps: 4,
    output_warps: 4,
    dq_warps: 2,
    dq_parts: 1,
    takes_turns: false,
    ds_places: 1,
    stages: 2,
    biases: Biases::Read,
    min_blocks: 1,
};
/// Two warps of a scheduler that wait for the same barriers multiply at the same time and compute P at the same time: in turns they
/// do one beside the other.
pub const FUSED_HD128: MmaBackwardConfig = MmaBackwardConfig {
    takes_turns: true,
    ..HD128
};
/// [`HD128`] for [`SM86_SHARED_BYTES`]: half the rows, and one stage.
pub const HD128_SMEM99K: MmaBackwardConfig = MmaBackwardConfig {
    block_m: 64,
    output_warps: 2,
    stages: 1,
    ..HD128
};
/// Two sums of 64 × 256 take half the registers of eight warps.
pub const HD256: MmaBackwardConfig = MmaBackwardConfig {
    head_dim: 256,
    warps: 8,
    block_m: 64,
    block_n: 64,
    score_warps: 4,
    output_warps: 2,
    dq_warps: 2,
    dq_parts: 2,
    takes_turns: false,
    ds_places: 1,
    stages: 1,
    biases: Biases::Read,
    min_blocks: 1,
};
/// [`HD256`] for [`SM90_SHARED_BYTES`], which have room for the second stage that turns need.
pub const FUSED_HD256: MmaBackwardConfig = MmaBackwardConfig {
    takes_turns: true,
    stages: 2,
    ..HD256
};
/// [`HD256`] for [`SM86_SHARED_BYTES`].
pub const HD256_SMEM99K: MmaBackwardConfig = MmaBackwardConfig {
    warps: 4,
    block_m: 32,
    block_n: 32,
    score_warps: 2,
    ..HD256
};

/// With modifiers: what fits every GPU.
pub const MODIFIED_HD64: MmaBackwardConfig = HD64;
/// As [`MODIFIED_HD64`].
pub const MODIFIED_HD128: MmaBackwardConfig = HD128_SMEM99K;
/// As [`MODIFIED_HD64`].
pub const MODIFIED_HD256: MmaBackwardConfig = HD256_SMEM99K;

/// Fused, with modifiers but for biases.
pub const MODIFIED_FUSED_HD64: MmaBackwardConfig = FUSED_HD64.with_biases(Biases::None);
/// As [`MODIFIED_FUSED_HD64`].
pub const MODIFIED_FUSED_HD128: MmaBackwardConfig = FUSED_HD128.with_biases(Biases::None);
/// As [`MODIFIED_FUSED_HD64`].
pub const MODIFIED_FUSED_HD128_SMEM99K: MmaBackwardConfig = HD128_SMEM99K.with_biases(Biases::None);
/// Fused, with biases among other modifiers.
pub const BIASED_FUSED_HD64: MmaBackwardConfig = FUSED_HD64.with_biases(Biases::Present);
/// As [`BIASED_FUSED_HD64`].
pub const BIASED_FUSED_HD128: MmaBackwardConfig = FUSED_HD128.with_biases(Biases::Present);
/// As [`BIASED_FUSED_HD64`].
pub const BIASED_FUSED_HD128_SMEM99K: MmaBackwardConfig =
    HD128_SMEM99K.with_biases(Biases::Present);

/// Gradients by biases, which have no sums of gradients in registers: of tiles of a block each, many of which an SM holds, as nothing else
/// hides what a tile waits for.
pub const BIAS_HD64: MmaBackwardConfig = MmaBackwardConfig {
    warps: 8,
    score_warps: 4,
    stages: 1,
    ..MODIFIED_HD64
};
/// As [`BIAS_HD64`].
pub const BIAS_HD128: MmaBackwardConfig = MmaBackwardConfig {
    min_blocks: 2,
    ..MODIFIED_HD128
};
/// As [`BIAS_HD64`].
pub const BIAS_HD256: MmaBackwardConfig = MmaBackwardConfig {
    min_blocks: 3,
    ..MODIFIED_HD256
};

/// Every tile shape.
pub const CONFIGS: [MmaBackwardConfig; 11] = [
    HD64,
    FUSED_HD64,
    HD128,
    FUSED_HD128,
    HD128_SMEM99K,
    HD256,
    FUSED_HD256,
    HD256_SMEM99K,
    BIAS_HD64,
    BIAS_HD128,
    BIAS_HD256,
];

/// Whether warps' parts are whole tiles of `mma`, and loads of 16 columns stay inside a warp's part by an xor.
const fn is_sound(tile: WarpTile) -> bool {
    tile.rows.is_multiple_of(TILE_M)
        && tile.cols.is_multiple_of(2 * TILE_N)
        && tile.cols.is_power_of_two()
}

const _: () = {
    let mut i = 0;
    while i < CONFIGS.len() {
        let config = CONFIGS[i];
        assert!(config.shared_bytes() <= SM90_SHARED_BYTES);
        assert!(config.marks_bytes() <= config.p_bytes());
        assert!(is_sound(config.scores()) && is_sound(config.output()) && is_sound(config.dq()));
        assert!(
            config.score_warps.is_multiple_of(config.groups())
                && config.output_warps.is_multiple_of(config.groups()),
            "a group has the same rows of both"
        );
        assert!(
            !config.takes_turns || config.stages > 1 && config.groups().is_multiple_of(2),
            "halves are of whole groups, a block apart"
        );
        assert!(config.threads() as usize >= config.block_m);
        assert!(config.threads() as usize >= config.block_n);
        // Half of the warps copy where they take turns.
        let copying = config.threads() / if config.takes_turns { 2 } else { 1 };
        assert!(copying as usize >= config.block_n);
        let rows_per_step = (config.threads() / MmaConfig::copy_lanes(config.head_dim)) as usize;
        assert!(
            config.block_n.is_multiple_of(rows_per_step)
                && config.block_m.is_multiple_of(rows_per_step),
            "a copy step covers whole rows of the tile"
        );
        i += 1;
    }
    assert!(HD128.shared_bytes() <= SM80_SHARED_BYTES);
    assert!(FUSED_HD128.shared_bytes() <= SM80_SHARED_BYTES);
    assert!(HD256.shared_bytes() <= SM80_SHARED_BYTES);
    assert!(HD64.shared_bytes() <= SM86_SHARED_BYTES);
    assert!(FUSED_HD64.shared_bytes() <= SM86_SHARED_BYTES);
    assert!(HD128_SMEM99K.shared_bytes() <= SM86_SHARED_BYTES);
    assert!(HD256_SMEM99K.shared_bytes() <= SM86_SHARED_BYTES);
};
