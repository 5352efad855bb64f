//! `setmaxnreg` (PTX ISA §9.7.19.5): warps trade registers within their CTA's pool.
//!
//! The registers that the code between needs are up to ptxas: PTX registers are virtual. Certain is only that a warp
//! must have at least the registers of its `wgmma`s in flight, all at the same time.

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
/// the granule, or what `.maxnreg` says. `None` without either: ptxas then ignores `setmaxnreg`.
pub(super) fn at_entry(kernel: &Kernel) -> Option<u32> {
    let d = &kernel.directives;
    if let Some(count) = d.maxnreg {
        return Some(count.min(MAX_PER_THREAD).next_multiple_of(GRANULE));
    }
    let threads: u32 = d.maxntid.or(d.reqntid)?.iter().product();
    let ctas = d.minnctapersm?;
    let share = SM_REGISTERS / threads.checked_mul(ctas)?.max(1);
    Some(share.min(MAX_PER_THREAD) / GRANULE * GRANULE)
}

/// A `setmaxnreg` that a warp executed: which, and when by the warp's clock.
#[derive(Clone, Copy)]
pub(crate) struct Reallocation {
    pc: u32,
    time: u32,
}

/// Warps of a warpgroup.
const WARPGROUP: u32 = 4;

/// The other warps of a warp's warpgroup, of a CTA of `warps`.
fn companions(warp: u32, warps: u32) -> impl Iterator<Item = u32> {
    let first = warp / WARPGROUP * WARPGROUP;
    (first..(first + WARPGROUP).min(warps)).filter(move |&w| w != warp)
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

    /// Registers a thread of the warp has.
    pub(super) fn per_thread(&self, warp: u32) -> u32 {
        self.per_thread[warp as usize]
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
        self.together(warp)?;
        let wait = self.trade(warp, count, increase)?;
        if wait.is_none() {
            let done = Reallocation {
                pc: self.pc,
                time: self.clock(warp.id),
            };
            let cta = &mut self.ctas[warp.id.cta as usize];
            cta.reallocations[warp.id.index as usize].push(done);
        }
        Ok(wait)
    }

    /// All warps of a warpgroup execute the same `setmaxnreg`s, and synchronise between one and the next.
    fn together(&self, warp: &Warp) -> Exec<()> {
        let by_warp = &self.ctas[warp.id.cta as usize].reallocations;
        let mine = by_warp[warp.id.index as usize].len();
        for other in companions(warp.id.index, self.launch.warps) {
            let theirs = &by_warp[other as usize];
            if theirs.get(mine).is_some_and(|next| next.pc != self.pc) {
                return Err(FaultKind::RegisterBudget(format!(
                    "warps {} and {other} of a warpgroup execute different `setmaxnreg`s",
                    warp.id.index
                ))
                .into());
            }
            let synchronised = match mine.checked_sub(1) {
                None => true,
                Some(last) => theirs
                    .get(last)
                    .is_some_and(|before| self.follows(warp.id, other, before.time)),
            };
            if !synchronised {
                return Err(FaultKind::RegisterBudget(format!(
                    "warp {} executes a second `setmaxnreg` that nothing orders after the first of warp {other} of its warpgroup",
                    warp.id.index
                ))
                .into());
            }
        }
        Ok(())
    }

    /// A CTA has ended: its warpgroups must have executed `setmaxnreg` as one.
    pub(super) fn reallocations_at_exit(&mut self, cta: u32) -> Exec<()> {
        let by_warp = &self.ctas[cta as usize].reallocations;
        for warp in 0..self.launch.warps {
            let mine = &by_warp[warp as usize];
            for other in companions(warp, self.launch.warps) {
                let Some(missed) = mine.get(by_warp[other as usize].len()) else {
                    continue;
                };
                self.pc = missed.pc;
                return Err(FaultKind::RegisterBudget(format!(
                    "warp {warp} executed a `setmaxnreg` that warp {other} of its warpgroup did not"
                ))
                .into());
            }
        }
        Ok(())
    }

    fn trade(&mut self, warp: &Warp, count: u32, increase: bool) -> Exec<Option<Wait>> {
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
