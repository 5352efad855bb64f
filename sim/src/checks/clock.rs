//! Vector clocks: what each thread has seen of the others' past (Lamport; Mattern, "Virtual Time and Global States",
//! 1989).
//!
//! A *slot* is a thread of the cluster or an asynchronous agent (an mbarrier's transactions, a
//! warpgroup's `wgmma`s). A thread's clock value is its warp's time; the time of a warp advances at
//! each of its releases and proxy fences. An access at time c by slot s happens before thread t's next
//! one if t has seen s at c or later.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::grids::Complete;

/// Latest time seen of each slot; slots beyond the end were never seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u32>);

impl Clock {
    pub(crate) fn new(slots: usize) -> Self {
        Self(vec![0; slots])
    }

    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> u32 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    /// Every slot that may have been seen.
    pub(crate) fn slots(&self) -> std::ops::Range<u32> {
        0..self.0.len() as u32
    }

    /// Raises a slot to at least `time`.
    pub(crate) fn raise(&mut self, slot: u32, time: u32) {
        let slot = slot as usize;
        if slot >= self.0.len() {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = self.0[slot].max(time);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        if other.0.len() > self.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Whether joining `other` would change nothing.
    fn covers(&self, other: &Self) -> bool {
        let (mine, theirs) = (&self.0, &other.0);
        let both = mine.len().min(theirs.len());
        // Without a way out of the loop, so that it is one of vectors.
        let mut behind = false;
        for (mine, theirs) in mine[..both].iter().zip(&theirs[..both]) {
            behind |= mine < theirs;
        }
        !behind && theirs[both..].iter().all(|&time| time == 0)
    }

    /// Lanes of `warp` whose time is below `time`.
    #[inline(always)]
    pub(crate) fn behind(&self, warp: u32, time: u32) -> u32 {
        let start = warp as usize * crate::exec::LANES;
        let mut mask = 0;
        for (lane, &seen) in self.0[start..start + crate::exec::LANES].iter().enumerate() {
            mask |= u32::from(seen < time) << lane;
        }
        mask
    }
}

/// Clocks that other clusters published through global memory, by cluster.
pub(crate) type Foreign = BTreeMap<u64, Arc<Clock>>;

/// Events that happened before, as a thread, barrier or memory location knows them.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Events that happened before.
    pub(crate) seen: Arc<Clock>,
    /// Events that happened before with a generic-async proxy fence on the way.
    pub(crate) fenced: Arc<Clock>,
    pub(crate) foreign: Option<Arc<Foreign>>,
    /// Accesses beyond `seen` that are over, though writes among them may not be visible.
    pub(crate) over: Option<Arc<Clock>>,
    pub(crate) complete: Complete,
}

impl Known {
    pub(crate) fn nothing(slots: usize) -> Self {
        let empty = Arc::new(Clock::new(slots));
        Self {
            seen: empty.clone(),
            fenced: empty,
            foreign: None,
            over: None,
            complete: Complete::default(),
        }
    }

    /// Is it the very same knowledge (not merely an equal one)?
    pub(crate) fn same(&self, other: &Self) -> bool {
        let foreign = match (&self.foreign, &other.foreign) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let over = match (&self.over, &other.over) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        foreign
            && over
            && self.complete == other.complete
            && Arc::ptr_eq(&self.seen, &other.seen)
            && Arc::ptr_eq(&self.fenced, &other.fenced)
    }

    /// The part of this that does not depend on writes being visible: reads are over, and asynchronous operations,
    /// whose slots begin at `agents`, are complete.
    pub(crate) fn over(&self, agents: u32) -> Self {
        let mut seen = (*self.seen).clone();
        seen.0[..agents as usize].fill(0);
        let mut over = self.seen.clone();
        if let Some(more) = &self.over {
            join_arc(&mut over, more);
        }
        Self {
            seen: Arc::new(seen),
            fenced: self.fenced.clone(),
            over: Some(over),
            ..Self::nothing(agents as usize)
        }
    }

    pub(crate) fn join(&mut self, other: &Self) {
        join_arc(&mut self.seen, &other.seen);
        join_arc(&mut self.fenced, &other.fenced);
        match (&mut self.over, &other.over) {
            (Some(mine), Some(theirs)) => join_arc(mine, theirs),
            (none @ None, theirs) => none.clone_from(theirs),
            (Some(_), None) => {}
        }
        self.complete.join(other.complete);
        let Some(theirs) = &other.foreign else { return };
        let mine = Arc::make_mut(self.foreign.get_or_insert_with(Arc::default));
        for (&cluster, clock) in theirs.iter() {
            match mine.get_mut(&cluster) {
                Some(known) => join_arc(known, clock),
                None => {
                    mine.insert(cluster, clock.clone());
                }
            }
        }
    }

    /// Has `cluster`'s slot been seen at `time`?
    pub(crate) fn seen_foreign(&self, cluster: u64, slot: u32, time: u32) -> bool {
        self.foreign
            .as_ref()
            .and_then(|f| f.get(&cluster))
            .is_some_and(|clock| clock.get(slot) >= time)
    }
}

fn join_arc(mine: &mut Arc<Clock>, theirs: &Arc<Clock>) {
    if Arc::ptr_eq(mine, theirs) || mine.covers(theirs) {
        return;
    }
    // Shared where it can be: those who leave a barrier then know the same thing, not merely an equal one.
    if theirs.covers(mine) {
        mine.clone_from(theirs);
    } else {
        Arc::make_mut(mine).join(theirs);
    }
}

/// Updates several knowledges, computing each distinct result once.
pub(crate) fn update_all<'k>(
    all: impl Iterator<Item = &'k mut Known>,
    update: impl Fn(&mut Known),
) {
    let mut last: Option<(Known, Known)> = None;
    for known in all {
        match &last {
            Some((before, after)) if before.same(known) => *known = after.clone(),
            _ => {
                let before = known.clone();
                update(known);
                last = Some((before, known.clone()));
            }
        }
    }
}
