//! `setmaxnreg` (PTX ISA §9.7.19.5): warps trade registers within their CTA's pool.

use super::cluster::State;
use super::regs::LANES;
use super::warp::{Wait, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::Kernel;

/// Registers of an SM, and most a thread may have (CUDA programming guide, technical specifications).
const SM_REGISTERS: u32 = 64 * 1024;
const MAX_PER_THREAD: u32 = 255;
/// Registers are allocated to threads in multiples of this.
const GRANULE: u32 = 8;

/// Registers a thread has at entry, as ptxas assigns them: what launch bounds leave, rounded down to
/// the granule. `None` without both bounds: ptxas then ignores `setmaxnreg`.
pub(super) fn at_entry(kernel: &Kernel) -> Option<u32> {
    let d = &kernel.directives;
    let threads: u32 = d.maxntid.or(d.reqntid)?.iter().product();
    let ctas = d.minnctapersm?;
    let share = SM_REGISTERS / threads.checked_mul(ctas)?.max(1);
    Some(share.min(MAX_PER_THREAD) / GRANULE * GRANULE)
}

/// The register pool of a CTA.
pub(crate) struct Pool {
    /// Registers a thread of each warp has.
    per_thread: Vec<u32>,
    free: u32,
}

impl Pool {
    pub(super) fn new(warps: u32, at_entry: u32) -> Self {
        Self {
            per_thread: vec![at_entry; warps as usize],
            free: 0,
        }
    }

    /// Can a warp grow to `wanted` registers a thread?
    pub(super) fn can_grow(&self, warp: u32, wanted: u32) -> bool {
        let now = self.per_thread[warp as usize];
        wanted.saturating_sub(now) * LANES as u32 <= self.free
    }

    pub(super) fn describe(&self, warp: u32, wanted: u32) -> String {
        let now = self.per_thread[warp as usize];
        format!(
            "`setmaxnreg.inc {wanted}` needs {} registers for its warp; the CTA's pool has {}",
            wanted.saturating_sub(now) * LANES as u32,
            self.free
        )
    }
}

impl State<'_> {
    pub(super) fn set_max_nreg(
        &mut self,
        warp: &Warp,
        count: u32,
        increase: bool,
    ) -> Exec<Option<Wait>> {
        let Some(pool) = &mut self.ctas[warp.id.cta as usize].pool else {
            return Ok(None);
        };
        let now = &mut pool.per_thread[warp.id.index as usize];
        if increase {
            if count < *now {
                return Err(FaultKind::RegisterBudget(format!(
                    "`setmaxnreg.inc {count}` below the {now} registers the warp has"
                ))
                .into());
            }
            if !pool.can_grow(warp.id.index, count) {
                return Ok(Some(Wait::Registers { wanted: count }));
            }
            let now = &mut pool.per_thread[warp.id.index as usize];
            pool.free -= (count - *now) * LANES as u32;
            *now = count;
        } else {
            if count > *now {
                return Err(FaultKind::RegisterBudget(format!(
                    "`setmaxnreg.dec {count}` above the {now} registers the warp has"
                ))
                .into());
            }
            pool.free += (*now - count) * LANES as u32;
            *now = count;
            self.progress();
        }
        Ok(None)
    }
}
