//! Fetch, guard, dispatch: one group of lanes, one instruction after the other.

use super::alu;
use super::cluster::State;
use super::exchange;
use super::regs::{LANES, lanes};
use super::warp::{Wait, Warp};
use super::window;
use crate::decode::SHARED_BASE;
use crate::fault::{Exec, FaultKind};
use crate::ir::cfg::NEVER;
use crate::ir::{Dynamic, Inst, Op, Window};

/// How a group continues after an instruction.
pub(super) enum Flow {
    Next,
    /// Give way to other warps, then go on behind the instruction.
    Yield,
    /// Wait at the instruction.
    Wait(Wait),
}

impl State<'_> {
    /// Ends a group's wait: barrier results are delivered and the group moves behind the barrier.
    pub(super) fn wake(&mut self, warp: &mut Warp, g: usize) {
        let Some(wait) = warp.groups[g].wait.take() else {
            return;
        };
        if let Wait::Barrier { .. } = wait {
            let pc = warp.groups[g].pc;
            let launch = self.launch;
            let inst = &launch.kernel.code[pc as usize];
            if let Op::Barrier(barrier) = &inst.op {
                let m = warp.groups[g].mask & warp.regs.test(inst.guard);
                self.barrier_passed(warp, m, barrier);
            }
            warp.groups[g].pc = pc + 1;
        }
    }

    /// Runs group `g` for up to `budget` instructions, or until it waits, splits, meets or ends.
    pub(super) fn run_group(&mut self, warp: &mut Warp, g: usize, budget: u32) -> Exec<()> {
        let launch = self.launch;
        let kernel = launch.kernel;
        let meet = warp.meeting_pc(g);
        let mask = warp.groups[g].mask;
        let watch = !launch.touched.is_empty();
        let mut pc = warp.groups[g].pc;
        for _ in 0..budget {
            if pc == meet {
                warp.groups[g].pc = pc;
                warp.arrive(g);
                return Ok(());
            }
            let inst = &kernel.code[pc as usize];
            let m = mask & warp.regs.test(inst.guard);
            self.pc = pc;
            self.instructions += 1;
            if let Some(counters) = &mut self.counters {
                counters.executed(pc, mask, m);
            }
            match &inst.op {
                Op::Bra { target } => {
                    if m == mask {
                        pc = *target;
                    } else if m == 0 {
                        pc += 1;
                    } else {
                        let meet = kernel.reconverge[pc as usize];
                        warp.diverge(g, m, *target, pc + 1, meet);
                        return Ok(());
                    }
                    continue;
                }
                Op::BrxIdx { index, targets } => {
                    warp.groups[g].pc = pc;
                    return self.branch_indexed(warp, g, m, *index, targets);
                }
                Op::Exit => {
                    if m == 0 {
                        pc += 1;
                        continue;
                    }
                    warp.groups[g].pc = pc + 1;
                    return self.exit(warp, g, m);
                }
                _ => {}
            }
            if watch && m != 0 {
                warp.groups[g].pc = pc;
                self.watch_registers(warp, m)?;
            }
            if m != 0 && !alu::execute(&inst.op, &mut warp.regs, m) {
                warp.groups[g].pc = pc;
                if let Some(mask_reg) = exchange::member_mask(&inst.op) {
                    if !self.exchange(warp, g, m, inst, mask_reg)? {
                        return Ok(());
                    }
                } else {
                    match self.dispatch(warp, g, m, inst)? {
                        Flow::Next => {}
                        Flow::Yield => {
                            warp.groups[g].pc = pc + 1;
                            return Ok(());
                        }
                        Flow::Wait(wait) => {
                            warp.groups[g].wait = Some(wait);
                            return Ok(());
                        }
                    }
                }
            }
            pc += 1;
        }
        warp.groups[g].pc = pc;
        Ok(())
    }

    fn dispatch(&mut self, warp: &mut Warp, g: usize, m: u32, inst: &Inst) -> Exec<Flow> {
        if m != warp.live && inst.op.wants_whole_warp() {
            return self.part_of_warp(warp, g, m);
        }
        match &inst.op {
            // That a grid which follows may begin changes nothing here: it is run afterwards.
            Op::Nop | Op::GridDepLaunch => {}
            Op::GridDepWait => self.grid_waited(warp.id, m),
            Op::Ld(op) => self.load(warp, m, op)?,
            Op::St(op) => self.store(warp, m, op)?,
            Op::Atom(op) => self.atomic(warp, m, op)?,
            Op::CpAsync(op) => self.cp_async(warp, m, op)?,
            Op::CpAsyncCommit => {
                for lane in lanes(m) {
                    warp.commits[lane] += 1;
                }
            }
            Op::CpAsyncWait { pending, all } => self.wait_copies(warp, m, *pending, *all)?,
            Op::Barrier(op) => {
                if let Some(wait) = self.barrier(warp, m, op)? {
                    return Ok(Flow::Wait(wait));
                }
            }
            Op::BarWarp { mask } => return self.warp_barrier(warp, g, m, *mask),
            Op::Read { what, d, wide } => self.read_dynamic(warp, m, *what, *d, *wide),
            Op::Cvta {
                space,
                to_window,
                d,
                a,
            } => {
                let base = window_base(*space);
                let v = warp.regs.get64(*a).map(|x| {
                    if *to_window {
                        x.wrapping_sub(base)
                    } else {
                        x.wrapping_add(base)
                    }
                });
                warp.regs.put64(*d, &v, m);
            }
            Op::IsSpace { space, d, a } => {
                let mut v = 0;
                for (lane, &x) in warp.regs.get64(*a).iter().enumerate() {
                    v |= u32::from(in_window(*space, x, warp.id.cta)) << lane;
                }
                warp.regs.put_pred(*d, v, m);
            }
            Op::Mapa {
                wide,
                generic,
                d,
                a,
                rank,
            } => {
                self.mapa(warp, m, [*wide, *generic], [*d, *a, *rank])?;
            }
            Op::GetCtaRank {
                wide,
                generic,
                d,
                a,
            } => {
                let base = if *generic { window::SHARED } else { 0 };
                let rank = |x: u64| (x.wrapping_sub(base) >> window::RANK_SHIFT) as u32;
                let v = if *wide {
                    warp.regs.get64(*a).map(rank)
                } else {
                    warp.regs.get32(*a).map(|x| rank(x.into()))
                };
                warp.regs.put32(*d, &v, m);
            }
            Op::LdMatrix(op) => self.ldmatrix(warp, m, op)?,
            Op::StMatrix(op) => self.stmatrix(warp, op)?,
            Op::Mma(op) => self.mma(warp, m, op)?,
            Op::Mbarrier(op) => {
                let timed_out = std::mem::take(&mut warp.groups[g].timed_out);
                if let Some(wait) = self.mbarrier(warp, timed_out, m, op)? {
                    return Ok(Flow::Wait(wait));
                }
            }
            Op::Bulk(op) => self.bulk(warp, m, op)?,
            Op::Wgmma(op) => self.wgmma_issue(warp, op)?,
            Op::WgmmaFence => {
                warp.wgmma.fence();
            }
            Op::WgmmaCommit => warp.wgmma.commit(),
            Op::WgmmaWait { pending } => {
                if let Some(wait) = self.wgmma_wait(warp, m, *pending)? {
                    return Ok(Flow::Wait(wait));
                }
            }
            Op::SetMaxNReg { count, increase } => {
                if let Some(wait) = self.set_max_nreg(warp, *count, *increase)? {
                    return Ok(Flow::Wait(wait));
                }
            }
            Op::ClusterBarrier { what, .. } => {
                if let Some(wait) = self.cluster_barrier(warp, m, *what)? {
                    return Ok(Flow::Wait(wait));
                }
            }
            Op::Fence(fence) => self.fence(warp.id, m, *fence),
            Op::Nanosleep => return Ok(Flow::Yield),
            Op::Trap => return Err(FaultKind::Trap.at(m.trailing_zeros() as usize)),
            Op::Unsupported(what) => {
                return Err(
                    FaultKind::Unsupported(what.to_string()).at(m.trailing_zeros() as usize)
                );
            }
            other => {
                return Err(FaultKind::Unsupported(format!("{other:?}")).into());
            }
        }
        Ok(Flow::Next)
    }

    fn read_dynamic(&mut self, warp: &mut Warp, m: u32, what: Dynamic, d: u32, wide: bool) {
        let value = match what {
            Dynamic::ActiveMask => u64::from(m),
            // Time is instructions: it moves forward and is the same in every run of a seed.
            Dynamic::Clock32 | Dynamic::Clock64 | Dynamic::GlobalTimer => self.instructions,
        };
        if wide {
            warp.regs.put64(d, &[value; LANES], m);
        } else {
            warp.regs.put32(d, &[value as u32; LANES], m);
        }
    }

    fn mapa(
        &self,
        warp: &mut Warp,
        m: u32,
        [wide, generic]: [bool; 2],
        [d, a, rank]: [u32; 3],
    ) -> Exec<()> {
        let ranks = *warp.regs.get32(rank);
        if let Some(lane) = lanes(m).find(|&l| ranks[l] as usize >= self.ctas.len()) {
            return Err(FaultKind::OutOfBounds {
                space: "shared",
                address: 0,
                bytes: 0,
                detail: format!(
                    "`mapa` to rank {} of a {}-CTA cluster",
                    ranks[lane],
                    self.ctas.len()
                ),
            }
            .at(lane));
        }
        let base = if generic { window::SHARED } else { 0 };
        let map = |x: u64, lane: usize| {
            let offset = x.wrapping_sub(base) & (window::of_rank(1) - 1);
            base + window::of_rank(ranks[lane]) + offset
        };
        if wide {
            let x = *warp.regs.get64(a);
            warp.regs
                .put64(d, &std::array::from_fn(|i| map(x[i], i)), m);
        } else {
            let x = *warp.regs.get32(a);
            let v = std::array::from_fn(|i| map(x[i].into(), i) as u32);
            warp.regs.put32(d, &v, m);
        }
        Ok(())
    }

    fn exit(&mut self, warp: &mut Warp, g: usize, m: u32) -> Exec<()> {
        warp.exit(g, m);
        // Sets of lanes that waited for the exited ones may now be whole.
        for group in &mut warp.groups {
            if let Some(Wait::Converge { .. } | Wait::WarpBarrier { .. }) = group.wait {
                group.wait = None;
            }
        }
        self.cluster_exit(warp);
        if warp.live == 0 {
            self.copies_at_exit(warp.id)?;
            self.ctas[warp.id.cta as usize].warps_left -= 1;
            if self.ctas[warp.id.cta as usize].warps_left == 0 {
                self.flights_at_exit(warp.id.cta)?;
                self.reallocations_at_exit(warp.id.cta)?;
            }
            self.barriers_after_exit(warp.id.cta);
            self.progress();
        }
        Ok(())
    }

    fn branch_indexed(
        &mut self,
        warp: &mut Warp,
        g: usize,
        m: u32,
        index: u32,
        targets: &[u32],
    ) -> Exec<()> {
        let pc = warp.groups[g].pc;
        let choice = *warp.regs.get32(index);
        if let Some(lane) = lanes(m).find(|&l| choice[l] as usize >= targets.len()) {
            return Err(FaultKind::OutOfBounds {
                space: "branch table",
                address: choice[lane].into(),
                bytes: 0,
                detail: format!("{} targets exist", targets.len()),
            }
            .at(lane));
        }
        if m == 0 {
            warp.groups[g].pc = pc + 1;
            return Ok(());
        }
        let meet = self.launch.kernel.reconverge[pc as usize];
        // Peel off one target after the other; what is left falls to the last one.
        let mut rest = m;
        let mut left = warp.groups[g].mask;
        while rest != 0 {
            let target = targets[choice[rest.trailing_zeros() as usize] as usize];
            let mut taken = 0;
            for lane in lanes(rest) {
                if targets[choice[lane] as usize] == target {
                    taken |= 1 << lane;
                }
            }
            rest &= !taken;
            if taken == left {
                warp.groups[g].pc = target;
            } else {
                warp.diverge(g, taken, target, pc + 1, meet);
                left &= !taken;
            }
        }
        Ok(())
    }
}

fn window_base(space: Window) -> u64 {
    match space {
        Window::Global | Window::Const => 0,
        Window::Shared | Window::SharedCluster => window::SHARED,
        Window::Local => window::LOCAL,
        Window::Param => window::PARAM,
    }
}

fn in_window(space: Window, address: u64, cta: u32) -> bool {
    match space {
        Window::Shared => {
            let own = window::SHARED + window::of_rank(cta);
            (own..own + window::of_rank(1)).contains(&address)
        }
        Window::SharedCluster => (window::SHARED..window::LOCAL).contains(&address),
        Window::Local => (window::LOCAL..window::PARAM).contains(&address),
        Window::Param => (window::PARAM..window::END).contains(&address),
        Window::Global => address >= window::END,
        Window::Const => false,
    }
}

// The driver's part of shared memory lies below every rank window.
const _: () = assert!((SHARED_BASE as u64) < 1 << window::RANK_SHIFT && NEVER == u32::MAX);
