//! Clocks that clusters publish to each other at locations of global memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Touch;
use super::clock::{Foreign, Known};
use super::grids::Complete;
use super::races::Races;
use crate::exec::{State, WarpId, lanes};
use crate::ir::{Order, Scope};

/// Published knowledge, shared by all clusters of a launch, and of those it may overlap with.
#[derive(Default)]
pub(crate) struct Published {
    /// Whether anything was published: most launches publish nothing and skip the lock.
    any: AtomicBool,
    at: Mutex<Locations>,
}

/// What is published, by address.
pub(crate) type Locations = HashMap<u64, Location>;

impl Published {
    /// Keeps other clusters from publishing and learning.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Locations> {
        self.at.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Clocks published at a location, by cluster, and the earlier grids known to be complete.
#[derive(Clone, Default)]
struct Left {
    clusters: Foreign,
    complete: Complete,
}

/// A CTA: its cluster, and its rank there.
type Cta = (u64, u32);

/// Releases at one address.
#[derive(Default)]
pub(crate) struct Location {
    /// Releases with the scope of the GPU, joined, and the CTAs that contributed.
    gpu: Left,
    by: BTreeSet<Cta>,
    /// Releases with a smaller scope, by CTA.
    narrow: Vec<(Cta, Scope, Left)>,
}

impl Location {
    /// The releases that a thread of `cta` may find here, each with the scope it must acquire with.
    fn seen_by(&self, cta: Cta) -> impl Iterator<Item = (Scope, &Left)> {
        // Contributions are not kept apart: if the thread's own CTA contributed, its release is taken to be the one
        // found.
        let cluster = self.by.range((cta.0, 0)..=(cta.0, u32::MAX)).next();
        let needed = match cluster {
            Some(_) if self.by.contains(&cta) => Scope::Cta,
            Some(_) => Scope::Cluster,
            None => Scope::Gpu,
        };
        let gpu = (!self.by.is_empty()).then_some((needed, &self.gpu));
        let narrow = self.narrow.iter().filter_map(move |(by, scope, known)| {
            let wide = by.0 == cta.0 && *scope == Scope::Cluster;
            match *by == cta {
                true => Some((Scope::Cta, known)),
                false => wide.then_some((Scope::Cluster, known)),
            }
        });
        gpu.into_iter().chain(narrow)
    }

    /// The entry to which a thread of `cta` releases with `scope`.
    fn entry(&mut self, cta: Cta, scope: Scope) -> &mut Left {
        if scope >= Scope::Gpu {
            self.by.insert(cta);
            return &mut self.gpu;
        }
        let at = self.narrow.iter().position(|n| (n.0, n.1) == (cta, scope));
        let at = at.unwrap_or_else(|| {
            self.narrow.push((cta, scope, Left::default()));
            self.narrow.len() - 1
        });
        &mut self.narrow[at].2
    }
}

impl State<'_> {
    /// Acquires by a strong load of global memory that has been made.
    pub(crate) fn global_loaded(&mut self, warp: WarpId, touch: &Touch<'_>) {
        let launch = self.launch;
        if touch.order == Order::Weak || !launch.published.any.load(Relaxed) {
            return;
        }
        let locations = launch.published.lock();
        if let Some(races) = self.races.as_deref_mut() {
            for lane in lanes(touch.mask) {
                learn(races, warp, lane, touch, &locations);
            }
        }
    }

    /// Releases by a strong store to global memory that is about to be made; it starts a new release sequence.
    pub(super) fn global_storing(&mut self, warp: WarpId, touch: &Touch<'_>) {
        let published = &self.launch.published;
        let Some(races) = self.races.as_deref_mut() else {
            return;
        };
        for lane in lanes(touch.mask) {
            let releases = releases(races, warp, lane, touch);
            if releases.is_empty() && !published.any.load(Relaxed) {
                continue;
            }
            let mut locations = published.lock();
            locations.remove(&touch.at[lane]);
            publish(races, warp, touch.at[lane], releases, &mut locations);
            published.any.store(true, Relaxed);
        }
    }

    /// Acquires and releases by atomics, which are made before `locations` is unlocked: else another cluster's could come
    /// between, and be ordered the other way than memory has it. An atomic continues the release sequence.
    pub(super) fn global_updating(
        &mut self,
        warp: WarpId,
        touch: &Touch<'_>,
        locations: &mut Locations,
    ) {
        let published = &self.launch.published;
        let Some(races) = self.races.as_deref_mut() else {
            return;
        };
        for lane in lanes(touch.mask) {
            learn(races, warp, lane, touch, locations);
            let releases = releases(races, warp, lane, touch);
            if !releases.is_empty() {
                publish(races, warp, touch.at[lane], releases, locations);
                published.any.store(true, Relaxed);
            }
        }
    }
}

/// Takes in what is published where a lane has read.
fn learn(races: &mut Races, warp: WarpId, lane: usize, touch: &Touch<'_>, locations: &Locations) {
    let Some(location) = locations.get(&touch.at[lane]) else {
        return;
    };
    for (needed, left) in location.seen_by((races.cluster, warp.cta)) {
        if touch.scope < needed {
            continue;
        }
        let known = arriving(races, left);
        if touch.order.acquires() {
            races.threads.acquire(warp, 1 << lane, &known);
        } else {
            let slot = races.threads.slot(warp, lane);
            races.threads.finds(slot, needed, &known);
        }
    }
}

/// What a lane's write releases, by scope.
fn releases(
    races: &mut Races,
    warp: WarpId,
    lane: usize,
    touch: &Touch<'_>,
) -> Vec<(Scope, Known)> {
    if touch.order.releases() {
        let mut known = races.threads.nothing();
        races.threads.release(warp, 1 << lane, &mut known);
        return vec![(touch.scope, known)];
    }
    let slot = races.threads.slot(warp, lane);
    let fenced = races.threads.published(slot).iter();
    let of_scope = |(s, known): &(Scope, Known)| (touch.scope.min(*s), known.clone());
    fenced.map(of_scope).collect()
}

/// Adds what a thread of `warp` releases to what is published at `address`.
fn publish(
    races: &Races,
    warp: WarpId,
    address: u64,
    releases: Vec<(Scope, Known)>,
    locations: &mut Locations,
) {
    let cta = (races.cluster, warp.cta);
    for (scope, known) in releases {
        let here = locations.entry(address).or_default().entry(cta, scope);
        departing(races, &known, here);
    }
}

/// Published knowledge, as a thread of this cluster learns it.
fn arriving(races: &Races, left: &Left) -> Known {
    let mut known = races.threads.nothing();
    let mut others = left.clusters.clone();
    if let Some(own) = others.remove(&races.cluster) {
        known.seen = own;
    }
    known.complete = left.complete;
    known.foreign = Some(Arc::new(others));
    known
}

/// Adds a thread's knowledge to what is published at a location.
fn departing(races: &Races, known: &Known, here: &mut Left) {
    here.complete.join(known.complete);
    let others = known.foreign.iter().flat_map(|f| f.iter());
    let own = std::iter::once((&races.cluster, &known.seen));
    for (&cluster, clock) in others.chain(own) {
        match here.clusters.get_mut(&cluster) {
            Some(old) => Arc::make_mut(old).join(clock),
            None => {
                here.clusters.insert(cluster, clock.clone());
            }
        }
    }
}
