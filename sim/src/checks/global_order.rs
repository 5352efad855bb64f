//! Accesses to global memory, in order, within and across clusters.
//!
//! Each two bytes have three words of history: the last write, the last read, and the PTX lines of
//! both. One read is kept, so of several unordered readers the last is checked against a later write.
//! Accesses of single bytes are not tracked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::clock::{Foreign, Known};
use super::races::Races;
use super::shadow::Kind;
use super::{Touch, kind_of};
use crate::exec::{PendingCopy, State, WarpId, lanes};
use crate::fault::{Access, Exec, FaultKind};
use crate::ir::Order;

/// Bytes a history entry covers, and its words.
const GRANULE: u64 = 2;
const WORDS: usize = 3;

const TIME_BITS: u32 = 26;
const SLOT_BITS: u32 = 13;
const CLUSTER_BITS: u32 = 24;
/// Time of a write still in flight.
pub(crate) const GLOBAL_IN_FLIGHT: u32 = (1 << TIME_BITS) - 1;

/// A packed access: strong · cluster · slot · time.
#[derive(Clone, Copy)]
struct Stamp(u64);

impl Stamp {
    fn new(cluster: u64, slot: u32, time: u32, strong: bool) -> Self {
        let cluster = cluster & ((1 << CLUSTER_BITS) - 1);
        let time = u64::from(time.min(GLOBAL_IN_FLIGHT));
        Self(
            time | u64::from(slot) << TIME_BITS
                | cluster << (TIME_BITS + SLOT_BITS)
                | u64::from(strong) << 63,
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

    fn strong(self) -> bool {
        self.0 >> 63 == 1
    }
}

/// What clusters published at global locations, shared by all of a launch.
#[derive(Default)]
pub(crate) struct Published {
    /// Whether anything was: most launches publish nothing and skip the lock.
    any: AtomicBool,
    at: Mutex<HashMap<u64, Foreign>>,
}

impl Races {
    /// Is the stamped access ordered before thread `me`'s next one?
    fn stamp_ordered(&self, me: u32, stamp: Stamp) -> bool {
        if stamp.time() == GLOBAL_IN_FLIGHT {
            return false;
        }
        if stamp.cluster() == self.cluster {
            self.threads.ordered(me, stamp.slot(), stamp.time())
        } else {
            self.threads.known[me as usize].seen_foreign(
                stamp.cluster(),
                stamp.slot(),
                stamp.time(),
            )
        }
    }
}

impl State<'_> {
    pub(crate) fn global_access(&mut self, warp: WarpId, touch: &Touch<'_>) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        let kind = kind_of(touch.order);
        for lane in lanes(touch.mask) {
            let bytes = touch.bytes.into();
            self.global_touch(warp, lane, touch.at[lane], bytes, touch.write, kind, None)?;
        }
        if touch.order != Order::Weak {
            self.global_sync(warp, touch, false);
        }
        Ok(())
    }

    pub(super) fn global_atomic(&mut self, warp: WarpId, touch: &Touch<'_>) -> Exec<()> {
        if self.races.is_none() {
            return Ok(());
        }
        for lane in lanes(touch.mask) {
            let bytes = touch.bytes.into();
            self.global_touch(warp, lane, touch.at[lane], bytes, true, Kind::Strong, None)?;
        }
        self.global_sync(warp, touch, true);
        Ok(())
    }

    /// The source of a finished `cp.async`.
    pub(super) fn global_copy_read(&mut self, warp: WarpId, copy: &PendingCopy) -> Exec<()> {
        let (lane, bytes) = (copy.lane.into(), copy.src_bytes.into());
        self.global_touch(warp, lane, copy.src, bytes, false, Kind::Plain, None)
    }

    /// Checks and enters one lane's access. `time` replaces the warp's time (in flight).
    #[expect(clippy::too_many_arguments, reason = "one access, spelled out")]
    pub(crate) fn global_touch(
        &self,
        warp: WarpId,
        lane: usize,
        address: u64,
        bytes: u64,
        write: bool,
        kind: Kind,
        time: Option<u32>,
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
        let strong = kind == Kind::Strong;
        let time = time.unwrap_or_else(|| races.threads.now(warp));
        let stamp = Stamp::new(races.cluster, me, time, strong);
        let line = u64::from(self.line());
        let first = (offset / GRANULE) as usize;
        let last = ((offset + bytes - 1) / GRANULE) as usize;
        for granule in first..=last {
            let [writer, reader, lines] = entry(history, granule);
            let w = Stamp(writer.load(Relaxed));
            if w.0 != 0 && !(strong && w.strong()) && !races.stamp_ordered(me, w) {
                let before = (w, true, lines.load(Relaxed) as u32);
                let at = owner.base + granule as u64 * GRANULE;
                return Err(self
                    .global_fault(races, at, me, write, kind, before)
                    .at(lane));
            }
            if write {
                let r = Stamp(reader.load(Relaxed));
                if r.0 != 0 && !races.stamp_ordered(me, r) {
                    let before = (r, false, (lines.load(Relaxed) >> 32) as u32);
                    let at = owner.base + granule as u64 * GRANULE;
                    return Err(self
                        .global_fault(races, at, me, write, kind, before)
                        .at(lane));
                }
                writer.store(stamp.0, Relaxed);
                reader.store(0, Relaxed);
                lines.store(line, Relaxed);
            } else if !strong {
                reader.store(stamp.0, Relaxed);
                let old = lines.load(Relaxed) & u64::from(u32::MAX);
                lines.store(old | line << 32, Relaxed);
            }
        }
        Ok(())
    }

    /// A write in flight is finished: from now on it is ordered as a write by its thread now.
    pub(crate) fn global_landed(&self, warp: WarpId, lane: usize, address: u64, bytes: u64) {
        let Some(races) = self.races.as_deref() else {
            return;
        };
        let Ok((owner, offset)) = self.global_range(address, bytes, 1, lane) else {
            return;
        };
        let history = self.launch.view.history(owner, GRANULE, WORDS);
        let me = races.threads.slot(warp, lane);
        let flying = Stamp::new(races.cluster, me, GLOBAL_IN_FLIGHT, false);
        let landed = Stamp::new(races.cluster, me, races.threads.now(warp), false);
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
        write: bool,
        kind: Kind,
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
            what: verb(write, kind == Kind::Strong),
            who: self.who(races, me),
            line: self.line(),
        });
        let who = if stamp.cluster() == races.cluster {
            self.who(races, stamp.slot())
        } else {
            let per_cta = self.launch.warps * crate::exec::LANES as u32;
            let (rank, thread) = (stamp.slot() / per_cta, stamp.slot() % per_cta);
            let block = self.launch.ctaid(stamp.cluster(), rank);
            format!("block {block:?} thread {:?}", self.launch.tid(thread))
        };
        let before = Box::new(Access {
            what: verb(was_write, stamp.strong()),
            who,
            line,
        });
        if stamp.time() == GLOBAL_IN_FLIGHT {
            return FaultKind::AsyncInFlight(format!(
                "{now} of global address {address:#x}, which the unfinished {before} still uses"
            ));
        }
        FaultKind::Race {
            space: "global",
            address,
            now,
            before,
        }
    }

    /// What a strong access publishes and learns at its location.
    fn global_sync(&mut self, warp: WarpId, touch: &Touch<'_>, rmw: bool) {
        let published = &self.launch.published;
        let Some(races) = self.races.as_deref_mut() else {
            return;
        };
        for lane in lanes(touch.mask) {
            let (slot, one) = (races.threads.slot(warp, lane), 1 << lane);
            let address = touch.at[lane];
            if (rmw || !touch.write) && published.any.load(Relaxed) {
                let at = published.at.lock().unwrap_or_else(|e| e.into_inner());
                if let Some(foreign) = at.get(&address) {
                    let known = arriving(races, foreign);
                    if touch.order.acquires() {
                        races.threads.acquire(warp, one, &known);
                    } else {
                        races.threads.finds(slot, &known);
                    }
                }
            }
            if !touch.write {
                continue;
            }
            let known = if touch.order.releases() {
                let mut known = races.threads.nothing();
                races.threads.release(warp, one, &mut known);
                Some(known)
            } else {
                races.threads.published(slot).cloned()
            };
            if known.is_none() && !published.any.load(Relaxed) {
                continue;
            }
            let mut at = published.at.lock().unwrap_or_else(|e| e.into_inner());
            if !rmw {
                at.remove(&address);
            }
            if let Some(known) = known {
                published.any.store(true, Relaxed);
                let here = at.entry(address).or_default();
                departing(races, &known, here);
            }
        }
    }
}

fn entry(history: &[AtomicU64], granule: usize) -> [&AtomicU64; WORDS] {
    let start = granule * WORDS;
    std::array::from_fn(|i| &history[start + i])
}

/// Published knowledge, as a thread of this cluster learns it.
fn arriving(races: &Races, foreign: &Foreign) -> Known {
    let mut known = races.threads.nothing();
    let mut others = foreign.clone();
    if let Some(own) = others.remove(&races.cluster) {
        known.seen = own;
    }
    known.foreign = Some(Arc::new(others));
    known
}

/// Adds a thread's knowledge to what is published at a location.
fn departing(races: &Races, known: &Known, here: &mut Foreign) {
    let others = known.foreign.iter().flat_map(|f| f.iter());
    let own = std::iter::once((&races.cluster, &known.seen));
    for (&cluster, clock) in others.chain(own) {
        match here.get_mut(&cluster) {
            Some(old) => Arc::make_mut(old).join(clock),
            None => {
                here.insert(cluster, clock.clone());
            }
        }
    }
}
