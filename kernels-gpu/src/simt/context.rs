//! The tile of queries that a block works on.

use crate::abi::ForwardParams;
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::grid::BlockCoord;
use crate::tile::sequence::Sequence;

use super::SHIFT;

/// One tile of queries. Values that are cheap to compute are computed where they are used (hence `black_box`): the main
/// loop is short of registers.
#[derive(Clone, Copy)]
pub struct TileContext<'a> {
    pub params: &'a ForwardParams,
    pub coord: BlockCoord,
    /// First row of the tile.
    pub m_begin: u32,
}

impl TileContext<'_> {
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
        ScoreTransform::new(&self.params.attention.score, black_box(batch), head, SHIFT)
    }
}
