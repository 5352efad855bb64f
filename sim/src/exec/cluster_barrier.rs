//! `barrier.cluster` (PTX ISA §9.7.13.4).

use super::cluster::State;
use super::warp::{Wait, Warp};
use crate::fault::{Exec, FaultKind};
use crate::ir::ClusterBarrier;

/// The barrier of a cluster's threads.
pub(crate) struct ClusterGate {
    pub(super) generation: u64,
    /// Lanes of each warp that arrived for this generation, and all lanes that have not exited.
    arrived: Vec<u32>,
    live: Vec<u32>,
    /// Lanes that arrived and have not waited yet.
    owing: Vec<u32>,
}

impl ClusterGate {
    pub(super) fn new(live: Vec<u32>) -> Self {
        Self {
            generation: 0,
            arrived: vec![0; live.len()],
            owing: vec![0; live.len()],
            live,
        }
    }

    /// Opens if every live thread has arrived; exited ones need not.
    fn check(&mut self) -> bool {
        let here = |(arrived, live): (&u32, &u32)| arrived & live == *live;
        let any = self.arrived.iter().any(|&a| a != 0);
        if !any || !self.arrived.iter().zip(&self.live).all(here) {
            return false;
        }
        self.generation += 1;
        self.arrived.fill(0);
        true
    }

    pub(super) fn describe(&self) -> String {
        let arrived = self.arrived.iter().filter(|&&a| a != 0).count();
        format!(
            "the cluster barrier ({arrived} of {} warps arrived)",
            self.arrived.len()
        )
    }
}

impl State<'_> {
    pub(super) fn cluster_barrier(
        &mut self,
        warp: &Warp,
        m: u32,
        what: ClusterBarrier,
    ) -> Exec<Option<Wait>> {
        let w = warp.id.number as usize;
        match what {
            ClusterBarrier::Arrive { release } => {
                if self.cluster_gate.owing[w] & m != 0 {
                    return Err(FaultKind::Barrier(
                        "`barrier.cluster.arrive` twice without a wait between".into(),
                    )
                    .into());
                }
                self.cluster_gate.owing[w] |= m;
                self.cluster_gate.arrived[w] |= m;
                self.cluster_arrives(warp.id, m, release);
                self.cluster_check();
                Ok(None)
            }
            ClusterBarrier::Wait { .. } => {
                if self.cluster_gate.owing[w] & m != m {
                    return Err(FaultKind::Barrier(
                        "`barrier.cluster.wait` without an arrive before".into(),
                    )
                    .into());
                }
                if self.cluster_gate.arrived[w] & m != 0 {
                    let generation = self.cluster_gate.generation;
                    return Ok(Some(Wait::Cluster { generation }));
                }
                self.cluster_gate.owing[w] &= !m;
                self.cluster_synchronises(warp.id, m);
                Ok(None)
            }
        }
    }

    fn cluster_check(&mut self) {
        if self.cluster_gate.check() {
            self.cluster_opens();
            self.progress();
        }
    }

    /// Lanes of a warp have exited.
    pub(super) fn cluster_exit(&mut self, warp: &Warp) {
        self.cluster_gate.live[warp.id.number as usize] = warp.live;
        self.cluster_check();
    }
}
