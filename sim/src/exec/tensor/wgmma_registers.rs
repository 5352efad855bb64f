//! Registers that operations in flight use (PTX ISA §9.7.15.6–7).

use super::wgmma::tensor;
use crate::exec::regs::lanes;
use crate::exec::{State, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{Reg, Wgmma, WgmmaA};

/// A warp's own view of its `wgmma`s.
#[derive(Clone, Debug, Default)]
pub(crate) struct WarpWgmma {
    /// Operations issued.
    pub(super) issued: u64,
    /// Groups committed.
    pub(super) commits: u32,
    /// Operations issued up to each group that has not been waited for.
    groups: Vec<u64>,
    /// Registers of operations not waited for: operation number, register, is it an accumulator?
    busy: Vec<(u64, Reg, bool)>,
    /// Has a `wgmma.fence` been executed, and which registers were written since?
    fenced: bool,
    dirty: Vec<bool>,
}

impl WarpWgmma {
    pub(crate) fn commit(&mut self) {
        self.commits += 1;
        self.groups.push(self.issued);
    }

    /// Operations that must be performed to leave `pending` groups.
    pub(super) fn due(&self, pending: u32) -> u64 {
        match self.groups.len().checked_sub(pending as usize) {
            None | Some(0) => 0,
            Some(n) => self.groups[n - 1],
        }
    }

    /// Forgets the groups waited for; returns how many groups are complete in all.
    pub(super) fn waited(&mut self, pending: u32) -> u32 {
        let upto = self.due(pending);
        let n = self.groups.len().saturating_sub(pending as usize);
        self.groups.drain(..n);
        self.busy.retain(|&(op, ..)| op >= upto);
        self.commits - self.groups.len() as u32
    }

    pub(crate) fn fence(&mut self) {
        self.fenced = true;
        self.dirty.fill(false);
    }

    /// Is anything in flight?
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Is the register in use by an operation in flight?
    pub(crate) fn uses(&self, reg: Reg) -> bool {
        self.busy.iter().any(|&(_, r, _)| r == reg)
    }

    /// The register was written by an ordinary instruction.
    #[inline(always)]
    pub(crate) fn wrote(&mut self, reg: Reg) {
        let reg = reg as usize;
        if reg >= self.dirty.len() {
            self.dirty.resize(reg + 1, false);
        }
        self.dirty[reg] = true;
    }
}

impl State<'_> {
    /// Checks the register rules of §9.7.15.6–7, and marks the operation's registers in use.
    pub(super) fn wgmma_registers(&mut self, warp: &mut Warp, op: &Wgmma) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        let w = &mut warp.wgmma;
        if !w.fenced {
            return Err(tensor("no `wgmma.fence` before the first `wgmma.mma_async`").into());
        }
        let a: &[Reg] = match &op.a {
            WgmmaA::Registers(regs) => regs,
            WgmmaA::Descriptor(_) => &[],
        };
        let dirty = |r: &&Reg| w.dirty.get(**r as usize) == Some(&true);
        if op.d.iter().chain(a).find(dirty).is_some() {
            return Err(
                tensor("a register of A or D was written after the last `wgmma.fence`").into(),
            );
        }
        // Chained accumulation in the same registers is allowed; anything else must wait.
        let clash = |&(_, r, accumulates): &(u64, Reg, bool)| {
            a.contains(&r) && accumulates || op.d.contains(&r) && !accumulates
        };
        if w.busy.iter().any(clash) {
            return Err(FaultKind::AsyncInFlight(
                "a register of this `wgmma` belongs to one in flight".into(),
            )
            .into());
        }
        let number = w.issued;
        // One entry a register: the last operation to use it.
        w.busy
            .retain(|&(_, r, _)| !op.d.contains(&r) && !a.contains(&r));
        w.busy.extend(op.d.iter().map(|&r| (number, r, true)));
        w.busy.extend(a.iter().map(|&r| (number, r, false)));
        let pool = self.ctas[warp.id.cta as usize].pool.as_ref();
        let has = pool.map_or(u32::MAX, |pool| pool.per_thread(warp.id.index));
        if w.busy.len() as u64 > u64::from(has) {
            return Err(FaultKind::RegisterBudget(format!(
                "the `wgmma`s in flight hold {} registers of each thread, which has {has}",
                w.busy.len()
            ))
            .into());
        }
        Ok(())
    }

    /// Registers of an ordinary instruction: none may be in use by a `wgmma` in flight.
    #[inline(always)]
    pub(in crate::exec) fn watch_registers(&mut self, warp: &mut Warp, m: u32) -> Exec<()> {
        let touched = &self.launch.touched[self.pc as usize];
        if warp.wgmma.is_busy() {
            let all = touched.reads.iter().chain(&touched.writes);
            if let Some(&reg) = all.clone().find(|&&r| warp.wgmma.uses(r)) {
                let lane = lanes(m).next().unwrap_or(0);
                let what = if touched.writes.contains(&reg) {
                    "written"
                } else {
                    "read"
                };
                return Err(FaultKind::AsyncInFlight(format!(
                    "a register of a `wgmma` in flight is {what} before `wgmma.wait_group`"
                ))
                .at(lane));
            }
        }
        for &reg in &touched.writes {
            warp.wgmma.wrote(reg);
        }
        Ok(())
    }
}
