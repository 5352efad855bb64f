//! Scopes: which acquiring threads synchronise with which releasing threads at one location (PTX ISA §8.7: an operation
//! synchronises with another only if the scope of each includes the other's thread).

use super::clock::Known;
use super::threads::Threads;
use crate::exec::WarpId;
use crate::ir::Scope;

/// Clock released by threads of one CTA at a location, with cluster scope or wider (`wide`), or with a narrower one.
#[derive(Clone)]
struct Released {
    cta: u32,
    wide: bool,
    known: Known,
}

/// Clocks released at a location of shared memory: one entry per CTA and width, mostly one in all.
#[derive(Clone, Default)]
pub(super) struct Scoped(Vec<Released>);

impl Scoped {
    /// The clock that CTA `cta` releases with `scope`, for the caller to add to.
    pub(super) fn entry(&mut self, cta: u32, scope: Scope, threads: &Threads) -> &mut Known {
        let wide = scope >= Scope::Cluster;
        let at = self.0.iter().position(|r| r.cta == cta && r.wide == wide);
        let at = at.unwrap_or_else(|| {
            self.0.push(Released {
                cta,
                wide,
                known: threads.nothing(),
            });
            self.0.len() - 1
        });
        &mut self.0[at].known
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Known> {
        self.0.iter_mut().map(|r| &mut r.known)
    }

    /// All released clocks, whatever the scope.
    pub(super) fn everything(&self) -> impl Iterator<Item = &Known> {
        self.0.iter().map(|r| &r.known)
    }

    /// The clocks that a thread of CTA `cta` may find here, each with the smallest scope that both sides must have;
    /// `None` if no scope is enough.
    pub(super) fn seen_by(&self, cta: u32) -> impl Iterator<Item = (Option<Scope>, &Known)> {
        self.0.iter().map(move |r| {
            let needed = match (r.cta == cta, r.wide) {
                (true, _) => Some(Scope::Cta),
                (false, true) => Some(Scope::Cluster),
                (false, false) => None,
            };
            (needed, &r.known)
        })
    }
}

impl Threads {
    /// The lanes of `m` acquire from `from` with `scope`. Where one side's scope excludes the other thread, they learn
    /// only that the accesses before the release are over: reads, writes to their own CTA's memory, and asynchronous
    /// operations that were waited for. The bytes may then be overwritten, but the values written may not be visible:
    /// an arrival does not overtake the accesses before it, and kernels rely on that when they hand a buffer back.
    pub(super) fn acquire_scoped(&mut self, warp: WarpId, m: u32, scope: Scope, from: &Scoped) {
        for (needed, known) in from.seen_by(warp.cta) {
            if needed.is_some_and(|needed| scope >= needed) {
                self.acquire(warp, m, known);
            } else {
                let over = known.over(self.slots());
                self.acquire(warp, m, &over);
            }
        }
    }
}
