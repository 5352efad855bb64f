//! Which side of the score matrix a block keeps.

use cuda_std::global;

use crate::abi::{AttentionParams, BackwardParams, Band, TensorArg};
use crate::modifiers::Place;
use crate::tile::grid::{BlockCoord, TileGrid};
use crate::tile::rows;
use crate::tile::sequence::{Sequence, head_kv};

/// The rows that a block keeps: keys or queries. The band is turned over where keys take the place of queries
/// ([`QueryRange`](crate::tile::query_range::QueryRange)).
pub trait Side {
    /// Whether there is a sum beside the first: dV.
    const HAS_SECOND: bool;

    /// Every tile of the launch.
    fn tiles(params: &AttentionParams, block_m: u32) -> TileGrid;

    /// The coordinate of the tile that `coord` numbers, in the order tiles are to be taken; its own inverse.
    fn coord(coord: BlockCoord, params: &AttentionParams, block_m: u32) -> BlockCoord;

    /// Rows that are kept and rows that pass, of a sequence, and which passing rows a kept one sees.
    fn extent(sequence: &Sequence) -> Extent;

    /// Kept rows of batch entry `batch`, those included that `seqused_kv` leaves unused.
    ///
    /// # Safety
    /// `params` describes live allocations, and `batch` is below `params.batch`.
    unsafe fn rows_written(params: &AttentionParams, batch: u32) -> u32;

    /// The operands that are kept, and those that pass. Not an array of both: with their addresses in memory, the compiler
    /// would copy all parameters to local memory.
    fn first_kept(params: &BackwardParams) -> &TensorArg;
    fn second_kept(params: &BackwardParams) -> &TensorArg;
    fn first_passing(params: &BackwardParams) -> &TensorArg;
    fn second_passing(params: &BackwardParams) -> &TensorArg;

    /// The query and the key, of a kept row and a passing one; of their numbers or those of their blocks.
    fn query_and_key(kept: u32, passing: u32) -> (u32, u32);

    /// The heads that pass while `head` is kept.
    fn passing_heads(params: &AttentionParams, head: u32) -> (u32, u32);

    /// Address of row 0 of a head of an operand that is kept, or passes, whose elements are `elem_bytes` long.
    fn kept_address(sequence: &Sequence, operand: &TensorArg, head: u32, elem_bytes: u32) -> u64;
    fn passing_address(sequence: &Sequence, operand: &TensorArg, head: u32, elem_bytes: u32)
    -> u64;
}

/// Rows of a sequence on both sides.
#[derive(Clone, Copy)]
pub struct Extent {
    pub kept: u32,
    pub passing: u32,
    /// Kept row `i` sees passing row `j` iff `lower <= j - i <= upper`.
    pub band: Band,
    /// Kept row `i` stands at passing row `i + diagonal`, from which ALiBi's distance is counted.
    pub diagonal: i32,
}

impl Extent {
    /// Query head `head` of `sequence`, number `batch` of a launch of `heads` query heads, whose rows these are as side `S` has
    /// them.
    #[inline(always)]
    pub fn place<S: Side>(&self, sequence: &Sequence, batch: u32, head: u32, heads: u32) -> Place {
        let (seq_q, seq_kv) = S::query_and_key(self.kept, self.passing);
        let band = if S::HAS_SECOND {
            self.band.transposed()
        } else {
            self.band
        };
        let sequence = Sequence {
            seq_q,
            seq_kv,
            band,
            ..*sequence
        };
        Place::new(&sequence, batch, head, heads)
    }
}

/// dk and dv: a block keeps K and V.
pub struct KeepKeys;
/// dq: a block keeps Q and dO.
pub struct KeepQueries;

impl Side for KeepKeys {
    const HAS_SECOND: bool = true;

    #[inline(always)]
    fn tiles(params: &AttentionParams, block_m: u32) -> TileGrid {
        TileGrid::new(params.batch, params.heads_kv, params.seq_kv, block_m)
    }

    #[inline(always)]
    fn coord(coord: BlockCoord, params: &AttentionParams, block_m: u32) -> BlockCoord {
        // Under a causal mask the first keys are seen most.
        let last = params.seq_kv.div_ceil(block_m) - 1;
        BlockCoord {
            m_block: last - coord.m_block,
            ..coord
        }
    }

    #[inline(always)]
    fn extent(sequence: &Sequence) -> Extent {
        let Sequence {
            seq_q,
            seq_kv,
            band,
            ..
        } = *sequence;
        Extent {
            kept: seq_kv,
            passing: seq_q,
            band: band.transposed(),
            diagonal: seq_q as i32 - seq_kv as i32,
        }
    }

    #[inline(always)]
    unsafe fn rows_written(params: &AttentionParams, batch: u32) -> u32 {
        // SAFETY: cu_seqlens have two elements for every sequence.
        let load = |address| unsafe { global::load_u32(address) } as i32;
        rows::kv_rows(params, batch, load).1
    }

    #[inline(always)]
    fn first_kept(params: &BackwardParams) -> &TensorArg {
        &params.attention.k
    }

    #[inline(always)]
    fn second_kept(params: &BackwardParams) -> &TensorArg {
        &params.attention.v
    }

    #[inline(always)]
    fn first_passing(params: &BackwardParams) -> &TensorArg {
        &params.attention.q
    }

    #[inline(always)]
    fn second_passing(params: &BackwardParams) -> &TensorArg {
        &params.d_o
    }

    #[inline(always)]
    fn query_and_key(kept: u32, passing: u32) -> (u32, u32) {
        (passing, kept)
    }

    #[inline(always)]
    fn passing_heads(params: &AttentionParams, head: u32) -> (u32, u32) {
        // SAFETY: heads_kv divides heads_q, so it is not zero where there is a tile.
        unsafe { core::hint::assert_unchecked(params.heads_kv != 0) };
        let group = params.heads_q / params.heads_kv;
        (head * group, (head + 1) * group)
    }

    #[inline(always)]
    fn kept_address(sequence: &Sequence, operand: &TensorArg, head: u32, elem_bytes: u32) -> u64 {
        sequence.kv_address(operand, head, elem_bytes)
    }

    #[inline(always)]
    fn passing_address(
        sequence: &Sequence,
        operand: &TensorArg,
        head: u32,
        elem_bytes: u32,
    ) -> u64 {
        sequence.q_address(operand, head, elem_bytes)
    }
}

impl Side for KeepQueries {
    const HAS_SECOND: bool = false;

    #[inline(always)]
    fn tiles(params: &AttentionParams, block_m: u32) -> TileGrid {
        TileGrid::new(params.batch, params.heads_q, params.seq_q, block_m)
    }

    #[inline(always)]
    fn coord(coord: BlockCoord, _: &AttentionParams, _: u32) -> BlockCoord {
        coord
    }

    #[inline(always)]
    fn extent(sequence: &Sequence) -> Extent {
        let Sequence {
            seq_q,
            seq_kv,
            band,
            ..
        } = *sequence;
        Extent {
            kept: seq_q,
            passing: seq_kv,
            band,
            diagonal: seq_kv as i32 - seq_q as i32,
        }
    }

    #[inline(always)]
    unsafe fn rows_written(params: &AttentionParams, batch: u32) -> u32 {
        // SAFETY: forwarded to the caller.
        unsafe { Sequence::new(params, batch) }.seq_q
    }

    #[inline(always)]
    fn first_kept(params: &BackwardParams) -> &TensorArg {
        &params.attention.q
    }

    #[inline(always)]
    fn second_kept(params: &BackwardParams) -> &TensorArg {
        &params.d_o
    }

    #[inline(always)]
    fn first_passing(params: &BackwardParams) -> &TensorArg {
        &params.attention.k
    }

    #[inline(always)]
    fn second_passing(params: &BackwardParams) -> &TensorArg {
        &params.attention.v
    }

    #[inline(always)]
    fn query_and_key(kept: u32, passing: u32) -> (u32, u32) {
        (kept, passing)
    }

    #[inline(always)]
    fn passing_heads(params: &AttentionParams, head: u32) -> (u32, u32) {
        let head_kv = head_kv(params, head);
        (head_kv, head_kv + 1)
    }

    #[inline(always)]
    fn kept_address(sequence: &Sequence, operand: &TensorArg, head: u32, elem_bytes: u32) -> u64 {
        sequence.q_address(operand, head, elem_bytes)
    }

    #[inline(always)]
    fn passing_address(
        sequence: &Sequence,
        operand: &TensorArg,
        head: u32,
        elem_bytes: u32,
    ) -> u64 {
        sequence.kv_address(operand, head, elem_bytes)
    }
}
