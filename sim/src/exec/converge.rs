//! Instructions that lanes of a warp execute together, and what happens when some are missing.

use super::cluster::State;
use super::exchange;
use super::regs::lanes;
use super::step::Flow;
use super::warp::{Group, Wait, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::Inst;

impl State<'_> {
    /// Some lanes of a warp reach an instruction that all must execute together. Lanes on their way
    /// out are waited for; any others make it a fault.
    pub(super) fn part_of_warp(&self, warp: &Warp, g: usize, m: u32) -> Exec<Flow> {
        let elsewhere = warp.live & !warp.groups[g].mask;
        let mut others = warp.groups.iter().enumerate().filter(|(i, _)| *i != g);
        let may_exit = others.any(|(_, other)| !other.is_stuck());
        if warp.groups[g].mask == m && elsewhere != 0 && may_exit {
            return Ok(Flow::Wait(Wait::Converge { mask: m }));
        }
        Err(FaultKind::PartialWarp {
            what: self.launch.kernel.opcode(self.pc).to_owned(),
            missing: warp.live & !m,
            live: warp.live,
        }
        .into())
    }

    /// Executes a warp-wide exchange when every named lane is here. False: the group waits.
    pub(super) fn exchange(
        &mut self,
        warp: &mut Warp,
        g: usize,
        m: u32,
        inst: &Inst,
        mask_reg: u32,
    ) -> Exec<bool> {
        let pc = warp.groups[g].pc;
        // Lanes of other groups that wait at this very instruction.
        let mut union = m;
        for other in &warp.groups {
            if let (true, Some(Wait::Converge { mask })) = (other.pc == pc, &other.wait) {
                union |= mask;
            }
        }
        let live = warp.live;
        let mut missing = 0;
        exchange::member_groups(&warp.regs, mask_reg, union, |members, group| {
            missing |= members & live & !group;
            Ok(())
        })?;
        if missing != 0 {
            warp.groups[g].wait = Some(Wait::Converge { mask: m });
            self.starved(warp, missing)?;
            return Ok(false);
        }
        let masks = *warp.regs.get32(mask_reg);
        let mut rest = union;
        while rest != 0 {
            let members = masks[rest.trailing_zeros() as usize];
            let mut group = 0;
            for lane in lanes(rest) {
                if masks[lane] == members {
                    group |= 1 << lane;
                }
            }
            exchange::execute(&inst.op, &mut warp.regs, group)?;
            rest &= !group;
        }
        for other in &mut warp.groups {
            if other.pc == pc && matches!(other.wait, Some(Wait::Converge { .. })) {
                other.wait = None;
                other.pc = pc + 1;
            }
        }
        Ok(true)
    }

    pub(super) fn warp_barrier(
        &mut self,
        warp: &mut Warp,
        g: usize,
        m: u32,
        mask_reg: u32,
    ) -> Exec<Flow> {
        let masks = warp.regs.get32(mask_reg);
        let mask = masks[m.trailing_zeros() as usize];
        if let Some(lane) = lanes(m).find(|&l| masks[l] != mask || mask >> l & 1 == 0) {
            return Err(FaultKind::MemberMask(format!(
                "lane {lane} executes `bar.warp.sync` with mask {:#010x}, its warp with {mask:#010x}",
                masks[lane]
            ))
            .at(lane));
        }
        let waiting = Wait::WarpBarrier { mask };
        let mut here = m;
        for other in &warp.groups {
            if other.wait.as_ref() == Some(&waiting) {
                here |= other.mask;
            }
        }
        let missing = mask & warp.live & !here;
        if missing != 0 {
            warp.groups[g].wait = Some(waiting.clone());
            self.starved(warp, missing)?;
            return Ok(Flow::Wait(waiting));
        }
        self.warp_synchronises(warp.id, mask & warp.live);
        for (i, other) in warp.groups.iter_mut().enumerate() {
            if i != g && other.wait.as_ref() == Some(&waiting) {
                other.wait = None;
                other.pc += 1;
            }
        }
        Ok(Flow::Next)
    }

    /// Errors if every group of the warp waits for lanes that cannot come.
    fn starved(&self, warp: &Warp, missing: u32) -> Exec<()> {
        if warp.groups.iter().all(Group::is_stuck) {
            return Err(FaultKind::PartialWarp {
                what: self.launch.kernel.opcode(self.pc).to_owned(),
                missing,
                live: warp.live,
            }
            .into());
        }
        Ok(())
    }
}
