//! The rows that a block keeps.

use core::marker::PhantomData;

use super::super::BLOCK_N;
use super::passing::Step;
use crate::abi::BackwardParams;
use crate::backward::side::{Extent, Side};
use crate::modifiers::{Modifiers, NoModifiers, Place};
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::grid::BlockCoord;
use crate::tile::sequence::Sequence;

/// The rows that a block keeps. What is cheap to compute is computed where it is needed (hence `black_box`), as registers
/// are what the main loop is short of.
pub struct Tile<'a, S, M = NoModifiers> {
    pub params: &'a BackwardParams,
    /// What else the launch does to single pairs.
    pub modifiers: &'a M,
    pub coord: BlockCoord,
    /// First row.
    pub begin: u32,
    side: PhantomData<S>,
}

impl<'a, S: Side> Tile<'a, S> {
    /// A tile of a launch without modifiers.
    #[inline(always)]
    pub fn new(params: &'a BackwardParams, coord: BlockCoord, block_m: u32) -> Self {
        Self::with_modifiers(params, &NoModifiers, coord, block_m)
    }
}

impl<'a, S: Side, M: Modifiers> Tile<'a, S, M> {
    #[inline(always)]
    pub fn with_modifiers(
        params: &'a BackwardParams,
        modifiers: &'a M,
        coord: BlockCoord,
        block_m: u32,
    ) -> Self {
        let coord = S::coord(coord, &params.attention, block_m);
        Self {
            params,
            modifiers,
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
        if self.modifiers.hides() {
            // Any block may be shown: the states tell.
            return BlockRange::all(extent.passing, BLOCK_N as u32);
        }
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

    /// The query head of the sequence that takes part in a step in which `passing_head` passes.
    ///
    /// # Safety
    /// As [`Tile::sequence`].
    #[inline(always)]
    pub unsafe fn place(&self, passing_head: u32) -> Place {
        let heads = self.params.attention.heads_q;
        let head = self.query_head(passing_head);
        Place::new(&self.sequence(), black_box(self.coord.batch), head, heads)
    }

    /// The [`BlockState`](crate::abi::BlockState) of a step, as a number.
    ///
    /// # Safety
    /// As [`Tile::sequence`]; there are states.
    #[inline(always)]
    pub unsafe fn state(&self, step: Step) -> u32 {
        let passing = step.begin / BLOCK_N as u32;
        let (tile, block) = S::query_and_key(self.coord.m_block, passing);
        self.modifiers.state(&self.place(step.head), tile, block)
    }
}
