//! The rows that a block keeps.

use core::marker::PhantomData;

use super::super::BLOCK_N;
use crate::abi::BackwardParams;
use crate::backward::side::{Extent, Side};
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::BlockCoord;
use crate::tile::sequence::Sequence;

/// The rows that a block keeps. What is cheap to compute is computed where it is needed (hence `black_box`), as registers
/// are what the main loop is short of.
pub struct Tile<'a, S> {
    pub params: &'a BackwardParams,
    pub coord: BlockCoord,
    /// First row.
    pub begin: u32,
    side: PhantomData<S>,
}

impl<'a, S: Side> Tile<'a, S> {
    #[inline(always)]
    pub fn new(params: &'a BackwardParams, coord: BlockCoord, block_m: u32) -> Self {
        let coord = S::coord(coord, &params.attention, block_m);
        Self {
            params,
            begin: coord.m_block * block_m,
            coord,
            side: PhantomData,
        }
    }

    /// The batch entry that the tile belongs to.
    ///
    /// # Safety
    /// `params` describes live allocations, which `coord` lies inside.
    #[inline(always)]
    pub unsafe fn sequence(&self) -> Sequence {
        Sequence::new(&self.params.attention, black_box(self.coord.batch))
    }

    /// Rows of both sides.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn extent(&self) -> Extent {
        S::extent(&self.sequence())
    }

    /// The passing blocks that some row of the tile sees, of which `extent` has one at least.
    #[inline(always)]
    pub fn blocks(&self, extent: &Extent, block_m: u32) -> BlockRange {
        let end = (self.begin + block_m).min(extent.kept);
        BlockRange::new(self.begin, end, extent.band, extent.passing, BLOCK_N as u32)
    }

    /// Kept rows whose gradients are written: those of the sequence, and those that it leaves unused (`seqused_kv`), whose
    /// gradients are 0.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn rows_written(&self) -> u32 {
        S::rows_written(&self.params.attention, black_box(self.coord.batch))
    }

    /// The query head of a step in which `passing_head` passes.
    #[inline(always)]
    pub fn query_head(&self, passing_head: u32) -> u32 {
        if S::HAS_SECOND {
            passing_head
        } else {
            self.coord.head
        }
    }
}
