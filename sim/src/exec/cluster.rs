//! A cluster of CTAs: its state, and the scheduler that interleaves its warps.

use super::barrier::{BARRIERS, NamedBarrier};
use super::launch::Launch;
use super::regs::{LANES, Regs};
use super::rng::Rng;
use super::warp::{Wait, Warp};
use crate::error::source_line;
use crate::fault::{BlockState, Exec, Fault, FaultKind, Raise};
use crate::memory::local::Local;
use crate::memory::shared::Shared;
use crate::stats::Counters;

/// Instructions a warp runs before another gets its turn, without a schedule seed.
const SLICE: u32 = 256;

/// One CTA's own state.
pub(crate) struct Cta {
    /// `%ctaid`.
    pub(crate) id: [u32; 3],
    pub(crate) shared: Shared,
    pub(crate) barriers: Vec<NamedBarrier>,
    /// Warps that have not exited.
    pub(crate) warps_left: u32,
}

/// Everything of a cluster but its warps, so a warp can be borrowed beside it.
pub(crate) struct State<'l> {
    pub(crate) launch: &'l Launch<'l>,
    pub(crate) ctas: Vec<Cta>,
    pub(crate) rng: Rng,
    /// Warp instructions executed.
    pub(crate) instructions: u64,
    /// The instruction being executed, for errors and statistics.
    pub(crate) pc: u32,
    /// Counts events that may let another warp go on.
    pub(crate) events: u64,
    pub(crate) counters: Option<Box<Counters>>,
}

/// What [`Cluster::run`] stopped at.
pub(crate) enum Status {
    Done,
    /// Its turn is over; run it again later.
    Preempted,
}

pub(crate) struct Cluster<'l> {
    pub(crate) state: State<'l>,
    warps: Vec<Warp>,
    /// Where the round-robin goes on.
    next: usize,
}

impl State<'_> {
    /// Something happened that a waiting warp may be waiting for.
    pub(super) fn progress(&mut self) {
        self.events += 1;
    }
}

impl<'l> Cluster<'l> {
    /// Cluster number `index` of the grid.
    pub(crate) fn new(launch: &'l Launch<'l>, index: u64) -> Self {
        let mut ctas = Vec::new();
        let mut warps = Vec::new();
        for rank in 0..launch.ctas_per_cluster() {
            let id = launch.ctaid(index, rank);
            ctas.push(Cta {
                id,
                shared: Shared::new(launch.shared_bytes),
                barriers: vec![NamedBarrier::default(); BARRIERS],
                warps_left: launch.warps,
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
                pc: 0,
                events: 0,
                counters: launch
                    .checks
                    .statistics
                    .then(|| Box::new(Counters::new(launch.kernel.code.len()))),
            },
            warps,
            next: 0,
        }
    }

    /// Runs until the cluster is done or `quantum` warp instructions have passed.
    pub(crate) fn run(&mut self, quantum: u64) -> Result<Status, Box<Fault>> {
        let until = self.state.instructions.saturating_add(quantum);
        while self.state.instructions < until {
            let seeded = self.state.launch.config.schedule_seed != 0;
            let n = self.warps.len();
            if seeded {
                self.next = self.state.rng.below(n);
            }
            let Some((w, g)) = self.pick() else {
                if self.warps.iter().all(|w| w.groups.is_empty()) {
                    return Ok(Status::Done);
                }
                return Err(self.deadlock());
            };
            self.next = (w + 1) % n;
            let slice = if seeded {
                1 + self.state.rng.below(SLICE as usize) as u32
            } else {
                SLICE
            };
            let warp = &mut self.warps[w];
            if let Err(raise) = self.state.resume(warp, g, slice) {
                return Err(self.fault(w, *raise));
            }
            if self.state.instructions > self.state.launch.config.max_instructions {
                let kind = FaultKind::Hang {
                    instructions: self.state.instructions,
                    warps: self.states(),
                };
                return Err(self.fault(w, Raise { kind, lane: None }));
            }
        }
        Ok(Status::Preempted)
    }

    /// A group that can go on.
    fn pick(&self) -> Option<(usize, usize)> {
        let n = self.warps.len();
        (0..n).map(|i| (self.next + i) % n).find_map(|w| {
            let warp = &self.warps[w];
            let ready = |g: &super::warp::Group| match &g.wait {
                None => true,
                Some(wait) => self.state.is_over(warp, wait),
            };
            warp.groups.iter().position(ready).map(|g| (w, g))
        })
    }

    fn states(&self) -> Vec<BlockState> {
        let code = &self.state.launch.kernel.code;
        self.warps
            .iter()
            .map(|w| BlockState {
                block: self.state.ctas[w.cta as usize].id,
                warp: w.index,
                groups: w
                    .groups
                    .iter()
                    .map(|g| {
                        let line = code[g.pc as usize].line;
                        (g.mask, line, self.state.describe(w, g.wait.as_ref()))
                    })
                    .collect(),
            })
            .collect()
    }

    fn deadlock(&mut self) -> Box<Fault> {
        let kind = FaultKind::Deadlock(self.states());
        let w = self
            .warps
            .iter()
            .position(|w| !w.groups.is_empty())
            .unwrap_or(0);
        if let Some(group) = self.warps[w].groups.first() {
            self.state.pc = group.pc;
        }
        self.fault(w, Raise { kind, lane: None })
    }

    fn fault(&self, w: usize, raise: Raise) -> Box<Fault> {
        let launch = self.state.launch;
        let warp = &self.warps[w];
        let line = launch.kernel.code[self.state.pc as usize].line;
        Box::new(Fault {
            kind: raise.kind,
            kernel: launch.kernel.name.clone(),
            line,
            text: source_line(launch.source, line),
            block: self.state.ctas[warp.cta as usize].id,
            thread: raise
                .lane
                .map(|lane| launch.tid(warp.index * LANES as u32 + lane)),
            schedule_seed: launch.config.schedule_seed,
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
    Warp::new(regs, Local::new(kernel.local_bytes), live, rank, index)
}

impl State<'_> {
    /// Is the wait of a group of `warp` over?
    pub(super) fn is_over(&self, warp: &Warp, wait: &Wait) -> bool {
        match *wait {
            Wait::Barrier { id, generation } => {
                self.ctas[warp.cta as usize].barriers[id as usize].generation != generation
            }
            // Woken by the lane that completes the set.
            Wait::WarpBarrier { .. } | Wait::Converge { .. } => false,
            _ => false,
        }
    }

    /// A wait in words, for reports.
    fn describe(&self, warp: &Warp, wait: Option<&Wait>) -> String {
        match wait {
            None => "running".into(),
            Some(Wait::Barrier { id, .. }) => {
                let barrier = &self.ctas[warp.cta as usize].barriers[*id as usize];
                format!("waits at {}", barrier.describe(*id))
            }
            Some(Wait::WarpBarrier { mask }) => {
                format!("waits at `bar.warp.sync` for lanes {mask:#010x}")
            }
            Some(Wait::Converge { mask }) => {
                format!("waits for the other members; lanes {mask:#010x} are here")
            }
            Some(other) => format!("{other:?}"),
        }
    }

    /// Lets a group go on, first finishing what it waited for.
    fn resume(&mut self, warp: &mut Warp, g: usize, slice: u32) -> Exec<()> {
        self.wake(warp, g);
        self.run_group(warp, g, slice)
    }
}
