//! What the shape of a Hopper forward kernel is made of; `shapes.rs` has those that there are.

mod shapes;

use super::biases::Biases;
use super::limits::{SM_REGISTERS, SM90_SHARED_BYTES};
use crate::units::HALF_BYTES;
pub use shapes::*;

/// Threads in a warpgroup.
pub const WARPGROUP: u32 = 128;
/// Rows of Q and O one warpgroup owns: the M of `wgmma`.
pub const WARPGROUP_ROWS: u32 = 64;
/// Rows of those that each of its warps owns.
pub const WARP_ROWS: u32 = WARPGROUP_ROWS / WARPS;
/// Warps of a warpgroup.
pub const WARPS: u32 = 4;
/// Registers of a thread of a warpgroup that does nothing but make a keep mask (`setmaxnreg`).
pub const KEEP_REGISTERS: u32 = 40;
/// Columns of a swizzle atom: the 128 bytes that the swizzle spans, in 16-bit elements.
pub const ATOM_COLS: u32 = 64;
/// Bytes of a row of a swizzle atom.
pub const ATOM_ROW_BYTES: u32 = ATOM_COLS * HALF_BYTES;
/// Rows of a swizzle atom, after which the 128-byte swizzle repeats.
pub const ATOM_ROWS: u32 = 8;
/// Stages in which the producer publishes tiles: the one being stored, the one being computed, and the next.
pub const WORK_STAGES: u32 = 3;
/// Bytes of each of a stage's two parts: a tile, and where the rows of its sequence are.
pub const WORK_PART_BYTES: u32 = 16;

/// Where the output tile lies for its TMA store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpilogueSmem {
    /// In shared memory of its own: the store runs under the next tile.
    Own,
    /// In the next stages of V, one a warpgroup, which the producer skips: V of the next tile arrives only
    /// after the store has read them, but its Q and K do not wait.
    ReuseV,
}

/// Tile shape and pipeline of one Hopper forward kernel ([`crate::instances`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgmmaConfig {
    /// Largest head_dim; TMA pads smaller ones with zeros.
    pub head_dim: u32,
    /// Largest head_dim_v.
    pub head_dim_v: u32,
    /// Consumer warpgroups, each with 64 query rows. One more warpgroup produces.
    pub consumers: u32,
    /// Keys of a block.
    pub block_n: u32,
    pub q_stages: u32,
    pub k_stages: u32,
    pub v_stages: u32,
    /// Blocks of a cluster; they take neighbouring tiles of one head and each loads its part of K and V for all.
    pub cluster: u32,
    /// Q is read to registers once a tile instead of by every QKᵀ.
    pub q_in_registers: bool,
    /// QKᵀ of a block is issued with PV of the one before, whose softmax has run, and only QKᵀ waited for.
    pub overlap: bool,
    /// Warpgroups take turns issuing GEMMs, so that one's softmax runs under the others' GEMMs.
    pub ping_pong: bool,
    pub epilogue_smem: EpilogueSmem,
    /// Takes varlen launches ([`LengthsParams::is_varlen`](crate::abi::LengthsParams::is_varlen)), and only those: its
    /// tiles come from a list. A kernel for the others takes a band that is counted from the top-left corner.
    pub varlen: bool,
    /// Takes modifiers of single pairs ([`crate::modifiers`]). Which blocks of keys a tile needs is then known to the producer
    /// alone, which tells it with every stage of K.
    pub modified: bool,
    /// Warps that make dropout's keep mask, of kernels with modifiers: those of the producer's warpgroup that load nothing, and if
    /// there are more a warpgroup behind the consumers.
    pub keep_warps: u32,
    /// What becomes of biases, of kernels with modifiers.
    pub biases: Biases,
    /// Keys and values are those of a cache ([`CachePages`](crate::abi::CachePages)), of lengths that the device alone knows.
    pub cached: bool,
    /// Fewest query rows (seq_q × packed heads) for which this configuration is preferred over one with smaller clusters.
    pub min_rows: u32,
    /// Registers of a producer and a consumer thread (`setmaxnreg`), as many as [`registers_fit`].
    pub producer_registers: u32,
    pub consumer_registers: u32,
}

/// Atom columns that hold `dim` columns.
const fn atom_columns(dim: u32) -> u32 {
    dim.div_ceil(ATOM_COLS)
}

impl WgmmaConfig {
    /// Threads that load. Of a cache a block of keys is so many copies that K and V have one each.
    pub const fn producers(&self) -> u32 {
        if self.cached { 2 } else { 1 }
    }

    /// Threads in a block.
    pub const fn threads(&self) -> u32 {
        (self.consumers + 1 + self.keep_warpgroups()) * WARPGROUP
    }

    /// Warpgroups behind the consumers that make a keep mask.
    pub const fn keep_warpgroups(&self) -> u32 {
        self.keep_warps / WARPS
    }

    /// Query rows a block owns.
    pub const fn block_m(&self) -> u32 {
        self.consumers * WARPGROUP_ROWS
    }

    /// Query rows a cluster owns.
    pub const fn cluster_m(&self) -> u32 {
        self.block_m() * self.cluster
    }

    /// Atom columns of Q and K.
    pub const fn atom_columns(&self) -> u32 {
        atom_columns(self.head_dim)
    }

    /// Atom columns of V and O.
    pub const fn atom_columns_v(&self) -> u32 {
        atom_columns(self.head_dim_v)
    }

    /// Rows of K and V that one TMA box holds: a block's part of a stage.
    pub const fn kv_box_rows(&self) -> u32 {
        self.block_n / self.cluster
    }

    /// Keys of a cache that one TMA box holds, whatever its pages are: where a sequence's keys end, V is loaded row by row.
    pub const CACHE_BOX_ROWS: u32 = 16;

    /// Bytes of an atom column of K or V.
    pub const fn kv_atom_column_bytes(&self) -> u32 {
        self.block_n * ATOM_ROW_BYTES
    }

    /// Bytes of an atom column of a warpgroup's Q or O.
    pub const fn q_atom_column_bytes(&self) -> u32 {
        WARPGROUP_ROWS * ATOM_ROW_BYTES
    }

    /// Bytes of a warpgroup's Q.
    pub const fn q_bytes(&self) -> u32 {
        self.atom_columns() * self.q_atom_column_bytes()
    }

    /// Bytes of a warpgroup's O.
    pub const fn o_bytes(&self) -> u32 {
        self.atom_columns_v() * self.q_atom_column_bytes()
    }

    /// Bytes of a stage of K.
    pub const fn k_bytes(&self) -> u32 {
        self.atom_columns() * self.kv_atom_column_bytes()
    }

    /// Bytes of a stage of V.
    pub const fn v_bytes(&self) -> u32 {
        self.atom_columns_v() * self.kv_atom_column_bytes()
    }

    /// Offset of K's stages; Q lies before them.
    pub const fn k_offset(&self) -> u32 {
        self.q_stages * self.consumers * self.q_bytes()
    }

    /// Offset of V's stages.
    pub const fn v_offset(&self) -> u32 {
        self.k_offset() + self.k_stages * self.k_bytes()
    }

    /// Offset of the output, if it has memory of its own.
    pub const fn o_offset(&self) -> u32 {
        self.v_offset() + self.v_stages * self.v_bytes()
    }

    /// Whether warpgroups stage their output in stages of V.
    pub const fn reuses_v(&self) -> bool {
        matches!(self.epilogue_smem, EpilogueSmem::ReuseV)
    }

    /// Bytes of the biases of a block of keys for the rows of one warp.
    pub const fn bias_bytes(&self) -> u32 {
        WARP_ROWS * self.block_n * HALF_BYTES
    }

    /// Offset of the biases, warp by warp, where there may be such.
    pub const fn bias_offset(&self) -> u32 {
        match self.epilogue_smem {
            EpilogueSmem::Own => self.o_offset() + self.consumers * self.o_bytes(),
            EpilogueSmem::ReuseV => self.o_offset(),
        }
    }

    /// Offset of the published tiles.
    pub const fn work_offset(&self) -> u32 {
        let warps = match self.biases {
            Biases::Copied => WARPS * self.consumers,
            Biases::None | Biases::Read | Biases::Present => 0,
        };
        self.bias_offset() + warps * self.bias_bytes()
    }

    /// Bytes of a stage of published tiles. The rows of a dense launch's sequences need not be published.
    pub const fn work_stage_bytes(&self) -> u32 {
        if self.varlen {
            2 * WORK_PART_BYTES
        } else {
            WORK_PART_BYTES
        }
    }

    /// Offset of the mbarriers.
    pub const fn barriers_offset(&self) -> u32 {
        self.work_offset() + WORK_STAGES * self.work_stage_bytes()
    }

    /// Offset of the words that say which blocks the stages of K hold, where there are such.
    pub const fn block_words_offset(&self) -> u32 {
        // A full and an empty barrier for each stage.
        let pairs = self.q_stages + self.k_stages + self.v_stages + WORK_STAGES;
        self.barriers_offset() + pairs * 2 * size_of::<u64>() as u32
    }

    /// Stages of dropout's keep mask: one for each consumer warpgroup, where there is such a mask.
    pub const fn keep_stages(&self) -> u32 {
        if self.modified { self.consumers } else { 0 }
    }

    /// Bytes of such a stage, a bit for each of the warpgroup's pairs.
    pub const fn keep_bytes(&self) -> u32 {
        WARPGROUP_ROWS * self.block_n / u8::BITS
    }

    /// Offset of the mbarriers of these.
    pub const fn keep_barriers_offset(&self) -> u32 {
        let words = if self.modified { self.k_stages } else { 0 };
        (self.block_words_offset() + words * size_of::<u32>() as u32)
            .next_multiple_of(size_of::<u64>() as u32)
    }

    /// Offset of the keep mask.
    pub const fn keep_offset(&self) -> u32 {
        self.keep_barriers_offset() + self.keep_stages() * 2 * size_of::<u64>() as u32
    }

    /// Dynamic shared memory of a launch.
    pub const fn shared_bytes(&self) -> u32 {
        self.keep_offset() + self.keep_stages() * self.keep_bytes()
    }

    /// The same configuration for varlen launches.
    pub const fn for_varlen(self) -> Self {
        Self {
            varlen: true,
            ..self
        }
    }

    /// The same configuration for attention to a cache. A block consists of boxes, none of which crosses a page.
    pub const fn for_cache(self) -> Self {
        Self {
            cached: true,
            min_rows: 0,
            ..self.for_varlen()
        }
    }

    /// The same configuration for launches with modifiers. The producer walks the states of a tile's blocks, for which it
    /// needs registers; clusters are not for it, as each tile has blocks of its own.
    pub const fn with_modifiers(self) -> Self {
        Self {
            modified: true,
            keep_warps: WARPS - 1,
            cluster: 1,
            min_rows: 0,
            q_in_registers: false,
            producer_registers: 56,
            consumer_registers: 224,
            ..self
        }
    }

    /// The same configuration, of kernels with modifiers, with a warpgroup more that makes keep masks: the three warps beside the
    /// producer do not keep up with consumers of short rows.
    pub const fn with_keep_warpgroup(self) -> Self {
        Self {
            keep_warps: self.keep_warps + WARPS,
            consumer_registers: 208,
            ..self
        }
    }

    /// The same configuration, of kernels with modifiers, that does this with biases.
    pub const fn with_biases(self, biases: Biases) -> Self {
        Self { biases, ..self }
    }

    /// The same configuration, of kernels with modifiers, for a score modification. One that changes no scores is not for problems with a
    /// bias, whose code would cost all others.
    pub const fn with_score_mod(self, changes_scores: bool) -> Self {
        self.with_biases(match changes_scores {
            true => Biases::Read,
            false => Biases::None,
        })
    }

    /// Panics, when evaluated at compile time, on a shape that cannot work.
    pub const fn check(&self) {
        assert!(self.shared_bytes() <= SM90_SHARED_BYTES);
        assert!(self.consumers == 2 || self.consumers == 3);
        assert!(self.block_n.is_multiple_of(16) && self.block_n <= 256);
        assert!((self.kv_box_rows() * ATOM_ROW_BYTES).is_multiple_of(ATOM_ROWS * ATOM_ROW_BYTES));
        assert!(self.head_dim.is_multiple_of(16) && self.head_dim_v.is_multiple_of(16));
        // A consumer warp arrives at each block of the cluster with a lane of its own.
        assert!(self.cluster == 1 || self.cluster == 2);
        assert!(!self.modified || self.cluster == 1);
        // Places of 16 bytes in a row of biases change by the row's number.
        assert!(!matches!(self.biases, Biases::Copied) || self.block_n.is_multiple_of(ATOM_COLS));
        assert!(!self.cached || self.varlen);
        assert!(!self.cached || self.kv_box_rows().is_multiple_of(2 * Self::CACHE_BOX_ROWS));
        assert!(
            !self.reuses_v() || self.o_bytes() <= self.v_bytes() && self.consumers <= self.v_stages
        );
        assert!(registers_fit([
            [1, self.producer_registers],
            [self.consumers, self.consumer_registers],
            [self.keep_warpgroups(), KEEP_REGISTERS],
        ]));
    }
}

/// Whether a launch of so many warpgroups has the registers that the threads of each ask for (`setmaxnreg`). If not, one waits for
/// ever. ptxas gives each thread as many as fit an SM, which the block has for itself, a multiple of 8.
pub const fn registers_fit<const KINDS: usize>(warpgroups: [[u32; 2]; KINDS]) -> bool {
    let (mut all, mut wanted) = (0, 0);
    let mut kind = 0;
    while kind < KINDS {
        let [number, registers] = warpgroups[kind];
        all += number;
        wanted += number * registers;
        kind += 1;
    }
    let given = SM_REGISTERS / (all * WARPGROUP) / 8 * 8;
    wanted <= all * given
}
