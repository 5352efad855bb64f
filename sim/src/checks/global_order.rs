//! Accesses to global memory, in order, within and across clusters.
//!
//! Each two bytes have three words of history: the last write, the last read, and the PTX lines of
//! both. One read is kept, so of several unordered readers the last is checked against a later write.
//! Accesses of single bytes are not tracked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::published::Locations;
use super::races::Races;
use super::shadow::Kind;
use super::{Touch, kind_of};
use crate::exec::{PendingCopy, State, WarpId, lanes};
use crate::fault::{Access, Exec, FaultKind};
use crate::ir::{Order, Scope};

/// Bytes a history entry covers, and its words.
const GRANULE: u64 = 2;
const WORDS: usize = 3;

const TIME_BITS: u32 = 26;
const SLOT_BITS: u32 = 13;
const CLUSTER_BITS: u32 = 23;
const LEVEL_BIT: u32 = TIME_BITS + SLOT_BITS + CLUSTER_BITS;
/// Time of a write still in flight.
pub(crate) const GLOBAL_IN_FLIGHT: u32 = (1 << TIME_BITS) - 1;

/// A packed access: level · cluster · slot · time. The level is 0 for a weak access, else 1 and up by scope.
#[derive(Clone, Copy)]
struct Stamp(u64);

impl Stamp {
    /// A stamp; `scope` is that of a strong access.
    fn new(cluster: u64, slot: u32, time: u32, scope: Option<Scope>) -> Self {
        let level: u64 = match scope {
            None => 0,
            Some(Scope::Cta) => 1,
            Some(Scope::Cluster) => 2,
            Some(Scope::Gpu | Scope::Sys) => 3,
        };
        let cluster = cluster & ((1 << CLUSTER_BITS) - 1);
        let time = u64::from(time.min(GLOBAL_IN_FLIGHT));
        Self(
            time | u64::from(slot) << TIME_BITS
                | cluster << (TIME_BITS + SLOT_BITS)
                | level << LEVEL_BIT,
        )
    }

    fn time(self) -> u32 {
        self.0 as u32 & GLOBAL_IN_FLIGHT
    }

    fn slot(self) -> u32 {
        (self.0 >> TIME_BITS) as u32 & ((1 << SLOT_BITS) - 1)
    }

    fn cluster(self) -> u64 {
        self.0 >> (TIME_BITS + SLOT_BITS) & ((1 << CLUSTER_BITS) - 1)
    }

    fn scope(self) -> Option<Scope> {
        match self.0 >> LEVEL_BIT {
            0 => None,
            1 => Some(Scope::Cta),
            2 => Some(Scope::Cluster),
            _ => Some(Scope::Gpu),
        }
    }
}

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
        let line = u64::from(self.line());
        let first = (offset / GRANULE) as usize;
        let last = ((offset + bytes - 1) / GRANULE) as usize;
        for granule in first..=last {
            let [writer, reader, lines] = entry(history, granule);
            let w = Stamp(writer.load(Relaxed));
            if w.0 != 0 && !races.alike(me, scope, w) && !races.stamp_ordered(me, w) {
                let before = (w, true, lines.load(Relaxed) as u32);
                let at = owner.base + granule as u64 * GRANULE;
                return Err(self.global_fault(races, at, me, mark, before).at(lane));
            }
            if mark.write {
                let r = Stamp(reader.load(Relaxed));
                if r.0 != 0 && !races.stamp_ordered(me, r) {
                    let before = (r, false, (lines.load(Relaxed) >> 32) as u32);
                    let at = owner.base + granule as u64 * GRANULE;
                    return Err(self.global_fault(races, at, me, mark, before).at(lane));
                }
                writer.store(stamp.0, Relaxed);
                reader.store(0, Relaxed);
                lines.store(line, Relaxed);
            } else if scope.is_none() {
                reader.store(stamp.0, Relaxed);
                let old = lines.load(Relaxed) & u64::from(u32::MAX);
                lines.store(old | line << 32, Relaxed);
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
            let [writer, ..] = entry(history, granule as usize);
            if writer.load(Relaxed) == flying.0 {
                writer.store(landed.0, Relaxed);
            }
        }
    }

    fn global_fault(
        &self,
        races: &Races,
        address: u64,
        me: u32,
        mark: &Mark,
        (stamp, was_write, line): (Stamp, bool, u32),
    ) -> FaultKind {
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
            what: verb(was_write, stamp.scope().is_some()),
            who,
            line,
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

fn entry(history: &[AtomicU64], granule: usize) -> [&AtomicU64; WORDS] {
    let start = granule * WORDS;
    std::array::from_fn(|i| &history[start + i])
}
