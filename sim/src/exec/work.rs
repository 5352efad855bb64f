//! Spreading the clusters of a launch over the CPU's cores.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::cluster::{Cluster, State, Status};
use super::launch::Launch;
use super::order::StartOrder;
use crate::fault::{Fault, FaultKind};
use crate::stats::Counters;

/// Warp instructions a cluster runs before another gets the core: clusters that wait for each other
/// through global memory all make progress.
const QUANTUM: u64 = 2_000_000;

/// Least number of turns of a cluster before the hang guard stops it: the event it waits for may happen meanwhile.
const TURNS: u64 = 64;

/// Fewest warp instructions of a turn.
const MIN_QUANTUM: u64 = 1000;

/// Results of running the clusters of a launch.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) instructions: u64,
    pub(super) asked_in_vain: u64,
    /// Of clusters that followed one another, each.
    counters: Vec<Counters>,
    /// The fault of the failing cluster that started first, and its place in the order. A hang is one only if nothing else
    /// failed.
    pub(super) fault: Option<(u64, Box<Fault>)>,
}

impl Outcome {
    /// Counts of all clusters, if there are any.
    pub(super) fn counters(&mut self) -> Option<Counters> {
        let counters = std::mem::take(&mut self.counters).into_iter();
        counters.reduce(|mut all, some| {
            all.add(&some);
            all
        })
    }
}

/// Runs clusters `0..total` on rayon's current pool.
///
/// As on a GPU, at most [`LaunchConfig::max_resident`](super::LaunchConfig::max_resident) of them are begun and not
/// ended: while there is room new ones start, and beyond, those begun run in turn. A cluster that waits for one
/// which never gets room waits until the hang guard stops it.
pub(super) fn run(launch: &Launch<'_>, total: u64) -> Outcome {
    let config = launch.config;
    let work = Work {
        launch,
        total,
        order: StartOrder::new(config.schedule_seed, total),
        quantum: (config.max_instructions / TURNS).clamp(MIN_QUANTUM, QUANTUM),
        next: AtomicU64::new(0),
        stop: AtomicU64::new(u64::MAX),
        begun: Mutex::new(Begun::default()),
        outcome: Mutex::new(Outcome::default()),
    };
    let useful = total.min(config.max_resident.into());
    let workers = rayon::current_num_threads().min(useful.try_into().unwrap_or(usize::MAX));
    rayon::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|_| work.run());
        }
    });
    work.outcome.into_inner().unwrap_or_else(|e| e.into_inner())
}

/// Clusters that have started and not ended.
#[derive(Default)]
struct Begun<'l> {
    count: u64,
    /// Running clusters whose turn is over, by their places in the order.
    suspended: VecDeque<(u64, Box<Cluster<'l>>)>,
}

struct Work<'l> {
    launch: &'l Launch<'l>,
    total: u64,
    order: StartOrder,
    /// Warp instructions of a turn.
    quantum: u64,
    /// Place in the order of the next cluster to start; advanced under the lock of `begun`.
    next: AtomicU64,
    /// Clusters after this place need not run: the one at it failed.
    stop: AtomicU64,
    begun: Mutex<Begun<'l>>,
    outcome: Mutex<Outcome>,
}

impl<'l> Work<'l> {
    fn begun(&self) -> std::sync::MutexGuard<'_, Begun<'l>> {
        self.begun.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The next cluster to run: a new one while there is room, else the one that has waited longest.
    fn take(&self) -> Option<(u64, Box<Cluster<'l>>)> {
        let mut begun = self.begun();
        if begun.count < self.launch.config.max_resident.into() {
            let place = self.next.load(Relaxed);
            if place < self.total && place < self.stop.load(Relaxed) {
                self.next.store(place + 1, Relaxed);
                begun.count += 1;
                drop(begun);
                let index = self.order.cluster(place);
                let cluster = Cluster::new(self.launch, index, self.counters());
                return Some((place, Box::new(cluster)));
            }
        }
        begun.suspended.pop_front()
    }

    /// Where a new cluster counts, if something is to be counted: on top of one that has ended, if there is any, as there are as many
    /// counts as instructions.
    fn counters(&self) -> Option<Counters> {
        let checks = self.launch.checks;
        (checks.statistics || checks.coverage).then(|| {
            let known = self.outcome().counters.pop();
            known.unwrap_or_else(|| Counters::new(self.launch.kernel.code.len()))
        })
    }

    fn outcome(&self) -> std::sync::MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn run(&self) {
        while let Some((place, mut cluster)) = self.take() {
            if place > self.stop.load(Relaxed) {
                continue;
            }
            match cluster.run(self.quantum) {
                Ok(Status::Preempted) => {
                    self.begun().suspended.push_back((place, cluster));
                    continue;
                }
                Ok(Status::Done) => self.finish(cluster.state),
                Err(fault) => self.fail(place, fault),
            }
            self.begun().count -= 1;
        }
    }

    fn fail(&self, place: u64, mut fault: Box<Fault>) {
        self.stop.fetch_min(place, Relaxed);
        if let FaultKind::Hang { not_started, .. } = &mut fault.kind {
            *not_started = self.total - self.next.load(Relaxed);
        }
        // What a cluster waits for may never come because the one that was to bring it has failed.
        let rank = |place: u64, fault: &Fault| {
            let is_hang = matches!(fault.kind, FaultKind::Hang { .. });
            (is_hang, place)
        };
        let mut outcome = self.outcome();
        let known = outcome.fault.as_ref().map(|(p, known)| rank(*p, known));
        if known.is_none_or(|known| rank(place, &fault) < known) {
            outcome.fault = Some((place, fault));
        }
    }

    fn finish(&self, state: State<'l>) {
        let mut outcome = self.outcome();
        outcome.instructions += state.instructions;
        outcome.asked_in_vain += state.asked_in_vain;
        outcome.counters.extend(state.counters);
    }
}
