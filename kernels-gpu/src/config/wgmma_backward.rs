//! Tile shapes of the Hopper backward kernels.

use super::biases::Biases;
use super::limits::SM90_SHARED_BYTES;
use super::wgmma::{ATOM_COLS, ATOM_ROW_BYTES, WARPGROUP, WARPGROUP_ROWS, registers_fit};
use crate::layout::swizzle::{VEC16_BYTES, row_bytes};
use crate::units::F32_BYTES;

/// Operands that a block keeps, and operands that pass: K and V, Q and dO, or the other way around.
pub const OPERANDS: u32 = 2;
/// Terms of a query: lse in bits, and delta.
pub const TERMS: u32 = 2;

/// Tile shape and pipeline of one Hopper backward kernel ([`crate::instances`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaBackwardConfig {
    /// Largest head_dim and head_dim_v; TMA pads smaller ones with zeros.
    pub head_dim: u32,
    /// Consumer warpgroups, each with 64 rows that are kept. One more warpgroup produces.
    pub consumers: u32,
    /// Passing rows of a block.
    pub block_n: u32,
    /// Stages of each passing operand.
    pub stages: u32,
    /// Blocks of dS that are kept for dq, of a kernel that adds it up; 0 of another.
    pub ds_blocks: u32,
    /// What becomes of biases, of a kernel with modifiers.
    pub biases: Biases,
    /// Registers of a producer and a consumer thread (`setmaxnreg`).
    pub producer_registers: u32,
    pub consumer_registers: u32,
}

impl WgmmaBackwardConfig {
    /// Bytes of the words that say which tile it is.
    pub const TILE_BYTES: u32 = 64;
    /// Tiles of which there are words: the one that consumers are at, and the next.
    pub const TILES: u32 = 2;

    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        (self.consumers + 1) * WARPGROUP
    }

    /// Rows that a block keeps.
    pub const fn block_m(&self) -> u32 {
        self.consumers * WARPGROUP_ROWS
    }

    /// Atom columns of an operand.
    pub const fn atom_columns(&self) -> u32 {
        self.head_dim.div_ceil(ATOM_COLS)
    }

    /// Bytes of an atom column of a warpgroup's part of a kept operand.
    pub const fn kept_atom_column_bytes(&self) -> u32 {
        WARPGROUP_ROWS * ATOM_ROW_BYTES
    }

    /// Bytes of a warpgroup's part of a kept operand.
    pub const fn kept_bytes(&self) -> u32 {
        self.atom_columns() * self.kept_atom_column_bytes()
    }

    /// Offset of a warpgroup's part of kept operand `operand`.
    pub const fn kept_offset(&self, operand: u32, warpgroup: u32) -> u32 {
        (operand * self.consumers + warpgroup) * self.kept_bytes()
    }

    /// Bytes of an atom column of a stage.
    pub const fn atom_column_bytes(&self) -> u32 {
        self.block_n * ATOM_ROW_BYTES
    }

    /// Bytes of a stage of a passing operand.
    pub const fn stage_bytes(&self) -> u32 {
        self.atom_columns() * self.atom_column_bytes()
    }

    /// Offset of the stages of passing operand `operand`.
    pub const fn stages_offset(&self, operand: u32) -> u32 {
        self.kept_offset(OPERANDS, 0) + operand * self.stages * self.stage_bytes()
    }

    /// Bytes of a block of dS: its rows are kept, and its columns pass.
    pub const fn ds_bytes(&self) -> u32 {
        self.block_m() * ATOM_ROW_BYTES
    }

    /// Offset of dS number `block` of those that are kept for dq.
    pub const fn ds_offset(&self, block: u32) -> u32 {
        self.stages_offset(OPERANDS) + block * self.ds_bytes()
    }

    /// Whether the kernel adds up dq too.
    pub const fn adds_dq(&self) -> bool {
        self.ds_blocks > 0
    }

    /// Whether all consumers take a part of a block's dq, 64 columns each. If not, they take turns.
    pub const fn shares_dq(&self) -> bool {
        self.atom_columns() == self.consumers
    }

    /// Whether a consumer's thread has registers left beside the sums of both gradients and a block's scores: for lse of the next
    /// block while dq is computed, and for delta while the consumer waits for its turn.
    pub const fn has_spare_registers(&self) -> bool {
        self.atom_columns() == 1
    }

    /// Whether biases are copied to shared memory, to a stage beside each of the queries'.
    pub const fn copies_biases(&self) -> bool {
        matches!(self.biases, Biases::Copied)
    }

    /// Bytes of such a stage.
    pub const fn bias_bytes(&self) -> u32 {
        self.block_n * row_bytes(self.block_m() as usize)
    }

    /// Offset of stage `stage` of biases.
    pub const fn bias_offset(&self, stage: u32) -> u32 {
        self.ds_offset(self.ds_blocks) + stage * self.bias_bytes()
    }

    /// Bytes of a stage of the queries' terms: two a query, and one of all.
    pub const fn terms_bytes(&self) -> u32 {
        self.exponent_offset() + VEC16_BYTES
    }

    /// Offset in such a stage of the exponent by which dS is rounded, where it is.
    pub const fn exponent_offset(&self) -> u32 {
        TERMS * self.block_n * F32_BYTES
    }

    /// Where the two words lie that say which block is in stage `stage`, in kernels with modifiers.
    pub const fn told(&self, smem: u32, stage: u32) -> u32 {
        let terms = smem + self.terms_offset() + stage * self.terms_bytes();
        terms + self.exponent_offset() + size_of::<u32>() as u32
    }

    /// Where the word lies, behind these, that says which biases are in that stage.
    pub const fn copied(&self, smem: u32, stage: u32) -> u32 {
        self.told(smem, stage) + 2 * size_of::<u32>() as u32
    }

    /// Offset of the terms' stages.
    pub const fn terms_offset(&self) -> u32 {
        let stages = if self.copies_biases() { self.stages } else { 0 };
        self.bias_offset(stages)
    }

    /// Offset of the words that say which tile it is, of the first of [`TILES`](Self::TILES).
    pub const fn tile_offset(&self) -> u32 {
        self.terms_offset() + self.stages * self.terms_bytes()
    }

    /// Offset of the mbarriers.
    pub const fn barriers_offset(&self) -> u32 {
        self.tile_offset() + Self::TILES * Self::TILE_BYTES
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        // A full and an empty one each, for what is kept, the words of a tile, stages of passing operands, and blocks of dS.
        let pipelines = 1 + Self::TILES + OPERANDS * self.stages + self.ds_blocks;
        self.barriers_offset() + 2 * pipelines * size_of::<u64>() as u32
    }

    /// [`registers_fit`], of a launch with `consumers` consumer warpgroups.
    pub const fn registers_fit(&self, consumers: u32) -> bool {
        registers_fit([
            [1, self.producer_registers],
            [consumers, self.consumer_registers],
        ])
    }

    /// The same configuration, of kernels with modifiers, that does this with biases.
    pub const fn with_biases(self, biases: Biases) -> Self {
        Self { biases, ..self }
    }

    /// Panics, when evaluated at compile time, on a shape that cannot work.
    const fn check(&self) {
        assert!(self.shared_bytes() <= SM90_SHARED_BYTES);
        assert!(self.block_n.is_multiple_of(WARPGROUP_ROWS));
        assert!(self.head_dim.is_multiple_of(ATOM_COLS));
        assert!(self.registers_fit(self.consumers));
        if self.adds_dq() {
            // A row of dS is one atom's, and a block behind is read while the next is written.
            assert!(self.block_n == ATOM_COLS && self.ds_blocks >= 2);
            // A block's turn is known by where its dS lies.
            assert!(
                self.shares_dq()
                    || self.atom_columns() == 1 && self.ds_blocks.is_multiple_of(self.consumers)
            );
        }
    }
}

/// dk and dv. Four products of 64 × 64 scores a block: the sums of both gradients fit the registers with one block's scores,
/// and at this head_dim K and V too (`rs` in [`crate::instances`]: they are read once a tile instead of by every product).
pub const DKDV_HD64: WgmmaBackwardConfig = WgmmaBackwardConfig {
    head_dim: 64,
    consumers: 2,
    block_n: 64,
    stages: 4,
    ds_blocks: 0,
    biases: Biases::Read,
    producer_registers: 40,
    consumer_registers: 232,
};

/// As [`DKDV_HD64`]; 64 + 64 registers of sums leave none for K and V.
pub const DKDV_HD128: WgmmaBackwardConfig = WgmmaBackwardConfig {
    head_dim: 128,
    stages: 3,
    ..DKDV_HD64
};

/// As [`DKDV_HD64`], and adds up dq: the product of a block's dS, of all consumers, and K, one block behind.
pub const FUSED_HD64: WgmmaBackwardConfig = WgmmaBackwardConfig {
    ds_blocks: 4,
    ..DKDV_HD64
};

/// As [`FUSED_HD64`]. Each consumer takes half of dq's columns.
pub const FUSED_HD128: WgmmaBackwardConfig = WgmmaBackwardConfig {
    stages: 2,
    ds_blocks: 3,
    ..DKDV_HD128
};

/// As [`FUSED_HD64`], with modifiers but for biases.
pub const MODIFIED_FUSED_HD64: WgmmaBackwardConfig = FUSED_HD64.with_biases(Biases::None);
/// As [`FUSED_HD128`], with modifiers but for biases.
pub const MODIFIED_FUSED_HD128: WgmmaBackwardConfig = FUSED_HD128.with_biases(Biases::None);

/// As [`FUSED_HD64`], with biases among other modifiers.
pub const BIASED_FUSED_HD64: WgmmaBackwardConfig = FUSED_HD64.with_biases(Biases::Copied);
/// As [`BIASED_FUSED_HD64`].
pub const BIASED_FUSED_HD128: WgmmaBackwardConfig = FUSED_HD128.with_biases(Biases::Copied);

/// dq: three products, of which two have Q and dO in registers.
pub const DQ_HD64: WgmmaBackwardConfig = DKDV_HD64;

/// As [`DQ_HD64`].
pub const DQ_HD128: WgmmaBackwardConfig = DKDV_HD128;

const _: () = {
    DKDV_HD64.check();
    DKDV_HD128.check();
    FUSED_HD64.check();
    FUSED_HD128.check();
    BIASED_FUSED_HD64.check();
    BIASED_FUSED_HD128.check();
    DQ_HD64.check();
    DQ_HD128.check();
};
