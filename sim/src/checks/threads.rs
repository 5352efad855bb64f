//! Every thread's knowledge, and the events that spread it.

use std::sync::Arc;

use super::clock::{Clock, Known, update_all};
use crate::exec::{LANES, WarpId, lanes};
use crate::ir::Scope;

pub(crate) struct Threads {
    /// Time of each warp of the cluster.
    time: Vec<u32>,
    pub(crate) known: Vec<Known>,
    /// Own time up to which a thread's accesses have passed its own proxy fence.
    fenced_own: Vec<u32>,
    /// Clocks that a thread published by its last memory fence of each scope; its relaxed writes carry them.
    released: Vec<Vec<(Scope, Known)>>,
    /// Clocks found by its relaxed reads, each with the scope needed: its next memory fence of such a scope acquires
    /// them.
    found: Vec<Vec<(Scope, Known)>>,
    /// Slot that counts how far a warp's reads are complete, for warps that ever waited for `wgmma`s.
    pub(super) reads: Vec<Option<u32>>,
    warps_per_cta: u32,
    slots: usize,
}

impl Threads {
    pub(crate) fn new(ctas: u32, warps_per_cta: u32) -> Self {
        let warps = (ctas * warps_per_cta) as usize;
        let slots = warps * LANES;
        Self {
            time: vec![1; warps],
            known: vec![Known::nothing(slots); slots],
            fenced_own: vec![0; slots],
            released: vec![Vec::new(); slots],
            found: vec![Vec::new(); slots],
            reads: vec![None; warps],
            warps_per_cta,
            slots,
        }
    }

    /// Number of thread slots; agents follow.
    pub(crate) fn slots(&self) -> u32 {
        self.slots as u32
    }

    pub(crate) fn slot(&self, warp: WarpId, lane: usize) -> u32 {
        warp.number * LANES as u32 + lane as u32
    }

    pub(crate) fn now(&self, warp: WarpId) -> u32 {
        self.time[warp.number as usize]
    }

    /// CTA rank, and thread number in the CTA, of a thread slot.
    pub(crate) fn thread_of(&self, slot: u32) -> (u32, u32) {
        let per_cta = self.warps_per_cta * LANES as u32;
        (slot / per_cta, slot % per_cta)
    }

    /// The clock of a thread that has seen nothing yet.
    pub(crate) fn nothing(&self) -> Known {
        Known::nothing(self.slots)
    }

    /// Adds the knowledge and past accesses of the lanes of `m` to `to`; later accesses are not covered.
    pub(crate) fn release(&mut self, warp: WarpId, m: u32, to: &mut Known) {
        let w = warp.number as usize;
        let now = self.time[w];
        let mut last: Option<usize> = None;
        for lane in lanes(m) {
            let slot = w * LANES + lane;
            // Neighbouring lanes mostly share one clock.
            if last.is_none_or(|l| !self.known[l].same(&self.known[slot])) {
                to.join(&self.known[slot]);
                last = Some(slot);
            }
        }
        let (seen, fenced) = (Arc::make_mut(&mut to.seen), Arc::make_mut(&mut to.fenced));
        for lane in lanes(m) {
            let slot = (w * LANES + lane) as u32;
            seen.raise(slot, now);
            fenced.raise(slot, self.fenced_own[slot as usize]);
        }
        self.time[w] += 1;
    }

    /// The lanes of `m` learn what `from` knows.
    pub(crate) fn acquire(&mut self, warp: WarpId, m: u32, from: &Known) {
        update_all(self.known_of(warp, m), |known| known.join(from));
    }

    /// The lanes of `m` learn that `slot` is past `time`.
    pub(crate) fn learn(&mut self, warp: WarpId, m: u32, slot: u32, time: u32) {
        update_all(self.known_of(warp, m), |known| {
            if known.seen.get(slot) < time {
                Arc::make_mut(&mut known.seen).raise(slot, time);
            }
        });
    }

    /// What each lane of `m` knows.
    fn known_of(&mut self, warp: WarpId, m: u32) -> impl Iterator<Item = &mut Known> {
        let start = warp.number as usize * LANES;
        let of_warp = self.known[start..start + LANES].iter_mut().enumerate();
        of_warp.filter_map(move |(lane, known)| (m >> lane & 1 == 1).then_some(known))
    }

    /// What all lanes of `m` have seen, if they share one knowledge.
    #[inline(always)]
    pub(super) fn known_alike(&self, warp: WarpId, m: u32) -> Option<&Clock> {
        let start = warp.number as usize * LANES;
        let seen = &self.known[start + m.trailing_zeros() as usize % LANES].seen;
        let mut others = lanes(m).map(|lane| &self.known[start + lane].seen);
        others.all(|other| Arc::ptr_eq(seen, other)).then_some(seen)
    }

    /// Has a lane of `m` not seen `slot` at `time`?
    pub(crate) fn lags(&self, warp: WarpId, m: u32, slot: u32, time: u32) -> bool {
        lanes(m).any(|lane| self.seen(self.slot(warp, lane)).get(slot) < time)
    }

    /// The warp's reads so far are complete, and all its lanes know: `slot` counts them.
    pub(super) fn reads_complete(&mut self, warp: WarpId, slot: u32) {
        let now = self.time[warp.number as usize];
        self.reads[warp.number as usize] = Some(slot);
        self.learn(warp, u32::MAX, slot, now);
        self.time[warp.number as usize] += 1;
    }

    /// `fence.proxy.async`: everything known so far, and the lanes' own past, is visible to the async proxy.
    pub(crate) fn proxy_fence(&mut self, warp: WarpId, m: u32) {
        let w = warp.number as usize;
        for lane in lanes(m) {
            let slot = w * LANES + lane;
            self.known[slot].fenced = self.known[slot].seen.clone();
            self.fenced_own[slot] = self.time[w];
        }
        self.time[w] += 1;
    }

    /// A memory fence (`membar`, `fence`): later relaxed writes release, earlier relaxed reads acquire, as far
    /// as its scope reaches.
    pub(crate) fn memory_fence(&mut self, warp: WarpId, m: u32, scope: Scope) {
        let start = warp.number as usize * LANES;
        for lane in lanes(m) {
            for (_, found) in
                self.found[start + lane].extract_if(.., |(needed, _)| *needed <= scope)
            {
                self.known[start + lane].join(&found);
            }
        }
        let mut all = self.nothing();
        // One clock per lane: a fence of one lane publishes that lane's past only.
        let now = self.time[start / LANES];
        for lane in lanes(m) {
            all.clone_from(&self.known[start + lane]);
            Arc::make_mut(&mut all.seen).raise((start + lane) as u32, now);
            let fenced = self.fenced_own[start + lane];
            Arc::make_mut(&mut all.fenced).raise((start + lane) as u32, fenced);
            let released = &mut self.released[start + lane];
            released.retain(|(wider, _)| *wider > scope);
            released.push((scope, all.clone()));
        }
        self.time[start / LANES] += 1;
    }

    /// Clocks that a relaxed write of this thread publishes, by the scope of the fence before it.
    pub(crate) fn published(&self, slot: u32) -> &[(Scope, Known)] {
        &self.released[slot as usize]
    }

    /// A relaxed read found a location that publishes `from` to threads within `needed`.
    pub(crate) fn finds(&mut self, slot: u32, needed: Scope, from: &Known) {
        let found = &mut self.found[slot as usize];
        match found.iter_mut().find(|(scope, _)| *scope == needed) {
            Some((_, found)) => found.join(from),
            None => found.push((needed, from.clone())),
        }
    }

    /// Whether two slots are threads of one CTA.
    pub(crate) fn same_cta(&self, a: u32, b: u32) -> bool {
        self.thread_of(a).0 == self.thread_of(b).0
    }

    /// Whether `slot`'s time `time` would happen before the next access of thread `me` if scopes were larger.
    pub(crate) fn is_over(&self, me: u32, slot: u32, time: u32) -> bool {
        self.over(me).is_some_and(|over| over.get(slot) >= time)
    }

    /// Whether thread `me` may overwrite what `slot` wrote at `time` to CTA `rank`'s memory. A write to its own CTA's
    /// shared memory may be overwritten once it is known to be over, visible or not.
    #[inline(never)]
    pub(crate) fn overwritable(&self, me: u32, slot: u32, time: u32, rank: u32) -> bool {
        self.is_over(me, slot, time) && self.thread_of(slot).0 == rank
    }

    /// Accesses that are over for thread `me`, beyond what it has seen.
    #[inline(always)]
    pub(crate) fn over(&self, me: u32) -> Option<&Clock> {
        self.known[me as usize].over.as_deref()
    }

    /// Whether `slot`'s time `time` happens before the next access of thread `me`.
    #[inline(always)]
    pub(crate) fn ordered(&self, me: u32, slot: u32, time: u32) -> bool {
        slot == me || self.known[me as usize].seen.get(slot) >= time
    }

    /// [`Self::ordered`], with a proxy fence on the way.
    #[inline(always)]
    pub(crate) fn fenced(&self, me: u32, slot: u32, time: u32) -> bool {
        let time_seen = if slot == me {
            self.fenced_own[me as usize]
        } else {
            self.known[me as usize].fenced.get(slot)
        };
        time_seen >= time
    }

    #[inline(always)]
    pub(crate) fn seen(&self, me: u32) -> &Clock {
        &self.known[me as usize].seen
    }
}
