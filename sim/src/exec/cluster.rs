//! A cluster of CTAs: its state, and the scheduler that interleaves its warps.

use std::collections::HashMap;

use super::barrier::{BARRIERS, NamedBarrier};
use super::bulk::Flight;
use super::cluster_barrier::ClusterGate;
use super::launch::Launch;
use super::mbarrier::{Key as MbarrierKey, Mbarrier};
use super::registers::{self, Pool, Reallocation};
use super::regs::{LANES, Regs};
use super::rng::Rng;
use super::tensor::wgmma::Warpgroup;
use super::warp::{Group, PendingCopy, Wait, Warp, WarpId};
use crate::checks::Races;
use crate::fault::{Exec, Fault, FaultKind, Raise};
use crate::memory::local::Local;
use crate::memory::shared::Shared;
use crate::stats::Counters;

/// Instructions a warp runs before another gets its turn, without a schedule seed.
const SLICE: u32 = 256;

/// With a seed, one turn in this many lands an operation in flight early.
const EARLY_LANDING: usize = 8;

/// One CTA's own state.
pub(crate) struct Cta {
    /// `%ctaid`.
    pub(crate) id: [u32; 3],
    pub(crate) shared: Shared,
    pub(crate) barriers: Vec<NamedBarrier>,
    /// Warps that have not exited.
    pub(crate) warps_left: u32,
    /// Registers to trade by `setmaxnreg`, if the kernel's bounds make it effective.
    pub(crate) pool: Option<Pool>,
    /// `setmaxnreg`s executed, by warp.
    pub(crate) reallocations: Vec<Vec<Reallocation>>,
}

/// A cluster's state without its warps, so that a warp can be borrowed at the same time.
pub(crate) struct State<'l> {
    pub(crate) launch: &'l Launch<'l>,
    pub(crate) ctas: Vec<Cta>,
    pub(crate) rng: Rng,
    /// Warp instructions executed.
    pub(crate) instructions: u64,
    /// Those of them by which warps asked mbarriers in vain.
    pub(crate) asked_in_vain: u64,
    /// The instruction being executed, for errors and statistics.
    pub(crate) pc: u32,
    /// Counts events that may let another warp go on.
    pub(crate) events: u64,
    pub(crate) counters: Option<Counters>,
    pub(crate) races: Option<Box<Races>>,
    /// `cp.async` not performed yet, by warp of the cluster.
    pub(crate) copies: Vec<Vec<PendingCopy>>,
    pub(crate) mbarriers: HashMap<MbarrierKey, Mbarrier>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) warpgroups: Vec<Warpgroup>,
    pub(crate) cluster_gate: ClusterGate,
}

/// Why [`Cluster::run`] returned.
pub(crate) enum Status {
    Done,
    /// The time slice is used up; run it again later.
    Preempted,
}

pub(crate) struct Cluster<'l> {
    pub(crate) state: State<'l>,
    pub(super) warps: Vec<Warp>,
    /// Where the round-robin goes on.
    next: usize,
    /// `events` when every waiting `try_wait` was last timed out.
    timed_out_at: Option<u64>,
}

impl State<'_> {
    /// Something happened that a waiting warp may be waiting for.
    pub(super) fn progress(&mut self) {
        self.events += 1;
    }

    /// Puts things whose order is free in the schedule's order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        if self.launch.config.schedule_seed != 0 {
            for i in (1..items.len()).rev() {
                let j = self.rng.below(i + 1);
                items.swap(i, j);
            }
        }
    }
}

impl<'l> Cluster<'l> {
    /// Cluster number `index` of the grid.
    ///
    /// It counts on in `counters`.
    pub(crate) fn new(launch: &'l Launch<'l>, index: u64, counters: Option<Counters>) -> Self {
        let mut ctas = Vec::new();
        let mut warps = Vec::new();
        for rank in 0..launch.ctas_per_cluster() {
            let id = launch.ctaid(index, rank);
            ctas.push(Cta {
                id,
                shared: Shared::new(launch.shared_bytes),
                barriers: vec![NamedBarrier::default(); BARRIERS],
                warps_left: launch.warps,
                reallocations: vec![Vec::new(); launch.warps as usize],
                pool: registers::at_entry(launch.kernel).map(|n| Pool::new(launch.warps, n)),
            });
            for w in 0..launch.warps {
                warps.push(new_warp(launch, index, rank, id, w));
            }
        }
        Self {
            state: State {
                launch,
                ctas,
                rng: Rng::new(launch.config.schedule_seed, index),
                instructions: 0,
                asked_in_vain: 0,
                pc: 0,
                events: 0,
                counters,
                races: launch.checks.races.then(|| {
                    Box::new(Races::new(
                        launch.ctas_per_cluster(),
                        launch.warps,
                        launch.shared_bytes,
                        launch.overall(index),
                    ))
                }),
                copies: vec![Vec::new(); warps.len()],
                mbarriers: HashMap::new(),
                flights: Vec::new(),
                warpgroups: vec![
                    Warpgroup::default();
                    launch.ctas_per_cluster() as usize
                        * launch.warps.div_ceil(4) as usize
                ],
                cluster_gate: ClusterGate::new(warps.iter().map(|w| w.live).collect()),
            },
            warps,
            next: 0,
            timed_out_at: None,
        }
    }

    /// Runs until the cluster is done or `quantum` warp instructions have passed.
    pub(crate) fn run(&mut self, quantum: u64) -> Result<Status, Box<Fault>> {
        let until = self.state.instructions.saturating_add(quantum);
        let seeded = self.state.launch.config.schedule_seed != 0;
        while self.state.instructions < until {
            if seeded {
                self.next = self.state.rng.below(self.warps.len());
                if self.state.rng.below(EARLY_LANDING) == 0 {
                    self.land_one()?;
                }
            }
            let Some((w, g)) = self.pick() else {
                if self.warps.iter().all(|w| w.groups.is_empty()) {
                    return self.finish().map(|()| Status::Done);
                }
                if !self.land_one()? && !self.time_out() {
                    return Err(self.deadlock());
                }
                continue;
            };
            self.next = (w + 1) % self.warps.len();
            let slice = if seeded {
                1 + self.state.rng.below(SLICE as usize) as u32
            } else {
                SLICE
            };
            if let Err(raise) = self.resume(w, g, slice) {
                return Err(self.fault(w, *raise));
            }
            if self.state.instructions > self.state.launch.config.max_instructions {
                let kind = FaultKind::Hang {
                    instructions: self.state.instructions,
                    warps: self.states(),
                    // Whoever started them counts the rest.
                    not_started: 0,
                };
                return Err(self.fault(w, Raise { kind, lane: None }));
            }
        }
        Ok(Status::Preempted)
    }

    /// Lands one operation that completes by an mbarrier: the oldest, or one the schedule picks.
    fn land_one(&mut self) -> Result<bool, Box<Fault>> {
        let mut loads: Vec<usize> = (0..self.state.flights.len())
            .filter(|&i| self.state.flights[i].is_load())
            .collect();
        self.state.shuffle(&mut loads);
        let Some(&i) = loads.first() else {
            return Ok(false);
        };
        let w = self.state.flights[i].issuer().number as usize;
        match self.state.land(i) {
            Ok(()) => Ok(true),
            Err(raise) => Err(self.fault(w, *raise)),
        }
    }

    /// Lets every waiting `try_wait` return false once, in case the program does something else then.
    /// False if that was tried and changed nothing.
    fn time_out(&mut self) -> bool {
        if self.timed_out_at == Some(self.state.events) {
            return false;
        }
        self.timed_out_at = Some(self.state.events);
        let mut any = false;
        for group in self.warps.iter_mut().flat_map(|w| &mut w.groups) {
            if let Some(Wait::Mbarrier { .. }) = group.wait {
                group.wait = None;
                group.timed_out = true;
                any = true;
            }
        }
        any
    }

    /// Every warp has exited: what is left to land and to balance.
    fn finish(&mut self) -> Result<(), Box<Fault>> {
        let done = match self.state.flights_at_end() {
            Ok(()) => self.state.mbarriers_at_exit(),
            failed => failed,
        };
        done.map_err(|raise| self.fault(0, *raise))
    }

    /// Lets a group go on, first finishing what it waited for.
    fn resume(&mut self, w: usize, g: usize, slice: u32) -> Exec<()> {
        if let Some(Wait::Wgmma { issued }) = self.warps[w].groups[g].wait {
            let first = w - self.warps[w].id.index as usize % 4;
            self.state
                .wgmma_perform(&mut self.warps[first..first + 4], issued)?;
        }
        let warp = &mut self.warps[w];
        self.state.wake(warp, g);
        self.state.run_group(warp, g, slice)
    }

    /// A group that can go on.
    fn pick(&self) -> Option<(usize, usize)> {
        let n = self.warps.len();
        (0..n).map(|i| (self.next + i) % n).find_map(|w| {
            let warp = &self.warps[w];
            let ready = |g: &Group| match &g.wait {
                None => true,
                Some(wait) => self.state.is_over(warp, wait),
            };
            warp.groups.iter().position(ready).map(|g| (w, g))
        })
    }
}

fn new_warp(launch: &Launch<'_>, cluster: u64, rank: u32, ctaid: [u32; 3], index: u32) -> Warp {
    let kernel = launch.kernel;
    let mut regs = Regs::new(kernel.regs32, kernel.regs64, kernel.preds);
    let threads = launch.threads - index * LANES as u32;
    let live = if threads >= LANES as u32 {
        u32::MAX
    } else {
        (1 << threads) - 1
    };
    for &(reg, preset) in &kernel.presets32 {
        let value = |lane| launch.preset(preset, cluster, rank, ctaid, index, lane) as u32;
        regs.put32(reg, &std::array::from_fn(value), u32::MAX);
    }
    for &(reg, preset) in &kernel.presets64 {
        let value = |lane| launch.preset(preset, cluster, rank, ctaid, index, lane);
        regs.put64(reg, &std::array::from_fn(value), u32::MAX);
    }
    let id = WarpId {
        cta: rank,
        index,
        number: rank * launch.warps + index,
    };
    Warp::new(regs, Local::new(kernel.local_bytes), live, id)
}

impl State<'_> {
    /// Is the wait of a group of `warp` over?
    pub(super) fn is_over(&self, warp: &Warp, wait: &Wait) -> bool {
        match *wait {
            Wait::Barrier { id, generation } => {
                self.ctas[warp.id.cta as usize].barriers[id as usize].generation != generation
            }
            // Woken by the lane that completes the set.
            Wait::WarpBarrier { .. } | Wait::Converge { .. } => false,
            Wait::Mbarrier { cta, at, phase } => self
                .mbarriers
                .get(&(cta, at))
                .is_none_or(|m| m.phase != phase),
            Wait::Cluster { generation } => self.cluster_gate.generation != generation,
            Wait::Wgmma { issued } => self.warpgroup_of(warp.id).ready(issued),
            Wait::Registers { wanted } => self.ctas[warp.id.cta as usize]
                .pool
                .as_ref()
                .is_none_or(|pool| pool.can_grow(warp.id.index, wanted)),
        }
    }
}
