//! Spreading the clusters of a launch over the CPU's cores.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cluster::{Cluster, State, Status};
use super::launch::Launch;
use crate::fault::Fault;
use crate::stats::Counters;

/// Warp instructions a cluster runs before another gets the core: clusters that wait for each other
/// through global memory all make progress.
const QUANTUM: u64 = 2_000_000;

/// Clusters begun and set aside, at most; beyond, old ones run before new ones start.
const MAX_SUSPENDED: usize = 64;

/// What the clusters of a launch did.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) instructions: u64,
    pub(super) counters: Option<Box<Counters>>,
    /// The fault of the lowest-numbered failing cluster.
    pub(super) fault: Option<(u64, Box<Fault>)>,
}

/// Runs clusters `0..total` on rayon's current pool.
pub(super) fn run(launch: &Launch<'_>, total: u64) -> Outcome {
    let work = Work {
        launch,
        total,
        next: AtomicU64::new(0),
        stop: AtomicU64::new(u64::MAX),
        suspended: Mutex::new(VecDeque::new()),
        outcome: Mutex::new(Outcome::default()),
    };
    let workers = rayon::current_num_threads().min(total.try_into().unwrap_or(usize::MAX));
    rayon::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|_| work.run());
        }
    });
    work.outcome.into_inner().unwrap_or_else(|e| e.into_inner())
}

struct Work<'l> {
    launch: &'l Launch<'l>,
    total: u64,
    next: AtomicU64,
    /// Clusters from here on need not run: an earlier one failed.
    stop: AtomicU64,
    suspended: Mutex<VecDeque<(u64, Box<Cluster<'l>>)>>,
    outcome: Mutex<Outcome>,
}

impl<'l> Work<'l> {
    fn suspended(&self) -> std::sync::MutexGuard<'_, VecDeque<(u64, Box<Cluster<'l>>)>> {
        self.suspended.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next cluster to run: a new one while few are set aside, else the oldest of those.
    fn take(&self) -> Option<(u64, Box<Cluster<'l>>)> {
        if self.suspended().len() < MAX_SUSPENDED {
            let index = self.next.fetch_add(1, Relaxed);
            if index < self.total && index < self.stop.load(Relaxed) {
                return Some((index, Box::new(Cluster::new(self.launch, index))));
            }
        }
        self.suspended().pop_front()
    }

    fn run(&self) {
        while let Some((index, mut cluster)) = self.take() {
            if index > self.stop.load(Relaxed) {
                continue;
            }
            match cluster.run(QUANTUM) {
                Ok(Status::Preempted) => self.suspended().push_back((index, cluster)),
                Ok(Status::Done) => self.finish(cluster.state),
                Err(fault) => {
                    self.stop.fetch_min(index, Relaxed);
                    let mut outcome = self.outcome.lock().unwrap_or_else(|e| e.into_inner());
                    if outcome.fault.as_ref().is_none_or(|(i, _)| index < *i) {
                        outcome.fault = Some((index, fault));
                    }
                }
            }
        }
    }

    fn finish(&self, state: State<'l>) {
        let mut outcome = self.outcome.lock().unwrap_or_else(|e| e.into_inner());
        outcome.instructions += state.instructions;
        match (&mut outcome.counters, state.counters) {
            (Some(total), Some(mine)) => total.add(&mine),
            (total @ None, mine) => *total = mine,
            (Some(_), None) => {}
        }
    }
}
