//! Scopes: which of the threads that acquire at a place learn from which that released there (PTX ISA §8.7:
//! an operation synchronises with another only if the scope of each includes the other's thread).

use super::clock::Known;
use super::threads::Threads;
use crate::exec::WarpId;
use crate::ir::Scope;

/// What threads of one CTA released at a place, with a scope of the cluster or more (`wide`) or less.
#[derive(Clone)]
struct Released {
    cta: u32,
    wide: bool,
    known: Known,
}

/// What was released at a place of shared memory: one entry a CTA and width, mostly one in all.
#[derive(Clone, Default)]
pub(super) struct Scoped(Vec<Released>);

impl Scoped {
    /// The knowledge that CTA `cta` releases with `scope`, to be added to.
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

    /// What was released, whatever the scope.
    pub(super) fn everything(&self) -> impl Iterator<Item = &Known> {
        self.0.iter().map(|r| &r.known)
    }

    /// What is there for a thread of CTA `cta`: the smallest scope that both sides must have for it, if any
    /// will do, and the knowledge.
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
    /// The lanes of `m` acquire at `from` with `scope`. Where one side's scope leaves the other out they learn
    /// only that what came before is over: reads, writes to the own CTA's memory, and asynchronous operations that
    /// were waited for. So the bytes may be overwritten, but what was written may not be visible: an arrival does
    /// not overtake the accesses before it, and kernels rely on that when they hand a buffer back.
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
