//! Access history of a CTA's shared memory: the last write of each byte and the reads since.

use std::collections::HashMap;

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

/// History of a word, or of a byte of a word that was accessed in parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) writer: Writer,
    first: Reader,
    more: Vec<Reader>,
    split: bool,
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

/// History of a CTA's shared memory.
pub(crate) struct Shadow {
    words: Vec<Cell>,
    /// Bytes of the words accessed in parts.
    bytes: HashMap<usize, Box<[Cell; 4]>>,
}

impl Shadow {
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            words: vec![Cell::default(); bytes.div_ceil(4) as usize],
            bytes: HashMap::new(),
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
            let word = at / 4;
            let next = (word * 4 + 4).min(end);
            let whole = at.is_multiple_of(4) && next - at == 4;
            if whole && !self.words[word].split {
                f(at, &mut self.words[word])?;
            } else {
                let cell = &mut self.words[word];
                if !cell.split {
                    cell.split = true;
                    let part = Cell {
                        split: false,
                        ..cell.clone()
                    };
                    let parts = std::array::from_fn(|_| part.clone());
                    self.bytes.insert(word, Box::new(parts));
                }
                if let Some(parts) = self.bytes.get_mut(&word) {
                    for byte in at..next {
                        f(byte, &mut parts[byte % 4])?;
                    }
                }
            }
            at = next;
        }
        Ok(())
    }
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

    #[test]
    fn bytes_of_a_word_are_told_apart() {
        let mut shadow = Shadow::new(16);
        let mut touched = Vec::new();
        let mut write = |start, size, slot| {
            shadow
                .each(start, size, |at, cell| {
                    touched.push((at, cell.writer.slot));
                    cell.writer = Writer {
                        slot,
                        time: 1,
                        ..Writer::default()
                    };
                    Ok::<(), ()>(())
                })
                .unwrap();
        };
        write(4, 4, 7);
        write(6, 2, 8);
        write(4, 4, 9);
        assert_eq!(
            touched,
            [(4, 0), (6, 7), (7, 7), (4, 7), (5, 7), (6, 8), (7, 8)]
        );
    }
}
