//! `cp.async`: performed when waited for, or earlier by the schedule (PTX ISA §9.7.9.25.3).

use super::access::uninitialised;
use super::cluster::State;
use super::place::{address, locate};
use super::regs::lanes;
use super::warp::{PendingCopy, Warp, WarpId};
use crate::fault::{Exec, FaultKind};
use crate::ir::{CpAsync, Space};

impl State<'_> {
    pub(super) fn cp_async(&mut self, warp: &mut Warp, m: u32, op: &CpAsync) -> Exec<()> {
        let mut dst_at = [0; super::LANES];
        let mut sources = [(0, 0); super::LANES];
        for lane in lanes(m) {
            let dst = address(&warp.regs, &op.dst, lane);
            let src = address(&warp.regs, &op.src, lane);
            let mut src_bytes = op.src_bytes.map_or(op.bytes, |r| warp.regs.get32(r)[lane]);
            if src_bytes > op.bytes {
                return Err(FaultKind::Tensor(format!(
                    "`cp.async` source size {src_bytes} exceeds the copy's {} bytes",
                    op.bytes
                ))
                .at(lane));
            }
            if op
                .ignore
                .is_some_and(|p| warp.regs.test(p) >> lane & 1 == 1)
            {
                src_bytes = 0;
            }
            let cta = warp.id.cta;
            let (_, offset) = locate(Space::Shared, dst, cta, lane)?;
            let start = self.shared_range(cta, offset, op.bytes.into(), op.bytes.into(), lane)?;
            if !src.is_multiple_of(op.bytes.into()) {
                return Err(super::place::misaligned(
                    "global",
                    src,
                    op.bytes.into(),
                    lane,
                ));
            }
            if src_bytes > 0 {
                self.global_range(src, src_bytes.into(), 1, lane)?;
            }
            dst_at[lane] = offset;
            sources[lane] = (src, src_bytes.into());
            self.copies[warp.id.number as usize].push(PendingCopy {
                lane: lane as u8,
                bytes: op.bytes as u8,
                src_bytes: src_bytes as u8,
                dst: start as u32,
                src,
                group: warp.commits[lane],
                pc: self.pc,
            });
        }
        self.count_shared(&dst_at, m, op.bytes);
        self.count_ranges(sources.into_iter());
        self.copy_issued(warp.id, m, &dst_at, op.bytes)
    }

    /// Performs one copy: reads its source now, writes its destination now.
    pub(super) fn perform_copy(&mut self, cta: u32, copy: &PendingCopy) -> Exec<()> {
        let mut data = [0u8; 16];
        let lane = copy.lane as usize;
        let size = u64::from(copy.src_bytes);
        if size > 0 {
            let (owner, offset) = self.global_range(copy.src, size, 1, lane)?;
            let mut i = 0;
            while i < size {
                let step = if size - i >= 4 { 4 } else { 1 };
                if self.launch.checks.uninitialised && !owner.is_written(offset + i, step) {
                    let at = copy.src + i;
                    let detail = self.launch.view.describe(at);
                    return Err(uninitialised("global", at, step.into(), detail, lane));
                }
                let value = owner.load(offset + i, step).to_le_bytes();
                data[i as usize..(i + u64::from(step)) as usize]
                    .copy_from_slice(&value[..step as usize]);
                i += u64::from(step);
            }
        }
        let shared = &mut self.ctas[cta as usize].shared;
        for i in (0..usize::from(copy.bytes)).step_by(4) {
            let word = u32::from_le_bytes([data[i], data[i + 1], data[i + 2], data[i + 3]]);
            shared.store(copy.dst as usize + i, 4, word.into());
        }
        Ok(())
    }

    /// Performs the first `count` copies of a thread that are still outstanding.
    pub(super) fn finish_copies(&mut self, warp: WarpId, lane: usize, count: usize) -> Exec<()> {
        let mut left = count;
        self.perform_copies(warp, |copy| {
            let mine = usize::from(copy.lane) == lane && left > 0;
            left -= usize::from(mine);
            mine
        })
    }

    fn perform_copies(
        &mut self,
        warp: WarpId,
        is_due: impl FnMut(&PendingCopy) -> bool,
    ) -> Exec<()> {
        let (mut due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.copies[warp.number as usize])
                .into_iter()
                .partition(is_due);
        self.copies[warp.number as usize] = rest;
        self.shuffle(&mut due);
        let pc = self.pc;
        for copy in &due {
            // An error is reported at the instruction that issued the copy.
            self.pc = copy.pc;
            self.perform_copy(warp.cta, copy)?;
            self.copy_done(warp, copy)?;
        }
        self.pc = pc;
        Ok(())
    }

    /// `cp.async.wait_group pending` (or `wait_all`) by the lanes of `m`.
    pub(super) fn wait_copies(
        &mut self,
        warp: &mut Warp,
        m: u32,
        pending: u32,
        all: bool,
    ) -> Exec<()> {
        let commits = warp.commits;
        self.perform_copies(warp.id, |c| {
            let lane = c.lane as usize;
            m >> lane & 1 == 1 && (all || c.group.saturating_add(pending) < commits[lane])
        })
    }

    /// A warp has exited: none of its copies may be under way, whose destination the next CTA may get.
    pub(super) fn copies_at_exit(&mut self, warp: WarpId) -> Exec<()> {
        let left = std::mem::take(&mut self.copies[warp.number as usize]);
        let Some(copy) = left.first().filter(|_| self.races.is_some()) else {
            return Ok(());
        };
        // The fault is that of the instruction which issued the copy.
        self.pc = copy.pc;
        Err(FaultKind::AsyncInFlight(format!(
            "warp {} of CTA {:?} ends while its `{}` still writes shared memory",
            warp.index,
            self.ctas[warp.cta as usize].id,
            self.launch.kernel.opcode(copy.pc)
        ))
        .at(copy.lane.into()))
    }
}
