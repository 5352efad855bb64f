//! Order of accesses to shared memory.

use super::published::Locations;
use super::races::{Conflict, Now};
use super::scopes::Scoped;
use super::shadow::{IN_FLIGHT, Kind};
use super::{Touch, kind_of};
use crate::decode::SHARED_BASE;
use crate::exec::{LANES, Memory, PendingCopy, State, WarpId, lanes};
use crate::fault::Exec;
use crate::ir::Order;

impl State<'_> {
    /// Checks and records an access of each lane of `touch` to CTA `rank`'s shared memory.
    pub(crate) fn shared_access(&mut self, warp: WarpId, touch: &Touch<'_>, rank: u32) -> Exec<()> {
        self.shared_touch(warp, touch, rank, kind_of(touch.order))?;
        if touch.order != Order::Weak {
            self.shared_sync(warp, touch, rank, false);
        }
        Ok(())
    }

    fn shared_touch(&mut self, warp: WarpId, touch: &Touch<'_>, rank: u32, kind: Kind) -> Exec<()> {
        let line = self.line();
        let Some(races) = self.races.as_deref_mut() else {
            return Ok(());
        };
        let bytes = touch.bytes as usize;
        let together = !touch.write && kind == Kind::Plain && touch.repeats_first();
        let mut rest = match kind {
            Kind::Plain if !touch.write && !together => races.read_alike(warp, touch, rank, line),
            _ => touch.mask,
        };
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            let now = Now {
                scope: touch.scope,
                ..races.now(warp, lane, line, touch.write, kind)
            };
            let start = (touch.at[lane] - u64::from(SHARED_BASE)) as usize;
            if together {
                let same = rest & touch.lanes_at(touch.at[lane]);
                if races.read_together(warp, same, rank, (start, bytes), &now) {
                    rest &= !same;
                    continue;
                }
            }
            rest &= rest - 1;
            if let Err((at, conflict)) = races.enter(rank, start, bytes, &now) {
                return Err(self.shared_fault(at, &now, &conflict).at(lane));
            }
        }
        Ok(())
    }

    pub(super) fn shared_fault(
        &self,
        at: usize,
        now: &Now,
        conflict: &Conflict,
    ) -> crate::fault::FaultKind {
        let races = self.races.as_deref().expect("a conflict was found by it");
        let address = at as u64 + u64::from(SHARED_BASE);
        self.conflict(races, "shared", address, now, conflict)
    }

    /// Orders `atom` and `red`, which conflict with plain accesses only.
    pub(crate) fn atomic_order(
        &mut self,
        warp: WarpId,
        touch: &Touch<'_>,
        memory: Memory,
        locations: Option<&mut Locations>,
    ) -> Exec<()> {
        match memory {
            Memory::Shared(rank) => {
                for lane in lanes(touch.mask) {
                    let bytes = touch.bytes.into();
                    self.shared_range(rank, touch.at[lane], bytes, bytes, lane)?;
                }
                self.shared_touch(warp, touch, rank, Kind::Strong)?;
                self.shared_sync(warp, touch, rank, true);
                Ok(())
            }
            Memory::Global => match locations {
                Some(locations) => self.global_atomic(warp, touch, locations),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Releases and acquires by a strong access at its location. `rmw` does both.
    fn shared_sync(&mut self, warp: WarpId, touch: &Touch<'_>, rank: u32, rmw: bool) {
        let Some(races) = self.races.as_deref_mut() else {
            return;
        };
        for lane in lanes(touch.mask) {
            let slot = races.threads.slot(warp, lane);
            let key = (rank, touch.at[lane]);
            let one = 1 << lane;
            let reads = rmw || !touch.write;
            if let Some(place) = races.locations.get(&key).filter(|_| reads) {
                for (needed, known) in place.seen_by(warp.cta) {
                    match needed {
                        Some(needed) if touch.scope < needed => {}
                        Some(_) if touch.order.acquires() => {
                            races.threads.acquire(warp, one, known);
                        }
                        Some(needed) => races.threads.finds(slot, needed, known),
                        None => {}
                    }
                }
            }
            if touch.write {
                let place = races.locations.entry(key).or_default();
                // A read-modify-write continues the release sequence; a store starts a new one.
                if !rmw {
                    *place = Scoped::default();
                }
                if touch.order.releases() {
                    let known = place.entry(warp.cta, touch.scope, &races.threads);
                    races.threads.release(warp, one, known);
                } else {
                    for (scope, known) in races.threads.published(slot) {
                        let scope = touch.scope.min(*scope);
                        place.entry(warp.cta, scope, &races.threads).join(known);
                    }
                }
            }
        }
    }

    /// A `cp.async` was issued: its destination must be free now, and stays in use until the copy is waited for.
    pub(crate) fn copy_issued(
        &mut self,
        warp: WarpId,
        m: u32,
        at: &[u64; LANES],
        bytes: u32,
    ) -> Exec<()> {
        let line = self.line();
        let Some(races) = self.races.as_deref_mut() else {
            return Ok(());
        };
        for lane in lanes(m) {
            let now = Now {
                time: IN_FLIGHT,
                ..races.now(warp, lane, line, true, Kind::CpAsync)
            };
            let start = (at[lane] - u64::from(SHARED_BASE)) as usize;
            if let Err((at, conflict)) = races.enter(warp.cta, start, bytes as usize, &now) {
                return Err(self.shared_fault(at, &now, &conflict).at(lane));
            }
        }
        Ok(())
    }

    /// A copy was waited for: from now on it counts as an ordinary write by its thread.
    pub(crate) fn copy_done(&mut self, warp: WarpId, copy: &PendingCopy) -> Exec<()> {
        let Some(races) = self.races.as_deref_mut() else {
            return Ok(());
        };
        let time = races.threads.now(warp);
        let slot = races.threads.slot(warp, copy.lane.into());
        let shadow = &mut races.shared[warp.cta as usize];
        let done = shadow.each(copy.dst as usize, copy.bytes.into(), |_, cell| {
            if cell.writer.time == IN_FLIGHT && cell.writer.slot == slot {
                cell.writer.time = time;
                cell.writer.kind = Kind::Plain;
            }
            Ok::<(), std::convert::Infallible>(())
        });
        match done {
            Ok(()) => {}
        }
        if copy.src_bytes == 0 {
            return Ok(());
        }
        self.global_copy_read(warp, copy)
    }
}
