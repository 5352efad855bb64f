//! CTA barriers (PTX ISA §9.7.13.1).

use super::cluster::State;
use super::regs::{LANES, lanes};
use super::warp::{Wait, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::{Barrier, BarrierMode};

/// Barriers of a CTA.
pub(super) const BARRIERS: usize = 16;

/// One named barrier.
#[derive(Clone, Debug)]
pub(crate) struct NamedBarrier {
    /// Times it has opened.
    pub(crate) generation: u64,
    /// Threads that arrived since.
    arrived: u32,
    /// Thread count the participants named; `None` is the whole CTA.
    expected: Option<Option<u32>>,
    /// Lanes of each warp that arrived (a warp that arrives piecemeal counts as a whole at the end).
    lanes: Vec<(u32, u32)>,
    /// Running values of the reducing forms, and the result of the last generation.
    votes: u32,
    all: bool,
    result: (u32, bool),
}

impl Default for NamedBarrier {
    fn default() -> Self {
        Self {
            generation: 0,
            arrived: 0,
            expected: None,
            lanes: Vec::new(),
            votes: 0,
            all: true,
            result: (0, true),
        }
    }
}

impl NamedBarrier {
    pub(crate) fn describe(&self, id: u32) -> String {
        match self.expected {
            Some(Some(n)) => format!("barrier {id} ({} of {n} threads arrived)", self.arrived),
            _ => format!("barrier {id} ({} threads of the CTA arrived)", self.arrived),
        }
    }
}

impl State<'_> {
    /// Threads the barrier waits for: warps count whole, exited warps not at all.
    fn barrier_expected(&self, cta: u32, id: usize) -> u32 {
        let c = &self.ctas[cta as usize];
        match c.barriers[id].expected {
            Some(Some(n)) => n,
            _ => c.warps_left * LANES as u32,
        }
    }

    /// The lanes `m` of a warp reach a barrier; returns what to wait for, if anything.
    pub(super) fn barrier(&mut self, warp: &mut Warp, m: u32, op: &Barrier) -> Exec<Option<Wait>> {
        let first = m.trailing_zeros() as usize;
        let id = warp.regs.get32(op.id)[first];
        let count = op.count.map(|r| warp.regs.get32(r)[first]);
        let uniform = lanes(m).all(|lane| {
            warp.regs.get32(op.id)[lane] == id
                && op
                    .count
                    .is_none_or(|r| Some(warp.regs.get32(r)[lane]) == count)
        });
        if !uniform {
            return Err(FaultKind::Barrier(
                "lanes of one warp name different barriers or counts".into(),
            )
            .into());
        }
        if id as usize >= BARRIERS {
            return Err(FaultKind::Barrier(format!("there is no barrier {id}")).into());
        }
        if let Some(n) = count.filter(|&n| n == 0 || n % LANES as u32 != 0) {
            return Err(FaultKind::Barrier(format!(
                "thread count {n} of barrier {id} is not a multiple of the warp size"
            ))
            .into());
        }
        self.barrier_arrives(warp.id, m, id);
        let cta = warp.id.cta;
        let barrier = &mut self.ctas[cta as usize].barriers[id as usize];
        match barrier.expected {
            Some(before) if before != count => {
                return Err(FaultKind::Barrier(format!(
                    "barrier {id} is used with thread counts {before:?} and {count:?} at once"
                ))
                .into());
            }
            _ => barrier.expected = Some(count),
        }
        // A whole warp counts 32 threads even if lanes are missing or have exited.
        let index = warp.id.index;
        let slot = match barrier.lanes.iter().position(|&(w, _)| w == index) {
            Some(slot) => slot,
            None => {
                barrier.lanes.push((index, 0));
                barrier.lanes.len() - 1
            }
        };
        let seen = barrier.lanes[slot].1;
        let now = seen | m;
        if now & warp.live == warp.live {
            barrier.arrived += LANES as u32 - seen.count_ones();
            barrier.lanes.swap_remove(slot);
        } else {
            barrier.arrived += (m & !seen).count_ones();
            barrier.lanes[slot].1 = now;
        }
        let votes = warp.regs.test(op.p) & m;
        barrier.votes += votes.count_ones();
        barrier.all &= votes == m;
        let generation = barrier.generation;
        let arrived = barrier.arrived;
        let expected = self.barrier_expected(cta, id as usize);
        if arrived > expected {
            return Err(FaultKind::Barrier(format!(
                "{arrived} threads arrived at barrier {id}, which expects {expected}"
            ))
            .into());
        }
        self.barrier_check(cta, id as usize);
        if op.mode == BarrierMode::Arrive {
            return Ok(None);
        }
        Ok(Some(Wait::Barrier { id, generation }))
    }

    /// Opens barrier `id` if everyone is there.
    fn barrier_check(&mut self, cta: u32, id: usize) {
        let expected = self.barrier_expected(cta, id);
        let barrier = &mut self.ctas[cta as usize].barriers[id];
        if barrier.arrived == 0 || barrier.arrived < expected {
            return;
        }
        barrier.result = (barrier.votes, barrier.all);
        barrier.generation += 1;
        barrier.arrived = 0;
        barrier.expected = None;
        barrier.votes = 0;
        barrier.all = true;
        barrier.lanes.clear();
        self.barrier_opens(cta, id as u32);
        self.progress();
    }

    /// After a warp has exited, whole-CTA barriers may be complete.
    pub(super) fn barriers_after_exit(&mut self, cta: u32) {
        for id in 0..BARRIERS {
            if self.ctas[cta as usize].barriers[id].expected == Some(None) {
                self.barrier_check(cta, id);
            }
        }
    }

    /// A group goes on after a barrier opened: the reducing forms get their result.
    pub(super) fn barrier_passed(&mut self, warp: &mut Warp, m: u32, op: &Barrier) {
        let first = m.trailing_zeros() as usize;
        let id = warp.regs.get32(op.id)[first];
        self.barrier_synchronises(warp.id, m, id);
        let (count, all) = self.ctas[warp.id.cta as usize].barriers[id as usize].result;
        match op.mode {
            BarrierMode::Sync | BarrierMode::Arrive => {}
            BarrierMode::RedPopc => warp.regs.put32(op.d, &[count; LANES], m),
            BarrierMode::RedAnd => warp.regs.put_pred(op.d, if all { u32::MAX } else { 0 }, m),
            BarrierMode::RedOr => {
                warp.regs
                    .put_pred(op.d, if count > 0 { u32::MAX } else { 0 }, m);
            }
        }
    }
}
