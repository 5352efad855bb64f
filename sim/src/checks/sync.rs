//! Events that order threads: barriers and fences.

use crate::exec::{State, WarpId};
use crate::ir::Fence;

impl State<'_> {
    /// The lanes of `m` arrive at CTA barrier `id`.
    pub(crate) fn barrier_arrives(&mut self, warp: WarpId, m: u32, id: u32) {
        if let Some(races) = self.races.as_deref_mut() {
            let gate = &mut races.gates[warp.cta as usize][id as usize];
            let nothing = races.threads.nothing();
            let gathering = gate.gathering.get_or_insert(nothing);
            races.threads.release(warp, m, gathering);
        }
    }

    pub(crate) fn barrier_opens(&mut self, cta: u32, id: u32) {
        if let Some(races) = self.races.as_deref_mut() {
            let gate = &mut races.gates[cta as usize][id as usize];
            gate.opened = gate.gathering.take();
        }
    }

    /// The lanes of `m` go on behind CTA barrier `id`.
    pub(crate) fn barrier_synchronises(&mut self, warp: WarpId, m: u32, id: u32) {
        if let Some(races) = self.races.as_deref_mut() {
            let gate = &races.gates[warp.cta as usize][id as usize];
            if let Some(opened) = &gate.opened {
                races.threads.acquire(warp, m, opened);
            }
        }
    }

    /// The time of a warp, for [`Self::follows`].
    pub(crate) fn clock(&self, warp: WarpId) -> u32 {
        self.races.as_deref().map_or(0, |r| r.threads.now(warp))
    }

    /// Whether what warp `other` of the CTA did at `time` is ordered before `warp`'s next instruction. Always `true` if
    /// order is not checked.
    pub(crate) fn follows(&self, warp: WarpId, other: u32, time: u32) -> bool {
        let other = WarpId {
            index: other,
            number: warp.number - warp.index + other,
            ..warp
        };
        self.races.as_deref().is_none_or(|races| {
            let (me, they) = (races.threads.slot(warp, 0), races.threads.slot(other, 0));
            races.threads.ordered(me, they, time)
        })
    }

    /// `bar.warp.sync`: the lanes of `mask` know each other's past.
    pub(crate) fn warp_synchronises(&mut self, warp: WarpId, mask: u32) {
        if let Some(races) = self.races.as_deref_mut() {
            let mut all = races.threads.nothing();
            races.threads.release(warp, mask, &mut all);
            races.threads.acquire(warp, mask, &all);
        }
    }

    /// The lanes of `m` arrive at the cluster barrier.
    pub(crate) fn cluster_arrives(&mut self, warp: WarpId, m: u32, release: bool) {
        if let Some(races) = self.races.as_deref_mut() {
            let nothing = races.threads.nothing();
            let gathering = races.cluster_gate.gathering.get_or_insert(nothing);
            if release {
                races.threads.release(warp, m, gathering);
            }
        }
    }

    pub(crate) fn cluster_opens(&mut self) {
        if let Some(races) = self.races.as_deref_mut() {
            races.cluster_gate.opened = races.cluster_gate.gathering.take();
        }
    }

    /// The lanes of `m` go on behind the cluster barrier.
    pub(crate) fn cluster_synchronises(&mut self, warp: WarpId, m: u32) {
        if let Some(races) = self.races.as_deref_mut()
            && let Some(opened) = &races.cluster_gate.opened
        {
            races.threads.acquire(warp, m, opened);
        }
    }

    pub(crate) fn fence(&mut self, warp: WarpId, m: u32, fence: Fence) {
        if let Some(races) = self.races.as_deref_mut() {
            // From now on the async proxy may use mbarriers that the fencing lanes initialised.
            if let Fence::MbarrierInit | Fence::ProxyAsync { shared: true, .. } = fence {
                let first = races.threads.slot(warp, 0);
                for mbarrier in races.mbarriers.values_mut() {
                    mbarrier.fenced |= mbarrier.initialised_by(first, m);
                }
            }
            match fence {
                Fence::Memory(scope) => races.threads.memory_fence(warp, m, scope),
                // The check covers shared memory; a fence of global memory alone does not help it.
                Fence::ProxyAsync { shared: true, .. } => races.threads.proxy_fence(warp, m),
                Fence::ProxyAsync { .. } | Fence::ProxyOther | Fence::MbarrierInit => {}
            }
        }
    }
}
