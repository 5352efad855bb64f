//! Faults with their place, and the states of warps that cannot go on.

use super::cluster::{Cluster, State};
use super::regs::LANES;
use super::warp::{Group, Wait, Warp};
use crate::error::source_line;
use crate::fault::{BlockState, Fault, FaultKind, Raise};

impl Cluster<'_> {
    pub(super) fn states(&self) -> Vec<BlockState> {
        let code = &self.state.launch.kernel.code;
        self.warps
            .iter()
            .map(|w| BlockState {
                block: self.state.ctas[w.id.cta as usize].id,
                warp: w.id.index,
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

    /// A warp all of whose groups wait for lanes that are not in any of them.
    pub(super) fn absent(&self) -> Option<usize> {
        self.warps
            .iter()
            .position(|w| !w.groups.is_empty() && w.groups.iter().all(Group::is_stuck))
    }

    /// The fault of a warp-wide instruction that names lanes waiting elsewhere.
    pub(super) fn partial_warp(&mut self) -> Box<Fault> {
        let w = self.absent().unwrap_or(0);
        let warp = &self.warps[w];
        let here = warp.groups.iter().fold(0, |mask, g| mask | g.mask);
        self.state.pc = warp.groups[0].pc;
        let kind = FaultKind::PartialWarp {
            what: self.state.launch.kernel.opcode(self.state.pc).to_owned(),
            missing: warp.live & !here,
            live: warp.live,
        };
        self.fault(w, Raise { kind, lane: None })
    }

    pub(super) fn deadlock(&mut self) -> Box<Fault> {
        let starved = |w: &Warp| {
            w.groups
                .iter()
                .any(|g| matches!(g.wait, Some(Wait::Registers { .. })))
        };
        let first = self.warps.iter().position(starved);
        let w = first
            .or_else(|| self.warps.iter().position(|w| !w.groups.is_empty()))
            .unwrap_or(0);
        let warp = &self.warps[w];
        let kind = match (first, warp.groups.first()) {
            _ if self.absent().is_some() => return self.partial_warp(),
            (Some(_), Some(group)) => {
                FaultKind::RegisterBudget(self.state.describe(warp, group.wait.as_ref()))
            }
            _ => FaultKind::Deadlock(self.states()),
        };
        if let Some(group) = self.warps[w].groups.first() {
            self.state.pc = group.pc;
        }
        self.fault(w, Raise { kind, lane: None })
    }

    pub(super) fn fault(&self, w: usize, raise: Raise) -> Box<Fault> {
        let launch = self.state.launch;
        let warp = &self.warps[w];
        let line = launch.kernel.code[self.state.pc as usize].line;
        Box::new(Fault {
            kind: raise.kind,
            kernel: launch.kernel.name.clone(),
            line,
            text: source_line(launch.source, line),
            block: self.state.ctas[warp.id.cta as usize].id,
            thread: raise
                .lane
                .map(|lane| launch.tid(warp.id.index * LANES as u32 + lane)),
            schedule_seed: launch.config.schedule_seed,
        })
    }
}

impl State<'_> {
    /// A wait in words, for reports.
    fn describe(&self, warp: &Warp, wait: Option<&Wait>) -> String {
        match wait {
            None => "running".into(),
            Some(Wait::Barrier { id, .. }) => {
                let barrier = &self.ctas[warp.id.cta as usize].barriers[*id as usize];
                format!("waits at {}", barrier.describe(*id))
            }
            Some(Wait::WarpBarrier { mask }) => {
                format!("waits at `bar.warp.sync` for lanes {mask:#010x}")
            }
            Some(Wait::Converge { mask }) => {
                format!("waits for the other members; lanes {mask:#010x} are here")
            }
            Some(Wait::Mbarrier { cta, at, .. }) => match self.mbarriers.get(&(*cta, *at)) {
                Some(m) => format!("waits for {} of CTA rank {cta}", m.describe(*at)),
                None => format!("waits for an mbarrier at {at:#x}"),
            },
            Some(Wait::Cluster { .. }) => format!("waits at {}", self.cluster_gate.describe()),
            Some(Wait::Wgmma { issued }) => self.warpgroup_of(warp.id).describe(*issued),
            Some(Wait::Registers { wanted }) => match &self.ctas[warp.id.cta as usize].pool {
                Some(pool) => pool.describe(warp.id.index, *wanted),
                None => "waits for registers".into(),
            },
        }
    }
}
