//! The tile of queries that a block works on.

use crate::abi::{BlockState, ForwardParams};
use crate::modifiers::{Modifiers, Place};
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::grid::BlockCoord;
use crate::tile::sequence::Sequence;

use super::SHIFT;

/// One tile of queries. Values that are cheap to compute are computed where they are used (hence `black_box`): the main
/// loop is short of registers.
#[derive(Clone, Copy)]
pub struct TileContext<'a, M> {
    pub params: &'a ForwardParams,
    /// What else the launch does to single pairs.
    pub modifiers: &'a M,
    pub coord: BlockCoord,
    /// First row of the tile.
    pub m_begin: u32,
}

impl<M: Modifiers> TileContext<'_, M> {
    /// The batch entry that the tile belongs to.
    ///
    /// # Safety
    /// `params` describes live allocations, which `coord` lies inside.
    #[inline(always)]
    pub unsafe fn sequence(&self) -> Sequence {
        Sequence::new(&self.params.attention, black_box(self.coord.batch))
    }

    /// How the tile's scores are transformed.
    ///
    /// # Safety
    /// As [`TileContext::sequence`].
    #[inline(always)]
    pub unsafe fn transform(&self) -> ScoreTransform {
        let BlockCoord { batch, head, .. } = self.coord;
        let (score, batch) = (&self.params.attention.score, black_box(batch));
        if self.modifiers.changes_scores() {
            ScoreTransform::in_nats(score, batch, head, SHIFT)
        } else {
            ScoreTransform::new(score, batch, head, SHIFT)
        }
    }

    /// The head of the sequence that the tile belongs to.
    ///
    /// # Safety
    /// As [`TileContext::sequence`].
    #[inline(always)]
    pub unsafe fn place(&self) -> Place {
        let BlockCoord { batch, head, .. } = self.coord;
        let heads = self.params.attention.heads_q;
        Place::new(&self.sequence(), black_box(batch), head, heads)
    }

    /// The first block from `n_block` on that is not hidden; `end` if there is none.
    ///
    /// # Safety
    /// As [`TileContext::sequence`].
    #[inline(always)]
    pub unsafe fn first_shown(&self, mut n_block: u32, end: u32) -> u32 {
        if self.modifiers.hides() {
            while n_block < end && self.state(n_block) == BlockState::Hidden as u32 {
                n_block += 1;
            }
        }
        n_block
    }

    /// The [`BlockState`] of a block of keys.
    ///
    /// # Safety
    /// As [`TileContext::sequence`].
    #[inline(always)]
    pub unsafe fn state(&self, n_block: u32) -> u32 {
        self.modifiers
            .state(&self.place(), self.coord.m_block, n_block)
    }
}
