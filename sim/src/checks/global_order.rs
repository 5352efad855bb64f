//! Accesses to global memory, in order, within and across clusters.
//!
//! Each two bytes have a [past](super::global_past) that accesses are checked against. Accesses of single bytes are not tracked.

use super::global_past::{GLOBAL_IN_FLIGHT, Past, Stamp, WORDS, Which};
use super::published::Locations;
use super::races::Races;
use super::shadow::Kind;
use super::{Touch, kind_of};
use crate::exec::{PendingCopy, State, WarpId, lanes};
use crate::fault::{Access, Exec, FaultKind};
use crate::ir::{Order, Scope};

/// Bytes that have one past.
const GRANULE: u64 = 2;

/// How an access counts for the order of global memory.
pub(crate) struct Mark {
    pub(crate) write: bool,
    pub(crate) kind: Kind,
    /// Scope of a strong access.
    pub(crate) scope: Scope,
    /// Set for an access in flight, in place of the warp's time.
    pub(crate) time: Option<u32>,
}

impl Mark {
    /// The source of a bulk copy.
    pub(crate) const ASYNC_READ: Self = Self {
        write: false,
        kind: Kind::Async,
        scope: Scope::Sys,
        time: None,
    };

    fn of(touch: &Touch<'_>, rmw: bool) -> Self {
        Self {
            write: touch.write,
            kind: if rmw {
                Kind::Strong
            } else {
                kind_of(touch.order)
            },
            scope: touch.scope,
            time: None,
        }
    }
}

impl Races {
    /// Whether an access of thread `me` and the stamped one are morally strong: both strong, and each in the other's
    /// scope. `scope` is `None` for a weak access.
    fn alike(&self, me: u32, scope: Option<Scope>, stamp: Stamp) -> bool {
        let (Some(mine), Some(theirs)) = (scope, stamp.scope()) else {
            return false;
        };
        let scope = mine.min(theirs);
        scope >= Scope::Gpu
            || stamp.cluster() == self.cluster
                && (scope >= Scope::Cluster || self.threads.same_cta(me, stamp.slot()))
    }

    /// Whether thread `me` is of the CTA that made the stamped access.
    pub(super) fn of_same_cta(&self, me: u32, stamp: Stamp) -> bool {
        stamp.cluster() == self.cluster && self.threads.same_cta(me, stamp.slot())
    }

    /// The access in `past` that one of thread `me` conflicts with: neither ordered before it nor morally strong with it.
    #[inline(always)]
    fn conflict(
        &self,
        past: &Past<'_>,
        me: u32,
        scope: Option<Scope>,
        write: bool,
    ) -> Option<Which> {
        let conflicts = |which: &Which| {
            let stamp = past.get(*which);
            stamp.is_some_and(|s| !self.alike(me, scope, s) && !self.stamp_ordered(me, s))
        };
        let writes = [Which::LastWrite, Which::OtherWrite];
        let of_writes = writes.into_iter().find(conflicts);
        of_writes.or_else(|| write.then_some(Which::Read).filter(conflicts))
    }

    /// Whether any later access that does not conflict with `new`, by thread `me`, does not conflict with `old` either. What is
    /// ordered after `new` is ordered after `old` if `new` is; what is morally strong with `new` is so with `old` if that has
    /// as large a scope in the same CTA.
    pub(super) fn stands_for(&self, me: u32, new: Stamp, old: Stamp) -> bool {
        let reaches =
            new.scope().is_none() || old.scope() >= new.scope() && self.of_same_cta(me, old);
        reaches && self.stamp_ordered(me, old)
    }

    /// Is the stamped access ordered before thread `me`'s next one?
    fn stamp_ordered(&self, me: u32, stamp: Stamp) -> bool {
        if stamp.time() == GLOBAL_IN_FLIGHT {
            return false;
        }
        if stamp.cluster() == self.cluster {
            self.threads.ordered(me, stamp.slot(), stamp.time())
        } else {
            let (cluster, known) = (stamp.cluster(), &self.threads.known[me as usize]);
            known.complete.contains(cluster)
                || known.seen_foreign(cluster, stamp.slot(), stamp.time())
        }
    }
}

impl State<'_> {
    /// Checks and enters an access; a strong load that has been made is followed by [`global_loaded`](Self::global_loaded).
    pub(crate) fn global_access(&mut self, warp: WarpId, touch: &Touch<'_>) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        let mark = Mark::of(touch, false);
        for lane in lanes(touch.mask) {
            self.global_touch(warp, lane, touch.at[lane], touch.bytes.into(), &mark)?;
        }
        if touch.write && touch.order != Order::Weak {
            self.global_storing(warp, touch);
        }
        Ok(())
    }

    pub(super) fn global_atomic(
        &mut self,
        warp: WarpId,
        touch: &Touch<'_>,
        locations: &mut Locations,
    ) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        let mark = Mark::of(touch, true);
        for lane in lanes(touch.mask) {
            self.global_touch(warp, lane, touch.at[lane], touch.bytes.into(), &mark)?;
        }
        self.global_updating(warp, touch, locations);
        Ok(())
    }

    /// The source of a finished `cp.async`.
    pub(super) fn global_copy_read(&mut self, warp: WarpId, copy: &PendingCopy) -> Exec<()> {
        let (lane, bytes) = (copy.lane.into(), copy.src_bytes.into());
        let mark = Mark {
            kind: Kind::Plain,
            ..Mark::ASYNC_READ
        };
        self.global_touch(warp, lane, copy.src, bytes, &mark)
    }

    /// Checks and enters one lane's access.
    pub(crate) fn global_touch(
        &self,
        warp: WarpId,
        lane: usize,
        address: u64,
        bytes: u64,
        mark: &Mark,
    ) -> Exec<()> {
        let Some(races) = self.races.as_deref() else {
            return Ok(());
        };
        let (owner, offset) = self.global_range(address, bytes, 1, lane)?;
        if bytes < GRANULE {
            return Ok(());
        }
        let history = self.launch.view.history(owner, GRANULE, WORDS);
        let me = races.threads.slot(warp, lane);
        let scope = (mark.kind == Kind::Strong).then_some(mark.scope);
        let time = mark.time.unwrap_or_else(|| races.threads.now(warp));
        let stamp = Stamp::new(races.cluster, me, time, scope);
        let line = self.line();
        let first = (offset / GRANULE) as usize;
        let last = ((offset + bytes - 1) / GRANULE) as usize;
        for granule in first..=last {
            let past = Past::new(history, granule);
            if let Some(which) = races.conflict(&past, me, scope, mark.write) {
                let at = owner.base + granule as u64 * GRANULE;
                let fault = self.global_fault(races, at, me, mark, (&past, which));
                return Err(fault.at(lane));
            }
            match mark.write {
                true => past.write(races, me, stamp, line),
                false => past.read(races, me, stamp, line),
            }
        }
        Ok(())
    }

    /// Completes a write in flight: from now on it is ordered as a write by its thread now.
    pub(crate) fn global_landed(
        &self,
        warp: WarpId,
        lane: usize,
        address: u64,
        bytes: u64,
        reduces: bool,
    ) {
        let Some(races) = self.races.as_deref() else {
            return;
        };
        let Ok((owner, offset)) = self.global_range(address, bytes, 1, lane) else {
            return;
        };
        let history = self.launch.view.history(owner, GRANULE, WORDS);
        let me = races.threads.slot(warp, lane);
        let scope = reduces.then_some(Scope::Gpu);
        let flying = Stamp::new(races.cluster, me, GLOBAL_IN_FLIGHT, scope);
        let landed = Stamp::new(races.cluster, me, races.threads.now(warp), scope);
        for granule in offset / GRANULE..=(offset + bytes - 1) / GRANULE {
            Past::new(history, granule as usize).land(flying, landed);
        }
    }

    fn global_fault(
        &self,
        races: &Races,
        address: u64,
        me: u32,
        mark: &Mark,
        (past, which): (&Past<'_>, Which),
    ) -> FaultKind {
        let stamp = past.get(which).expect("a conflict was found with it");
        let verb = |write: bool, strong: bool| {
            let what = if write { "write" } else { "read" };
            if strong {
                format!("atomic or volatile {what}")
            } else {
                what.to_owned()
            }
        };
        let now = Box::new(Access {
            what: verb(mark.write, mark.kind == Kind::Strong),
            who: self.who(races, me),
            line: self.line(),
        });
        let own = self.launch.overall(0);
        let earlier = stamp.cluster() < own;
        let who = if stamp.cluster() == races.cluster {
            self.who(races, stamp.slot())
        } else if earlier {
            self.launch.before.who(stamp.cluster(), stamp.slot())
        } else {
            let cluster = stamp.cluster() - own;
            self.launch.shape.thread(cluster, stamp.slot())
        };
        let before = Box::new(Access {
            what: verb(which != Which::Read, stamp.scope().is_some()),
            who,
            line: past.line(which),
        });
        if stamp.time() == GLOBAL_IN_FLIGHT {
            return FaultKind::AsyncInFlight(format!(
                "{now} of global address {address:#x}, which the unfinished {before} still uses"
            ));
        }
        if earlier {
            return FaultKind::GridOverlap {
                address,
                now,
                before,
            };
        }
        if mark.kind == Kind::Strong && stamp.scope().is_some() {
            return FaultKind::Scope {
                space: "global",
                address,
                now,
                before,
            };
        }
        FaultKind::Race {
            space: "global",
            address,
            now,
            before,
        }
    }
}
