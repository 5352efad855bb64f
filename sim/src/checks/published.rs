//! Clocks that clusters publish to each other at locations of global memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::Touch;
use super::clock::{Foreign, Known};
use super::grids::Complete;
use super::races::Races;
use crate::exec::{State, WarpId, lanes};
use crate::ir::Scope;

/// Published knowledge, shared by all clusters of a launch, and of those it may overlap with.
#[derive(Default)]
pub(crate) struct Published {
    /// Whether anything was published: most launches publish nothing and skip the lock.
    any: AtomicBool,
    at: Mutex<HashMap<u64, Location>>,
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
struct Location {
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
    /// Releases and acquires by a strong access at its location.
    pub(super) fn global_sync(&mut self, warp: WarpId, touch: &Touch<'_>, rmw: bool) {
        let published = &self.launch.published;
        let Some(races) = self.races.as_deref_mut() else {
            return;
        };
        let cta = (races.cluster, warp.cta);
        for lane in lanes(touch.mask) {
            let (slot, one) = (races.threads.slot(warp, lane), 1 << lane);
            let address = touch.at[lane];
            if (rmw || !touch.write) && published.any.load(Relaxed) {
                let at = published.at.lock().unwrap_or_else(|e| e.into_inner());
                for (needed, left) in at.get(&address).into_iter().flat_map(|l| l.seen_by(cta)) {
                    if touch.scope < needed {
                        continue;
                    }
                    let known = arriving(races, left);
                    if touch.order.acquires() {
                        races.threads.acquire(warp, one, &known);
                    } else {
                        races.threads.finds(slot, needed, &known);
                    }
                }
            }
            if !touch.write {
                continue;
            }
            let mut releases = Vec::new();
            if touch.order.releases() {
                let mut known = races.threads.nothing();
                races.threads.release(warp, one, &mut known);
                releases.push((touch.scope, known));
            } else {
                let fenced = races.threads.published(slot).iter();
                releases.extend(fenced.map(|(s, known)| (touch.scope.min(*s), known.clone())));
            }
            if releases.is_empty() && !published.any.load(Relaxed) {
                continue;
            }
            let mut at = published.at.lock().unwrap_or_else(|e| e.into_inner());
            // A read-modify-write continues the release sequence; a store starts a new one.
            if !rmw {
                at.remove(&address);
            }
            for (scope, known) in releases {
                published.any.store(true, Relaxed);
                let here = at.entry(address).or_default().entry(cta, scope);
                departing(races, &known, here);
            }
        }
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
