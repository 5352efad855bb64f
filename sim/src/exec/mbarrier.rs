//! mbarrier objects (PTX ISA §9.7.13.15).

use super::cluster::State;
use super::place::{Memory, address, locate};
use super::regs::{LANES, lanes};
use super::rng::Rng;
use super::warp::{Wait, Warp, WarpId};
use crate::fault::{Exec, FaultKind};
use crate::ir::{Addr, MbarrierKind, MbarrierOp, Space};

/// Largest pending count and transaction count (PTX ISA §9.7.13.15.1).
const MAX_COUNT: u32 = (1 << 20) - 1;
/// Bytes and alignment of an object.
const BYTES: u64 = 8;

/// With a seed, one `test_wait` or `try_wait` in this many returns false if it may, and one phase in so many has not ended for any warp
/// that asks first.
const UNLUCKY: usize = 4;

/// Instructions of a warp that asks until a phase has ended, each time that it has not: the question, and the branch back to it.
const ASKING_AGAIN: u64 = 2;

/// CTA rank and shared address of an object.
pub(crate) type Key = (u32, u64);

/// The state of one object.
#[derive(Clone, Debug)]
pub(crate) struct Mbarrier {
    /// Arrivals each phase expects.
    count: u32,
    /// Arrivals the current phase still waits for.
    pending: u32,
    /// Bytes the current phase still waits for; negative if they came before they were announced.
    tx: i64,
    /// Phases completed.
    pub(crate) phase: u32,
    /// An asynchronous copy completed on the current phase, and on the one before.
    by_copy: bool,
    last_by_copy: bool,
    /// Warps that were told at once that a phase has not ended, and of which.
    refused: Vec<(u32, u32)>,
}

impl Mbarrier {
    pub(crate) fn describe(&self, at: u64) -> String {
        format!(
            "mbarrier {at:#x} in phase {} (waits for {} arrivals and {} bytes)",
            self.phase, self.pending, self.tx
        )
    }

    /// Bytes announced and never transferred, or the other way round.
    pub(crate) fn unbalanced(&self) -> i64 {
        self.tx
    }
}

fn misuse(message: String) -> FaultKind {
    FaultKind::Mbarrier(message)
}

impl State<'_> {
    /// The object's place an operand names.
    fn mbarrier_key(&self, warp: &Warp, op: &MbarrierOp, lane: usize) -> Exec<Key> {
        let space = match (op.cluster, op.generic) {
            (true, _) => Space::SharedCluster,
            (_, true) => Space::Generic,
            _ => Space::Shared,
        };
        self.mbarrier_at(
            space,
            address(&warp.regs, &op.addr, lane),
            warp.id.cta,
            lane,
        )
    }

    pub(super) fn mbarrier_at(
        &self,
        space: Space,
        address: u64,
        cta: u32,
        lane: usize,
    ) -> Exec<Key> {
        match locate(space, address, cta, lane)? {
            (Memory::Shared(rank), offset) => {
                self.mbarrier_range((rank, offset), lane)?;
                Ok((rank, offset))
            }
            _ => Err(misuse(format!("address {address:#x} is not in shared memory")).at(lane)),
        }
    }

    /// Checks that an object has room at `key`.
    pub(super) fn mbarrier_range(&self, (rank, offset): Key, lane: usize) -> Exec<()> {
        self.shared_range(rank, offset, BYTES, BYTES, lane)?;
        Ok(())
    }

    /// The mbarrier operand of a bulk copy, in the state space of its destination.
    pub(super) fn mbarrier_operand(
        &self,
        warp: &Warp,
        space: Space,
        addr: &Addr,
        lane: usize,
    ) -> Exec<Key> {
        let at = address(&warp.regs, addr, lane);
        let key = self.mbarrier_at(space, at, warp.id.cta, lane)?;
        self.known_mbarrier(key, lane)?;
        Ok(key)
    }

    fn known_mbarrier(&self, key: Key, lane: usize) -> Exec<&Mbarrier> {
        self.mbarriers.get(&key).ok_or_else(|| {
            misuse(format!(
                "shared address {:#x} of CTA rank {} holds no initialised mbarrier",
                key.1, key.0
            ))
            .at(lane)
        })
    }

    /// Executes an mbarrier instruction; returns what to wait for, if anything.
    pub(super) fn mbarrier(
        &mut self,
        warp: &mut Warp,
        timed_out: bool,
        m: u32,
        op: &MbarrierOp,
    ) -> Exec<Option<Wait>> {
        if let MbarrierKind::PendingCount { d, state } = op.kind {
            let v = warp.regs.get64(state).map(|s| (s >> 32) as u32);
            warp.regs.put32(d, &v, m);
            return Ok(None);
        }
        if let MbarrierKind::Wait {
            d,
            state,
            parity,
            acquire,
        } = op.kind
        {
            return self.mbarrier_wait(warp, timed_out, m, op, [d, state], [parity, acquire]);
        }
        // Of which this instruction has ended a phase.
        let mut ended: Vec<Key> = Vec::new();
        for lane in lanes(m) {
            let key = self.mbarrier_key(warp, op, lane)?;
            let count_of = |r: u32| warp.regs.get32(r)[lane];
            match op.kind {
                MbarrierKind::Init { count } => {
                    self.mbarrier_init(warp.id, key, count_of(count), lane)?;
                }
                MbarrierKind::Inval => {
                    self.known_mbarrier(key, lane)?;
                    self.mbarriers.remove(&key);
                    self.mbarrier_invalidated(key);
                }
                MbarrierKind::Arrive {
                    count,
                    expect_tx,
                    drop,
                    state,
                } => {
                    self.mbarrier_used(warp.id, key, lane)?;
                    if let Some(bytes) = expect_tx {
                        self.add_tx(key, i64::from(count_of(bytes)), lane)?;
                    }
                    if op.release {
                        self.mbarrier_releases(warp.id, key, lane, op.scope);
                    }
                    let count = count.map_or(1, count_of);
                    let phase = self.known_mbarrier(key, lane)?.phase;
                    if ended.contains(&key) {
                        let object = self.mbarriers[&key].describe(key.1);
                        let wrong = "lanes of one instruction arrive in several phases of ";
                        return Err(misuse(format!("{wrong}{object}")).at(lane));
                    }
                    let token = self.arrive(key, count, drop, lane)?;
                    if self.mbarriers[&key].phase != phase {
                        ended.push(key);
                    }
                    if let Some(d) = state {
                        warp.regs.r64[d as usize].0[lane] = token;
                    }
                }
                MbarrierKind::ExpectTx { bytes } => {
                    self.mbarrier_used(warp.id, key, lane)?;
                    self.add_tx(key, i64::from(count_of(bytes)), lane)?;
                }
                MbarrierKind::CompleteTx { bytes } => {
                    self.mbarrier_used(warp.id, key, lane)?;
                    self.complete_tx(key, count_of(bytes).into(), lane)?;
                }
                MbarrierKind::CpAsyncArrive { noinc } => {
                    self.mbarrier_used(warp.id, key, lane)?;
                    self.known_mbarrier(key, lane)?;
                    if !noinc && let Some(mbarrier) = self.mbarriers.get_mut(&key) {
                        mbarrier.pending += 1;
                    }
                    self.fly_copy_arrival(warp.id, lane, key);
                }
                MbarrierKind::Wait { .. } | MbarrierKind::PendingCount { .. } => {}
            }
        }
        Ok(None)
    }

    fn mbarrier_init(&mut self, warp: WarpId, key: Key, count: u32, lane: usize) -> Exec<()> {
        if count == 0 || count > MAX_COUNT {
            return Err(misuse(format!("count {count} is not 1 to {MAX_COUNT}")).at(lane));
        }
        if let Some(old) = self.mbarriers.get(&key) {
            return Err(misuse(format!(
                "re-initialised while in use: {}; `mbarrier.inval` must come first",
                old.describe(key.1)
            ))
            .at(lane));
        }
        let start = self.shared_range(key.0, key.1, BYTES, BYTES, lane)?;
        self.mbarrier_initialised(warp, key, start, lane)?;
        // The object's bytes are opaque but present.
        self.ctas[key.0 as usize]
            .shared
            .store(start, BYTES as u32, 0);
        self.mbarriers.insert(
            key,
            Mbarrier {
                count,
                pending: count,
                tx: 0,
                phase: 0,
                by_copy: false,
                last_by_copy: false,
                refused: Vec::new(),
            },
        );
        Ok(())
    }

    /// Announces `bytes` more for the current phase.
    fn add_tx(&mut self, key: Key, bytes: i64, lane: usize) -> Exec<()> {
        self.known_mbarrier(key, lane)?;
        if let Some(mbarrier) = self.mbarriers.get_mut(&key) {
            mbarrier.tx += bytes;
            if mbarrier.tx.unsigned_abs() > MAX_COUNT.into() {
                let text = mbarrier.describe(key.1);
                return Err(misuse(format!("transaction count overflows: {text}")).at(lane));
            }
        }
        Ok(())
    }

    /// An asynchronous copy is about to complete on the current phase.
    pub(super) fn completes_by_copy(&mut self, key: Key) {
        if let Some(mbarrier) = self.mbarriers.get_mut(&key) {
            mbarrier.by_copy = true;
        }
    }

    /// `bytes` have been transferred.
    pub(super) fn complete_tx(&mut self, key: Key, bytes: i64, lane: usize) -> Exec<()> {
        self.add_tx(key, -bytes, lane)?;
        self.phase_check(key);
        Ok(())
    }

    /// `count` arrivals; returns the token of the phase they count for.
    pub(super) fn arrive(&mut self, key: Key, count: u32, drop: bool, lane: usize) -> Exec<u64> {
        let mbarrier = self.known_mbarrier(key, lane)?;
        if count == 0 || count > mbarrier.pending {
            let text = mbarrier.describe(key.1);
            return Err(misuse(format!(
                "{count} arrivals overrun the phase of {text}: its count is {}",
                mbarrier.count
            ))
            .at(lane));
        }
        let token = u64::from(mbarrier.phase) | u64::from(mbarrier.pending) << 32;
        if let Some(mbarrier) = self.mbarriers.get_mut(&key) {
            mbarrier.pending -= count;
            if drop {
                mbarrier.count = mbarrier.count.saturating_sub(count);
            }
        }
        self.phase_check(key);
        Ok(token)
    }

    /// Ends the phase if everything it waits for has come.
    fn phase_check(&mut self, key: Key) {
        let Some(mbarrier) = self.mbarriers.get_mut(&key) else {
            return;
        };
        if mbarrier.pending == 0 && mbarrier.tx == 0 {
            mbarrier.phase += 1;
            mbarrier.pending = mbarrier.count;
            mbarrier.last_by_copy = std::mem::take(&mut mbarrier.by_copy);
            let phase = mbarrier.phase;
            self.mbarrier_phase_done(key, phase);
            self.progress();
        }
    }

    /// `test_wait` and `try_wait`: both may be suspended until the phase ends; a time limit makes
    /// them return false. With a seed some return false at once (PTX ISA §9.7.13.15.16), also about phases
    /// that have ended, where nothing tells the thread so: it might have asked earlier.
    fn mbarrier_wait(
        &mut self,
        warp: &mut Warp,
        timed_out: bool,
        m: u32,
        op: &MbarrierOp,
        [d, state]: [u32; 2],
        [parity, acquire]: [bool; 2],
    ) -> Exec<Option<Wait>> {
        let mut done = 0u32;
        let mut blocked = None;
        let mut keys = [(0, 0); LANES];
        let first = m.trailing_zeros() as usize % LANES;
        let mut asked = 0;
        for lane in lanes(m) {
            let key = self.mbarrier_key(warp, op, lane)?;
            keys[lane] = key;
            self.mbarrier_used(warp.id, key, lane)?;
            let mbarrier = self.known_mbarrier(key, lane)?;
            let phase = mbarrier.phase;
            let over = if parity {
                phase & 1 != warp.regs.get32(state)[lane] & 1
            } else {
                phase != warp.regs.get64(state)[lane] as u32
            };
            done |= u32::from(over) << lane;
            if lane == first {
                asked = phase.wrapping_sub(over.into());
            }
            if !over {
                blocked = Some(Wait::Mbarrier {
                    cta: key.0,
                    at: key.1,
                    phase,
                });
            }
        }
        let mut unlucky = false;
        if self.launch.config.schedule_seed != 0 {
            let by_itself = self.rng.below(UNLUCKY) == 0;
            unlucky = self.is_late_for_all(warp.id, keys[first], asked) || by_itself;
        }
        if let Some(wait) = blocked.filter(|_| !timed_out && !unlucky) {
            self.asked_in_vain += 1;
            return Ok(Some(wait));
        }
        if unlucky {
            for lane in lanes(done & m) {
                if self.may_be_unseen(warp.id, keys[lane], lane) {
                    done &= !(1 << lane);
                }
            }
        }
        // Lanes mostly wait for one object: learn from each once.
        let mut rest = done & m;
        while rest != 0 {
            let key = keys[rest.trailing_zeros() as usize];
            let same = lanes(rest)
                .filter(|&l| keys[l] == key)
                .fold(0u32, |mask, l| mask | 1 << l);
            if acquire {
                self.mbarrier_acquired(warp.id, same, key, op.scope);
            }
            rest &= !same;
        }
        warp.regs.put_pred(d, done, m);
        if done & m != m {
            self.asked_in_vain += ASKING_AGAIN;
        }
        Ok(None)
    }

    /// Whether phase `asked` is one about which the first answer to every warp is no, as when what ends it is late for all of them at
    /// once: of warps that meet at a barrier after it, one that waited would hide that others did not.
    fn is_late_for_all(&mut self, warp: WarpId, key: Key, asked: u32) -> bool {
        let place = key.1 ^ u64::from(key.0) << 32 ^ u64::from(asked) << 40;
        if Rng::new(self.launch.config.schedule_seed, place).below(UNLUCKY) != 0 {
            return false;
        }
        let Some(mbarrier) = self.mbarriers.get_mut(&key) else {
            return false;
        };
        let is_first = !mbarrier.refused.contains(&(warp.number, asked));
        if is_first {
            // What was asked of before the first phase is the last number.
            let is_recent = |phase: u32| phase.wrapping_add(1) >= asked;
            mbarrier.refused.retain(|(_, phase)| is_recent(*phase));
            mbarrier.refused.push((warp.number, asked));
        }
        is_first
    }

    /// May a thread not know yet that the last phase ended?
    fn may_be_unseen(&self, warp: WarpId, key: Key, lane: usize) -> bool {
        self.mbarriers
            .get(&key)
            .is_some_and(|m| self.phase_unseen(warp, lane, key, m.last_by_copy))
    }

    /// At the end of a cluster: every announced byte must have come.
    pub(super) fn mbarriers_at_exit(&self) -> Exec<()> {
        let mut keys: Vec<_> = self.mbarriers.iter().collect();
        keys.sort_by_key(|(key, _)| **key);
        for (key, mbarrier) in keys {
            if mbarrier.unbalanced() != 0 {
                return Err(misuse(format!(
                    "transaction count never balanced before the kernel ended: {} of CTA rank {}",
                    mbarrier.describe(key.1),
                    key.0
                ))
                .into());
            }
        }
        Ok(())
    }
}
