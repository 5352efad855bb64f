//! From the sums of a consumer that has them all to the gradients in global memory.

use super::gradient::Gradient;
use super::tile::Tile;
use super::traits::BackwardKernel;
use crate::backward::careful::{Code, Which};
use crate::backward::side::Side;
use crate::modifiers::Modifiers;
use crate::wgmma::forward::lanes::Lanes;

/// A warpgroup's part of a tile.
pub struct Epilogue<'a, S, M> {
    pub tile: &'a Tile<'a, S, M>,
    /// First kept row of the warpgroup, of the tile.
    pub kept_begin: u32,
    pub lanes: Lanes,
}

impl<S: Side, M: Modifiers> Epilogue<'_, S, M> {
    /// Stores dQ, or dK and dV.
    ///
    /// # Safety
    /// As [`consume`](super::consumer::consume).
    #[inline(always)]
    pub unsafe fn store<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>(
        &self,
        sum_first: &[f32; SUM_REGS],
        sum_second: &[f32; SUM_REGS],
    ) where
        K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    {
        let tile = self.tile;
        let row_of = |row: u32| self.kept_begin + row;
        let code = if K::ADDS_DQ && M::IS_NONE && SUM_REGS == 64 {
            // Of a head_dim of 128, where with less code here ptxas spills a register of the main loop.
            Code::LONG
        } else {
            Code::of_sum(SUM_REGS)
        };
        let first = Gradient {
            tile,
            scale: tile.params.attention.score.softmax_scale,
            which: Which::First,
            code,
        };
        first.store::<K::Element, SUM_REGS>(sum_first, self.lanes, row_of);
        if S::HAS_SECOND {
            let second = Gradient {
                tile,
                scale: tile.modifiers.dropout_scale(),
                which: Which::Second,
                code,
            };
            second.store::<K::Element, SUM_REGS>(sum_second, self.lanes, row_of);
        }
    }
}
