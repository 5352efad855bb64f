//! Sums of dk and dv between the parts of a unit, in global memory.

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::warp::WARP_SIZE;

use super::super::gradient::{Gradient, contiguous_rows};
use super::ds_tiles_of_unit;
use crate::backward::careful::Which;
use crate::backward::side::KeepKeys;
use crate::config::wgmma::{WARPGROUP, WARPGROUP_ROWS};
use crate::modifiers::NoModifiers;
use crate::tile::element::Element;
use crate::units::F32_BYTES;
use crate::wgmma::forward::lanes::Lanes;

/// Bytes of a register of a warpgroup.
const REGISTER_BYTES: u64 = (WARPGROUP * F32_BYTES) as u64;

impl Gradient<'_, KeepKeys, NoModifiers> {
    /// What the sum has come to in the parts of the unit before this one: 0 in the first.
    ///
    /// # Safety
    /// As [`Gradient::store`].
    #[inline(always)]
    pub unsafe fn begun<const SUM_REGS: usize>(&self, lanes: Lanes) -> [f32; SUM_REGS] {
        let chunk = &self.tile.params.ds;
        let mut sum = [0.0; SUM_REGS];
        if chunk.first_head > 0 || chunk.first_q_block > 0 {
            let start = self.sums::<SUM_REGS>(lanes);
            for i in 0..SUM_REGS {
                sum[i] = global::load(start + i as u64 * REGISTER_BYTES);
            }
        }
        sum
    }

    /// Stores the gradient; if more parts of the unit follow, the sum for them. Where dS is scaled, the sum is rescaled to a κ of 0.
    ///
    /// # Safety
    /// As [`Gradient::store`].
    #[inline(always)]
    pub unsafe fn end<E: Half + Element, const SUM_REGS: usize>(
        &self,
        sum: &[f32; SUM_REGS],
        lanes: Lanes,
    ) {
        let params = self.tile.params;
        let unit = ds_tiles_of_unit(params);
        if params.ds.end_head == unit.group && params.ds.end_q_block == unit.q_blocks {
            self.store::<E, SUM_REGS>(sum, lanes, contiguous_rows);
        } else {
            let start = self.sums::<SUM_REGS>(lanes);
            for i in 0..SUM_REGS {
                global::store(start + i as u64 * REGISTER_BYTES, sum[i]);
            }
        }
    }

    /// Address of the thread's sums: `[tile][dk, dv][register][thread]`.
    ///
    /// # Safety
    /// As [`Gradient::store`].
    #[inline(always)]
    unsafe fn sums<const SUM_REGS: usize>(&self, lanes: Lanes) -> u64 {
        let tile = self.tile.begin() / WARPGROUP_ROWS;
        let sum = 2 * tile as u64 + (self.which == Which::Second) as u64;
        let thread = lanes.warp * WARP_SIZE + lanes.lane;
        let sums = self.tile.params.ds.sums.map_or(0, |sums| sums.get());
        sums + sum * SUM_REGS as u64 * REGISTER_BYTES + (thread * F32_BYTES) as u64
    }
}
