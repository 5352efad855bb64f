//! Order of asynchronous operations: mbarriers, bulk copies, `wgmma`.
//!
//! An agent's clock counts the events that make its work known: completed phases for an mbarrier, commit groups for a
//! warpgroup's `wgmma`s and a thread's bulk stores. Accesses that an agent has not finished carry the time of the event
//! that will release them, so an access that has not waited is not ordered, whether or not the operation has been
//! performed in this schedule.

use std::sync::Arc;

use super::clock::Known;
use super::races::{Now, Races};
use super::scopes::Scoped;
use super::shadow::{AGENT, IN_FLIGHT, Kind};
use crate::decode::SHARED_BASE;
use crate::exec::{MbarrierKey, State, WarpId};
use crate::fault::{Exec, FaultKind};
use crate::ir::Scope;

/// Order of one mbarrier.
pub(crate) struct MbarrierClock {
    gathering: Scoped,
    completed: Scoped,
    agent: u32,
    /// Phases completed.
    ended: u32,
    /// Who initialised it, and when.
    slot: u32,
    time: u32,
    /// The initialising thread has fenced it for the async proxy.
    pub(super) fenced: bool,
}

impl MbarrierClock {
    pub(super) fn initialised_by(&self, first: u32, mask: u32) -> bool {
        self.slot / 32 * 32 == first && mask >> (self.slot % 32) & 1 == 1
    }
}

impl Races {
    /// Slot whose clock counts thread `slot`'s bulk store groups.
    fn store_agent(&mut self, slot: u32) -> u32 {
        if let Some(&agent) = self.store_agents.get(&slot) {
            return agent;
        }
        let (rank, thread) = self.threads.thread_of(slot);
        let agent = self.new_agent(format!("a bulk store of CTA rank {rank} thread {thread}"));
        self.store_agents.insert(slot, agent);
        agent
    }

    /// Slot whose clock counts a warpgroup's `wgmma` groups.
    pub(super) fn wgmma_agent(&mut self, warp: WarpId) -> u32 {
        let key = (warp.cta, warp.index / 4);
        if let Some(&agent) = self.wgmma_agents.get(&key) {
            return agent;
        }
        let agent = self.new_agent(format!(
            "wgmma of warpgroup {} of CTA rank {}",
            key.1, key.0
        ));
        self.wgmma_agents.insert(key, agent);
        agent
    }
}

impl State<'_> {
    /// An mbarrier is created at byte `start` of its CTA's shared memory.
    pub(crate) fn mbarrier_initialised(
        &mut self,
        warp: WarpId,
        key: MbarrierKey,
        start: usize,
        lane: usize,
    ) -> Exec<()> {
        let line = self.line();
        let Some(races) = self.races.as_deref_mut() else {
            return Ok(());
        };
        let now = races.now(warp, lane, line, true, Kind::Mbarrier);
        if let Err((at, conflict)) = races.enter(key.0, start, 8, &now) {
            return Err(self.shared_fault(at, &now, &conflict).at(lane));
        }
        let agent = match races.mbarriers.get(&key) {
            Some(old) => old.agent,
            None => races.new_agent(format!(
                "a bulk copy completing on mbarrier {:#x} of CTA rank {}",
                key.1, key.0
            )),
        };
        races.mbarriers.insert(
            key,
            MbarrierClock {
                gathering: Scoped::default(),
                completed: Scoped::default(),
                ended: 0,
                agent,
                slot: now.me,
                time: now.time,
                fenced: false,
            },
        );
        Ok(())
    }

    /// Its bytes are ordinary memory again.
    pub(crate) fn mbarrier_invalidated(&mut self, key: MbarrierKey) {
        if let Some(races) = self.races.as_deref_mut() {
            let start = (key.1 - u64::from(SHARED_BASE)) as usize;
            let shadow = &mut races.shared[key.0 as usize];
            let _ = shadow.each(start, 8, |_, cell| {
                cell.writer.kind = Kind::Plain;
                Ok::<(), ()>(())
            });
        }
    }

    /// A thread uses an mbarrier: its initialisation must be ordered before.
    pub(crate) fn mbarrier_used(&self, warp: WarpId, key: MbarrierKey, lane: usize) -> Exec<()> {
        let Some(races) = self.races.as_deref() else {
            return Ok(());
        };
        let me = races.threads.slot(warp, lane);
        match races.mbarriers.get(&key) {
            Some(m) if !races.threads.ordered(me, m.slot, m.time) => {
                Err(FaultKind::Mbarrier(format!(
                    "{:#x} is used by {} before its initialisation by {} is visible to it",
                    key.1,
                    self.who(races, me),
                    self.who(races, m.slot)
                ))
                .at(lane))
            }
            _ => Ok(()),
        }
    }

    /// A thread's arrival publishes its accesses before it.
    pub(crate) fn mbarrier_releases(
        &mut self,
        warp: WarpId,
        key: MbarrierKey,
        lane: usize,
        scope: Scope,
    ) {
        if let Some(races) = self.races.as_deref_mut()
            && let Some(m) = races.mbarriers.get_mut(&key)
        {
            let to = m.gathering.entry(warp.cta, scope, &races.threads);
            races.threads.release(warp, 1 << lane, to);
        }
    }

    /// `phase` phases are complete.
    pub(crate) fn mbarrier_phase_done(&mut self, key: MbarrierKey, phase: u32) {
        if let Some(races) = self.races.as_deref_mut()
            && let Some(m) = races.mbarriers.get_mut(&key)
        {
            // Phases complete in order: a thread that sees one end has seen the earlier ones end.
            for known in m.gathering.all() {
                Arc::make_mut(&mut known.seen).raise(m.agent, phase);
            }
            m.ended = phase;
            m.completed = m.gathering.clone();
        }
    }

    /// Whether a thread may not have seen the last phase of an mbarrier end. It has seen it if it waited for it, or if
    /// every arrival was ordered before and no copy completed the phase. `false` if order is not checked.
    pub(crate) fn phase_unseen(
        &self,
        warp: WarpId,
        lane: usize,
        key: MbarrierKey,
        by_copy: bool,
    ) -> bool {
        let Some(races) = self.races.as_deref() else {
            return false;
        };
        let Some(m) = races.mbarriers.get(&key) else {
            return false;
        };
        let me = races.threads.slot(warp, lane);
        let waited = races.threads.seen(me).get(m.agent) >= m.ended;
        let unordered = |known: &Known| {
            let before = |slot| races.threads.ordered(me, slot, known.seen.get(slot));
            let mut slots = known.seen.slots();
            slots.any(|slot| slot != m.agent && !before(slot))
        };
        !waited && (by_copy || m.completed.everything().any(unordered))
    }

    /// The lanes of `mask` saw a phase end.
    pub(crate) fn mbarrier_acquired(
        &mut self,
        warp: WarpId,
        mask: u32,
        key: MbarrierKey,
        scope: Scope,
    ) {
        if let Some(races) = self.races.as_deref_mut()
            && let Some(m) = races.mbarriers.get(&key)
        {
            races
                .threads
                .acquire_scoped(warp, mask, scope, &m.completed);
            // Copies complete with the cluster's scope (PTX ISA §9.7.9.25.4), and arrivals may have released nothing.
            if races.threads.lags(warp, mask, m.agent, m.ended) {
                races.threads.learn(warp, mask, m.agent, m.ended);
            }
        }
    }

    /// An asynchronous write to shared memory that completes on `key` begins: its bytes must be free.
    pub(crate) fn async_write_begins(
        &mut self,
        (warp, lane): (WarpId, usize),
        rank: u32,
        (start, bytes): (usize, usize),
        key: MbarrierKey,
    ) -> Exec<()> {
        let line = self.line();
        let Some(races) = self.races.as_deref_mut() else {
            return Ok(());
        };
        let Some(m) = races.mbarriers.get(&key) else {
            return Ok(());
        };
        if !m.fenced {
            return Err(FaultKind::Mbarrier(format!(
                "{:#x} is used by a bulk copy, but no `fence.mbarrier_init` or `fence.proxy.async` followed its initialisation",
                key.1
            ))
            .at(lane));
        }
        let agent = m.agent;
        let now = Now {
            as_slot: agent,
            time: IN_FLIGHT,
            ..races.now(warp, lane, line, true, Kind::Async)
        };
        match races.enter(rank, start, bytes, &now) {
            Ok(()) => Ok(()),
            Err((at, conflict)) => Err(self.shared_fault(at, &now, &conflict).at(lane)),
        }
    }

    /// It has landed, in phase `phase` of its mbarrier (0 is the first).
    pub(crate) fn async_write_lands(
        &mut self,
        rank: u32,
        (start, bytes): (usize, usize),
        key: MbarrierKey,
        phase: u32,
    ) {
        if let Some(races) = self.races.as_deref_mut()
            && let Some(m) = races.mbarriers.get(&key)
        {
            let agent = m.agent;
            let _ = races.shared[rank as usize].each(start, bytes, |_, cell| {
                if cell.writer.slot == agent && cell.writer.time == IN_FLIGHT {
                    cell.writer.time = phase + 1;
                }
                Ok::<(), ()>(())
            });
        }
    }

    /// An asynchronous read of shared memory begins, by agent `agent` until its clock is `until`.
    pub(crate) fn async_read_begins(
        &mut self,
        (warp, lane): (WarpId, usize),
        (start, bytes): (usize, usize),
        agent: u32,
        until: u32,
    ) -> Exec<()> {
        let line = self.line();
        let Some(races) = self.races.as_deref_mut() else {
            return Ok(());
        };
        let now = Now {
            reader: (AGENT | agent, 1),
            time: until,
            ..races.now(warp, lane, line, false, Kind::Async)
        };
        match races.enter(warp.cta, start, bytes, &now) {
            Ok(()) => Ok(()),
            Err((at, conflict)) => Err(self.shared_fault(at, &now, &conflict).at(lane)),
        }
    }

    /// Agent of a thread's bulk stores, if order is checked.
    pub(crate) fn bulk_agent(&mut self, warp: WarpId, lane: usize) -> Option<u32> {
        let races = self.races.as_deref_mut()?;
        let slot = races.threads.slot(warp, lane);
        Some(races.store_agent(slot))
    }

    /// Agent of an mbarrier's transactions, and the phase they will complete.
    pub(crate) fn mbarrier_agent(&self, key: MbarrierKey) -> Option<u32> {
        Some(self.races.as_deref()?.mbarriers.get(&key)?.agent)
    }

    /// A thread has waited until its first `groups` bulk store groups were read.
    pub(crate) fn bulk_waited(&mut self, warp: WarpId, lane: usize, groups: u32) {
        if let Some(agent) = self.bulk_agent(warp, lane)
            && let Some(races) = self.races.as_deref_mut()
        {
            races.threads.learn(warp, 1 << lane, agent, groups);
        }
    }

    /// Agent of a warpgroup, if order is checked.
    pub(crate) fn wgmma_agent(&mut self, warp: WarpId) -> Option<u32> {
        Some(self.races.as_deref_mut()?.wgmma_agent(warp))
    }

    /// A warp has waited for its first `groups` wgmma groups.
    pub(crate) fn wgmma_waited(&mut self, warp: WarpId, m: u32, groups: u32) {
        if let Some(races) = self.races.as_deref_mut() {
            let agent = races.wgmma_agent(warp);
            races.threads.learn(warp, m, agent, groups);
            // A wait is for the whole warp, and the waited-for operations have consumed the
            // registers that its earlier loads (`ldmatrix` of A) filled: those reads are complete
            // for every lane, so one lane may tell others. Writes need a barrier all the same.
            let slot = match races.threads.reads[warp.number as usize] {
                Some(slot) => slot,
                None => races.new_agent(format!(
                    "reads of warp {} of CTA rank {}",
                    warp.index, warp.cta
                )),
            };
            races.threads.reads_complete(warp, slot);
        }
    }
}
