//! The race check: orders accesses by happens-before.
//!
//! Every thread has a vector clock ([`super::threads`]), every byte of shared memory the history of
//! its last write and the reads since ([`super::shadow`]), every two bytes of global memory a
//! compressed one ([`super::global_order`]). An access that is not ordered after a conflicting one is
//! a fault, whether or not this schedule made it visible.

use std::collections::HashMap;

use super::Touch;
use super::async_order::MbarrierClock;
use super::clock::Known;
use super::scopes::Scoped;
use super::shadow::{Cell, IN_FLIGHT, Kind, Reader, Shadow, Writer};
use super::threads::Threads;
use crate::decode::SHARED_BASE;
use crate::exec::{MbarrierKey, State, WarpId, lanes};
use crate::fault::{Access, FaultKind};
use crate::ir::Scope;

/// Clocks at a barrier: those of the threads that have arrived, and those handed out when it last opened.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    pub(super) gathering: Option<Known>,
    pub(super) opened: Option<Known>,
}

pub(crate) struct Races {
    pub(crate) threads: Threads,
    /// By CTA rank.
    pub(super) shared: Vec<Shadow>,
    pub(super) gates: Vec<Vec<Gate>>,
    pub(super) cluster_gate: Gate,
    pub(super) mbarriers: HashMap<MbarrierKey, MbarrierClock>,
    /// Agents by thread slot, and by CTA rank and warpgroup.
    pub(super) store_agents: HashMap<u32, u32>,
    pub(super) wgmma_agents: HashMap<(u32, u32), u32>,
    /// Locations of shared memory used to synchronise, by CTA rank and address.
    pub(super) locations: HashMap<(u32, u64), Scoped>,
    /// Names of agents, whose slots follow the threads'.
    pub(super) agents: Vec<String>,
    /// Cluster number, for global memory.
    pub(super) cluster: u64,
}

/// The access being checked.
#[derive(Clone, Copy)]
pub(super) struct Now {
    /// Thread slot whose clock is checked.
    pub(super) me: u32,
    /// Slot a write is entered under.
    pub(super) as_slot: u32,
    /// Readers recorded for a read: a warp and lane mask, or an agent.
    pub(super) reader: (u32, u32),
    pub(super) time: u32,
    pub(super) line: u32,
    pub(super) write: bool,
    pub(super) kind: Kind,
    /// Scope of a strong access.
    pub(super) scope: Scope,
}

/// The earlier access that an access conflicts with, and why.
pub(super) struct Conflict {
    slot: u32,
    line: u32,
    write: bool,
    kind: Kind,
    in_flight: bool,
    /// Ordered, but without a proxy fence.
    unfenced: bool,
    /// Ordered if a scope were larger.
    scope: bool,
    /// The bytes are an mbarrier.
    object: bool,
}

impl Races {
    pub(crate) fn new(ctas: u32, warps_per_cta: u32, shared_bytes: u32, cluster: u64) -> Self {
        Self {
            threads: Threads::new(ctas, warps_per_cta),
            shared: (0..ctas).map(|_| Shadow::new(shared_bytes)).collect(),
            gates: (0..ctas).map(|_| vec![Gate::default(); 16]).collect(),
            cluster_gate: Gate::default(),
            mbarriers: HashMap::new(),
            store_agents: HashMap::new(),
            wgmma_agents: HashMap::new(),
            locations: HashMap::new(),
            agents: Vec::new(),
            cluster,
        }
    }

    /// The access of one lane of `warp`, now.
    pub(super) fn now(&self, warp: WarpId, lane: usize, line: u32, write: bool, kind: Kind) -> Now {
        let me = self.threads.slot(warp, lane);
        Now {
            me,
            as_slot: me,
            reader: (warp.number, 1 << lane),
            time: self.threads.now(warp),
            line,
            write,
            kind,
            scope: Scope::Sys,
        }
    }

    /// Checks and records one access to CTA `rank`'s shared memory; a conflict is returned with the byte it is at.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        start: usize,
        size: usize,
        now: &Now,
    ) -> Result<(), (usize, Conflict)> {
        let threads = &self.threads;
        let shadow = &mut self.shared[rank as usize];
        shadow.each(start, size, |at, cell| {
            Self::touch(threads, rank, cell, now).map_err(|conflict| (at, conflict))
        })?;
        if now.write {
            shadow.join(start, size);
        }
        Ok(())
    }

    /// Records a plain read of the same bytes by several lanes of `warp` at one go, if all know the same, and what they read is
    /// ordered before by that. Whether it did; otherwise nothing has changed.
    pub(super) fn read_together(
        &mut self,
        warp: WarpId,
        mask: u32,
        rank: u32,
        (start, size): (usize, usize),
        now: &Now,
    ) -> bool {
        let Some(seen) = self.threads.known_alike(warp, mask) else {
            return false;
        };
        let shadow = &mut self.shared[rank as usize];
        let ordered = shadow.each(start, size, |_, cell| {
            if cell.writer.is_seen(seen) {
                Ok(())
            } else {
                Err(())
            }
        });
        let read = |_, cell: &mut Cell| {
            cell.read(Reader {
                who: warp.number,
                mask,
                time: now.time,
                line: now.line,
            });
            Ok(())
        };
        ordered
            .and_then(|()| shadow.each(start, size, read))
            .is_ok()
    }

    /// Records the plain reads of a warp's instruction where all lanes know the same, and what they read is ordered before by that.
    /// Returns the lanes of which it is not known.
    pub(super) fn read_alike(
        &mut self,
        warp: WarpId,
        touch: &Touch<'_>,
        rank: u32,
        line: u32,
    ) -> u32 {
        let Some(seen) = self.threads.known_alike(warp, touch.mask) else {
            return touch.mask;
        };
        let shadow = &mut self.shared[rank as usize];
        let time = self.threads.now(warp);
        let mut left = 0;
        for lane in lanes(touch.mask) {
            let reader = Reader {
                who: warp.number,
                mask: 1 << lane,
                time,
                line,
            };
            let start = (touch.at[lane] - u64::from(SHARED_BASE)) as usize;
            let read = shadow.each(start, touch.bytes as usize, |_, cell| {
                if !cell.writer.is_seen(seen) {
                    return Err(());
                }
                cell.read(reader);
                Ok(())
            });
            left |= u32::from(read.is_err()) << lane;
        }
        left
    }

    /// A new agent's slot.
    pub(crate) fn new_agent(&mut self, name: String) -> u32 {
        self.agents.push(name);
        self.threads.slots() + self.agents.len() as u32 - 1
    }

    /// Checks an access against one byte's (or word's) history in CTA `rank`'s memory, and enters it.
    #[inline(always)]
    fn touch(threads: &Threads, rank: u32, cell: &mut Cell, now: &Now) -> Result<(), Conflict> {
        let w = cell.writer;
        let both_strong = now.kind == Kind::Strong && w.kind == Kind::Strong;
        let alike = both_strong
            && (now.scope.min(w.scope) >= Scope::Cluster || threads.same_cta(now.me, w.slot));
        if w.time != 0 && !alike {
            let conflict = |in_flight, unfenced| Conflict {
                slot: w.slot,
                line: w.line,
                write: true,
                kind: w.kind,
                in_flight,
                unfenced,
                scope: both_strong || threads.is_over(now.me, w.slot, w.time),
                object: w.kind == Kind::Mbarrier,
            };
            if w.time == IN_FLIGHT {
                return Err(conflict(true, false));
            }
            if w.kind == Kind::Mbarrier && now.kind != Kind::Mbarrier {
                return Err(conflict(false, false));
            }
            let over = || now.write && threads.overwritable(now.me, w.slot, w.time, rank);
            if !threads.ordered(now.me, w.slot, w.time) && !over() {
                return Err(conflict(false, false));
            }
            // The async proxy sees a generic write only across a proxy fence.
            if now.kind == Kind::Async
                && w.kind != Kind::Async
                && !threads.fenced(now.me, w.slot, w.time)
            {
                return Err(conflict(false, true));
            }
        }
        if now.write {
            if let Some((slot, line)) = cell.unordered_reader(threads, now.me) {
                return Err(Conflict {
                    slot,
                    line,
                    write: false,
                    kind: Kind::Plain,
                    in_flight: false,
                    unfenced: false,
                    scope: false,
                    object: false,
                });
            }
            cell.writer = Writer {
                slot: now.as_slot,
                time: now.time,
                line: now.line,
                kind: now.kind,
                scope: now.scope,
            };
            cell.clear_readers();
        } else if now.kind != Kind::Strong {
            cell.read(Reader {
                who: now.reader.0,
                mask: now.reader.1,
                time: now.time,
                line: now.line,
            });
        }
        Ok(())
    }
}

fn verb(kind: Kind, write: bool) -> &'static str {
    match (kind, write) {
        (Kind::Plain, true) => "write",
        (Kind::Plain, false) => "read",
        (Kind::Strong, true) => "atomic or volatile write",
        (Kind::Strong, false) => "atomic or volatile read",
        (Kind::Async, true) => "asynchronous write",
        (Kind::Async, false) => "asynchronous read",
        (Kind::CpAsync, true) => "cp.async write",
        (Kind::CpAsync, false) => "cp.async read",
        (Kind::Mbarrier, _) => "mbarrier initialisation",
    }
}

impl State<'_> {
    pub(super) fn line(&self) -> u32 {
        self.launch.kernel.code[self.pc as usize].line
    }

    /// A slot in words.
    pub(super) fn who(&self, races: &Races, slot: u32) -> String {
        if slot >= races.threads.slots() {
            let agent = (slot - races.threads.slots()) as usize;
            return races.agents[agent].clone();
        }
        let (rank, thread) = races.threads.thread_of(slot);
        let block = self.ctas[rank as usize].id;
        format!(
            "block {block:?} thread {:?} (warp {}, lane {})",
            self.launch.tid(thread),
            thread / 32,
            thread % 32
        )
    }

    /// The fault that reports a conflict.
    pub(super) fn conflict(
        &self,
        races: &Races,
        space: &'static str,
        address: u64,
        now: &Now,
        with: &Conflict,
    ) -> FaultKind {
        let access = |what: &str, slot, line| {
            Box::new(Access {
                what: what.to_owned(),
                who: self.who(races, slot),
                line,
            })
        };
        let current = access(verb(now.kind, now.write), now.me, now.line);
        let before = access(verb(with.kind, with.write), with.slot, with.line);
        if with.object {
            return FaultKind::Mbarrier(format!(
                "{current} of {address:#x}, which is an mbarrier since the {before}"
            ));
        }
        if with.in_flight {
            return FaultKind::AsyncInFlight(format!(
                "{current} of {space} address {address:#x}, which the unfinished {before} still uses"
            ));
        }
        if with.unfenced {
            return FaultKind::ProxyFence {
                space,
                address,
                now: current,
                before,
            };
        }
        if with.scope {
            return FaultKind::Scope {
                space,
                address,
                now: current,
                before,
            };
        }
        FaultKind::Race {
            space,
            address,
            now: current,
            before,
        }
    }
}
