//! What is remembered of global memory: the accesses to two bytes that later ones are held to.
//!
//! One write is the last, but what follows it need not follow those before: of unordered atomics one is the last, and a
//! block whose scope reaches that one may not reach another. So a second write is kept that the last does not
//! [stand for](super::races::Races::stands_for). One read is kept, so of several unordered readers one is checked against a
//! later write.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::races::Races;
use crate::ir::Scope;

/// Words a granule's past has.
pub(super) const WORDS: usize = 4;

const TIME_BITS: u32 = 26;
const SLOT_BITS: u32 = 13;
const CLUSTER_BITS: u32 = 23;
const LEVEL_BIT: u32 = TIME_BITS + SLOT_BITS + CLUSTER_BITS;
/// Time of a write still in flight.
pub(crate) const GLOBAL_IN_FLIGHT: u32 = (1 << TIME_BITS) - 1;

/// Bits of a PTX line: three make a word.
const LINE_BITS: u32 = 21;
const LAST_LINE: u32 = (1 << LINE_BITS) - 1;

/// A packed access: level · cluster · slot · time. The level is 0 for a weak access, else 1 and up by scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64);

impl Stamp {
    /// A stamp; `scope` is that of a strong access.
    pub(super) fn new(cluster: u64, slot: u32, time: u32, scope: Option<Scope>) -> Self {
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

    pub(super) fn time(self) -> u32 {
        self.0 as u32 & GLOBAL_IN_FLIGHT
    }

    pub(super) fn slot(self) -> u32 {
        (self.0 >> TIME_BITS) as u32 & ((1 << SLOT_BITS) - 1)
    }

    pub(super) fn cluster(self) -> u64 {
        self.0 >> (TIME_BITS + SLOT_BITS) & ((1 << CLUSTER_BITS) - 1)
    }

    /// The scope of a strong access.
    pub(super) fn scope(self) -> Option<Scope> {
        match self.0 >> LEVEL_BIT {
            0 => None,
            1 => Some(Scope::Cta),
            2 => Some(Scope::Cluster),
            _ => Some(Scope::Gpu),
        }
    }
}

/// Which access of a granule's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    LastWrite,
    /// A write before the last, which that does not stand for.
    OtherWrite,
    Read,
}

/// The past of one granule: a word for each of [`Which`], and one for their PTX lines.
pub(super) struct Past<'h> {
    words: [&'h AtomicU64; WORDS - 1],
    lines: &'h AtomicU64,
}

impl<'h> Past<'h> {
    pub(super) fn new(history: &'h [AtomicU64], granule: usize) -> Self {
        let start = granule * WORDS;
        Self {
            words: std::array::from_fn(|i| &history[start + i]),
            lines: &history[start + WORDS - 1],
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, which: Which) -> Option<Stamp> {
        let word = self.words[which as usize].load(Relaxed);
        (word != 0).then_some(Stamp(word))
    }

    pub(super) fn line(&self, which: Which) -> u32 {
        (self.lines.load(Relaxed) >> (LINE_BITS * which as u32)) as u32 & LAST_LINE
    }

    fn put(&self, which: Which, stamp: Stamp, line: u32) {
        self.words[which as usize].store(stamp.0, Relaxed);
        let shift = LINE_BITS * which as u32;
        let others = self.lines.load(Relaxed) & !(u64::from(LAST_LINE) << shift);
        let line = u64::from(line.min(LAST_LINE)) << shift;
        self.lines.store(others | line, Relaxed);
    }

    fn clear(&self, which: Which) {
        self.words[which as usize].store(0, Relaxed);
    }

    /// Enters a write by thread `me`, which conflicts with nothing here.
    pub(super) fn write(&self, races: &Races, me: u32, stamp: Stamp, line: u32) {
        let last = self.get(Which::LastWrite);
        let stays = |s: &Stamp| !races.stands_for(me, stamp, *s);
        if let Some(last) = last.filter(stays) {
            let other = self.get(Which::OtherWrite).filter(stays);
            // A narrower scope conflicts with more; and what comes next from this CTA should meet what others did.
            let rank = |s: Stamp| (s.scope(), races.of_same_cta(me, s));
            if other.is_none_or(|other| rank(last) <= rank(other)) {
                self.put(Which::OtherWrite, last, self.line(Which::LastWrite));
            }
        } else if self.get(Which::OtherWrite).is_some_and(|s| !stays(&s)) {
            self.clear(Which::OtherWrite);
        }
        self.put(Which::LastWrite, stamp, line);
        self.clear(Which::Read);
    }

    /// Enters a read by thread `me`, which conflicts with nothing here. A weak one is checked against more than a strong one.
    pub(super) fn read(&self, races: &Races, me: u32, stamp: Stamp, line: u32) {
        let before = self.get(Which::Read).filter(|_| stamp.scope().is_some());
        if before.is_none_or(|before| races.stands_for(me, stamp, before)) {
            self.put(Which::Read, stamp, line);
        }
    }

    /// A write in flight has landed.
    pub(super) fn land(&self, flying: Stamp, landed: Stamp) {
        // Of two by one thread the earlier lands first.
        for which in [Which::OtherWrite, Which::LastWrite] {
            if self.get(which) == Some(flying) {
                self.words[which as usize].store(landed.0, Relaxed);
                return;
            }
        }
    }
}
