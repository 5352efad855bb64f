//! Access history of a CTA's shared memory: the last write of each byte and the reads since.

use std::num::NonZeroU32;
use std::ops::Range;

use super::clock::Clock;
use super::threads::Threads;
use crate::ir::Scope;

/// Time of a write that nothing can be ordered after yet: an asynchronous operation in flight.
pub(crate) const IN_FLIGHT: u32 = u32::MAX;

/// Marks a [`Reader`] that is an agent slot, not a warp.
pub(crate) const AGENT: u32 = 1 << 31;

/// Kinds of accesses in the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Plain,
    /// Relaxed or stronger, or a read-modify-write: does not race with other strong accesses.
    Strong,
    /// By the async proxy (bulk copies, `wgmma`).
    Async,
    /// `cp.async`, which belongs to the generic proxy.
    CpAsync,
    /// The bytes are an mbarrier object.
    Mbarrier,
}

/// The last write of a byte; time 0 is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    pub(crate) slot: u32,
    pub(crate) time: u32,
    pub(crate) line: u32,
    pub(crate) kind: Kind,
    /// Scope of a strong write.
    pub(crate) scope: Scope,
}

impl Writer {
    /// Whether a plain read by who has `seen` this is ordered after the write, by that alone.
    #[inline(always)]
    pub(super) fn is_seen(&self, seen: &Clock) -> bool {
        let is_settled = self.time != IN_FLIGHT && self.kind != Kind::Mbarrier;
        self.time == 0 || is_settled && seen.get(self.slot) >= self.time
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            slot: 0,
            time: 0,
            line: 0,
            kind: Kind::default(),
            scope: Scope::Sys,
        }
    }
}

/// Lanes of a warp that read at one time, or an agent (mask 1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reader {
    pub(crate) who: u32,
    pub(crate) mask: u32,
    pub(crate) time: u32,
    pub(crate) line: u32,
}

/// History of a granule, or of a part of one that was accessed in parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) writer: Writer,
    first: Reader,
    more: Vec<Reader>,
    /// Where the histories of its four parts are, which then count in place of this one.
    parts: Option<NonZeroU32>,
}

impl Cell {
    pub(crate) fn readers(&self) -> impl Iterator<Item = &Reader> {
        std::iter::once(&self.first)
            .filter(|r| r.mask != 0)
            .chain(&self.more)
    }

    pub(crate) fn clear_readers(&mut self) {
        self.first.mask = 0;
        self.more.clear();
    }

    /// Records a read by the lanes `mask` of warp `who` (or an agent).
    #[inline(always)]
    pub(crate) fn read(&mut self, new: Reader) {
        let first = &mut self.first;
        let replaces = first.mask & !new.mask == 0 && first.who == new.who;
        if first.mask == 0 || (replaces && first.time <= new.time) {
            *first = new;
            return;
        }
        if first.who == new.who && first.time == new.time {
            first.mask |= new.mask;
            return;
        }
        self.read_more(new);
    }

    #[inline(never)]
    fn read_more(&mut self, new: Reader) {
        let more = &mut self.more;
        let merged = match more
            .iter_mut()
            .find(|r| r.who == new.who && r.time == new.time)
        {
            Some(known) => {
                known.mask |= new.mask;
                *known
            }
            None => {
                more.push(new);
                new
            }
        };
        // Older reads by lanes that have read again since are covered.
        let covered =
            |r: &Reader| r.who == merged.who && r.time < merged.time && r.mask & !merged.mask == 0;
        more.retain(|r| !covered(r));
        if covered(&self.first) {
            self.first = more.pop().unwrap_or_default();
        }
    }

    /// A reader that thread `me` is not ordered after: its slot and line.
    #[inline(always)]
    pub(crate) fn unordered_reader(&self, threads: &Threads, me: u32) -> Option<(u32, u32)> {
        for r in self.readers() {
            if r.who & AGENT != 0 {
                let slot = r.who & !AGENT;
                if !threads.ordered(me, slot, r.time) {
                    return Some((slot, r.line));
                }
                continue;
            }
            let mut behind = threads.seen(me).behind(r.who, r.time) & r.mask;
            if let Some(over) = threads.over(me).filter(|_| behind != 0) {
                behind &= over.behind(r.who, r.time);
            }
            if me / 32 == r.who {
                behind &= !(1 << (me % 32));
            }
            let complete = |slot: u32| threads.ordered(me, slot, r.time);
            if behind != 0 && !threads.reads[r.who as usize].is_some_and(complete) {
                return Some((r.who * 32 + behind.trailing_zeros(), r.line));
            }
        }
        None
    }
}

/// Bytes with one history while they are accessed together: as many as vectors, `ldmatrix` rows and copies have.
const GRANULE: usize = 16;

/// Bytes of a granule's parts, which are of a byte each in turn.
const WORD: usize = 4;

/// History of a CTA's shared memory.
pub(crate) struct Shadow {
    granules: Vec<Cell>,
    /// Parts of granules and of words; the first are nobody's.
    parts: Vec<[Cell; 4]>,
    unused: Vec<NonZeroU32>,
}

impl Shadow {
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            granules: vec![Cell::default(); (bytes as usize).div_ceil(GRANULE)],
            parts: vec![Default::default()],
            unused: Vec::new(),
        }
    }

    /// Calls `f` on the history of each piece of `size` bytes from byte `start`; stops at an error.
    #[inline(always)]
    pub(crate) fn each<E>(
        &mut self,
        start: usize,
        size: usize,
        mut f: impl FnMut(usize, &mut Cell) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = start + size;
        let mut at = start;
        while at < end {
            let next = (at / GRANULE * GRANULE + GRANULE).min(end);
            let cell = &mut self.granules[at / GRANULE];
            if next - at == GRANULE && cell.parts.is_none() {
                f(at, cell)?;
            } else {
                self.each_part(at..next, &mut f)?;
            }
            at = next;
        }
        Ok(())
    }

    /// The same of bytes of one granule, by its parts.
    fn each_part<E>(
        &mut self,
        bytes: Range<usize>,
        f: &mut impl FnMut(usize, &mut Cell) -> Result<(), E>,
    ) -> Result<(), E> {
        let granule = &mut self.granules[bytes.start / GRANULE];
        let place = granule.parts;
        let place = place.unwrap_or_else(|| split(granule, &mut self.parts, &mut self.unused));
        granule.parts = Some(place);
        let words = place.get() as usize;
        let mut at = bytes.start;
        while at < bytes.end {
            let next = (at / WORD * WORD + WORD).min(bytes.end);
            let word = &mut self.parts[words][at / WORD % 4];
            if next - at == WORD && word.parts.is_none() {
                f(at, word)?;
            } else {
                let parts = match word.parts {
                    Some(parts) => parts,
                    None => {
                        let whole = word.clone();
                        let parts = split(&whole, &mut self.parts, &mut self.unused);
                        self.parts[words][at / WORD % 4].parts = Some(parts);
                        parts
                    }
                };
                for byte in at..next {
                    f(byte, &mut self.parts[parts.get() as usize][byte % 4])?;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Makes one history again of those of each whole granule among these bytes, which one write has just made alike.
    pub(crate) fn join(&mut self, start: usize, size: usize) {
        for number in start.div_ceil(GRANULE)..(start + size) / GRANULE {
            if let Some(words) = self.granules[number].parts {
                let [first, ..] = self.joined(words);
                self.granules[number] = first;
            }
        }
    }

    /// Takes parts, each with one history.
    fn joined(&mut self, parts: NonZeroU32) -> [Cell; 4] {
        self.unused.push(parts);
        std::mem::take(&mut self.parts[parts.get() as usize]).map(|cell| match cell.parts {
            Some(parts) => {
                let [first, ..] = self.joined(parts);
                first
            }
            None => cell,
        })
    }
}

/// Four parts with the history of `whole`.
fn split(whole: &Cell, parts: &mut Vec<[Cell; 4]>, unused: &mut Vec<NonZeroU32>) -> NonZeroU32 {
    let four = std::array::from_fn(|_| whole.clone());
    if let Some(place) = unused.pop() {
        parts[place.get() as usize] = four;
        return place;
    }
    parts.push(four);
    let last = parts.len() as u32 - 1;
    NonZeroU32::new(last).expect("the first parts are there from the beginning")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(who: u32, mask: u32, time: u32) -> Reader {
        Reader {
            who,
            mask,
            time,
            line: 1,
        }
    }

    #[test]
    fn readers_merge_and_are_superseded() {
        let mut cell = Cell::default();
        cell.read(reader(0, 1, 5));
        cell.read(reader(0, 2, 5));
        assert_eq!(cell.readers().count(), 1);
        cell.read(reader(1, 1, 3));
        cell.read(reader(0, 1, 6));
        assert_eq!(cell.readers().count(), 3);
        cell.read(reader(0, 2, 6));
        let left: Vec<_> = cell.readers().map(|r| (r.who, r.mask, r.time)).collect();
        assert_eq!(left.len(), 2);
        assert!(left.contains(&(0, 3, 6)) && left.contains(&(1, 1, 3)));
    }

    /// Writes bytes by `slot`; returns the pieces with who wrote them before.
    fn write(shadow: &mut Shadow, start: usize, size: usize, slot: u32) -> Vec<(usize, u32)> {
        let mut touched = Vec::new();
        let outcome = shadow.each(start, size, |at, cell| {
            touched.push((at, cell.writer.slot));
            cell.writer = Writer {
                slot,
                time: 1,
                ..Writer::default()
            };
            Ok::<(), ()>(())
        });
        outcome.unwrap();
        shadow.join(start, size);
        touched
    }

    #[test]
    fn bytes_of_a_word_are_told_apart() {
        let mut shadow = Shadow::new(16);
        assert_eq!(write(&mut shadow, 4, 4, 7), [(4, 0)]);
        assert_eq!(write(&mut shadow, 6, 2, 8), [(6, 7), (7, 7)]);
        let bytes = [(4, 7), (5, 7), (6, 8), (7, 8)];
        assert_eq!(write(&mut shadow, 4, 4, 9), bytes);
    }

    #[test]
    fn a_granule_written_whole_is_one_piece_again() {
        let mut shadow = Shadow::new(48);
        assert_eq!(write(&mut shadow, 16, 16, 1), [(16, 0)]);
        assert_eq!(write(&mut shadow, 18, 1, 2), [(18, 1)]);
        let pieces = [
            (0, 0),
            (16, 1),
            (17, 1),
            (18, 2),
            (19, 1),
            (20, 1),
            (24, 1),
            (28, 1),
            (32, 0),
        ];
        assert_eq!(write(&mut shadow, 0, 40, 3)[..9], pieces);
        let pieces = [(0, 3), (16, 3), (32, 3), (36, 3), (40, 0), (44, 0)];
        assert_eq!(write(&mut shadow, 0, 48, 4), pieces);
        assert_eq!(write(&mut shadow, 0, 48, 5), [(0, 4), (16, 4), (32, 4)]);
    }
}
