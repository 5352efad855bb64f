//! Which elements of a tile in registers are shown: an option after the other, so that what a thread keeps of one is gone when
//! it asks the next.

use super::{Pair, Place, black_box, shown, visible};
use crate::abi::{Band, ModifierParams};

/// Elements that are asked for together, while the loads of each are on their way.
const GROUP: u32 = 4;

/// Elements of one row of a tile: the first `count` from `begin` on, at most a word's.
pub(super) struct Elements<'a, A, P> {
    /// The head of the sequence.
    pub at: &'a A,
    /// The pair of an element of a row.
    pub pair: &'a P,
    pub row: usize,
    pub begin: usize,
    pub count: u32,
}

impl<A: Fn() -> Place, P: Fn(usize, usize) -> Pair> Elements<'_, A, P> {
    /// A bit for each element: whether `sees` holds of its pair. Of a pair that does not exist, which
    /// [`reach`](ModifierParams::reach) has hidden, the bit is that of the sequence's last.
    ///
    /// A loop that stays one: unrolled, as everything must be that indexes a tile in registers, it would be most of a kernel's
    /// instructions.
    #[inline(always)]
    pub fn that(&self, sees: impl Fn(&Place, Pair) -> bool) -> u32 {
        let mut word = 0;
        let mut j = 0;
        while j < black_box(self.count) {
            let at = &(self.at)();
            for d in 0..GROUP {
                let pair = (self.pair)(self.row, self.begin + (j + d) as usize);
                word |= u32::from(sees(at, existing(at, pair))) << (j + d);
            }
            j += GROUP;
        }
        word
    }
}

/// Sets elements of a tile to `mark` but for those of which `$shown` gives a bit. A macro, as what a function is given as a closure
/// may stay a function, which no kernel has.
macro_rules! hide_but {
    ($at:expr, $tile:expr, $pair:expr, $mark:expr, $elements:ident => $shown:expr) => {
        for element in $tile.as_flattened_mut() {
            // Or else choices made before would be kept, and made with those below.
            *element = f32::from_bits(black_box(element.to_bits()));
        }
        for i in 0..ROWS {
            for begin in (0..COLS).step_by(u32::BITS as usize) {
                let end = if begin + 32 < COLS { begin + 32 } else { COLS };
                let $elements = &shown::Elements {
                    at: &$at,
                    pair: &$pair,
                    row: i,
                    begin,
                    count: (end - begin) as u32,
                };
                let word = $shown;
                for j in begin..end {
                    if word >> (j - begin) & 1 == 0 {
                        $tile[i][j] = $mark;
                    }
                }
            }
        }
    };
}
pub(super) use hide_but;

/// Sets elements to `mark` whose key is before the first or behind the last that `reach` says of their query.
///
/// Without branches: of many elements in one row a reach is then computed once.
#[inline(always)]
fn hide_outside<const COLS: usize, const ROWS: usize>(
    at: &impl Fn() -> Place,
    tile: &mut [[f32; COLS]; ROWS],
    pair: &impl Fn(usize, usize) -> Pair,
    mark: f32,
    reach: impl Fn(&Place, u32) -> (i32, i32),
) {
    for i in 0..ROWS {
        let at = &at();
        let origin = pair(i, 0).key as i32;
        for j in 0..COLS {
            let Pair { query, key } = pair(i, j);
            let (first, last) = reach(at, query);
            // Counted from the first element's key: a constant, with which the row's borders are compared.
            let column = key as i32 - origin;
            if column < first - origin || column > last - origin {
                tile[i][j] = mark;
            }
        }
    }
}

/// `pair`, or the last of the sequence if it does not exist: its elements may be read.
#[inline(always)]
pub(super) fn existing(at: &Place, pair: Pair) -> Pair {
    Pair {
        query: pair.query.min(at.seq_q - 1),
        key: pair.key.min(at.seq_kv - 1),
    }
}

impl ModifierParams {
    /// Hides elements as [`hide`](super::Modifiers::hide) does, and those of keys before the first or behind the last that `also` says
    /// of their query.
    ///
    /// # Safety
    /// As [`Modifiers`](super::Modifiers).
    #[inline(always)]
    pub(super) unsafe fn hide_outside<const COLS: usize, const ROWS: usize>(
        &self,
        at: impl Fn() -> Place,
        tile: &mut [[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
        mark: f32,
        also: impl Fn(&Place, u32) -> (i32, i32),
    ) {
        hide_outside(&at, tile, &pair, mark, |at, query| {
            let (first, last) = self.reach(at, query);
            let (also_first, also_last) = also(at, query);
            (first.max(also_first), last.min(also_last))
        });
        if self.chunk.is_some() {
            // Apart: where rows are keys, a division for every column.
            hide_outside(&at, tile, &pair, mark, |at, query| {
                let (begin, end) = visible::chunk(self.chunk, at, query);
                (begin, end - 1)
            });
        }
        if !self.hides_in_reach() {
            return;
        }
        // SAFETY: forwarded to the caller.
        hide_but!(at, tile, pair, mark, elements => unsafe { self.shown(elements) });
    }

    /// First and last key that `query` may see by the band; none if the query does not exist. With a prefix the band is not one range,
    /// and [`shown`](Self::shown) asks it.
    #[inline(always)]
    pub(super) fn reach(&self, at: &Place, query: u32) -> (i32, i32) {
        // Without branches: of many elements in one row this is then computed once.
        let band = if self.prefix.is_none() {
            at.band
        } else {
            Band::FULL
        };
        let first = (query as i32 + band.lower).max(0);
        let last = (query as i32 + band.upper).min(at.seq_kv as i32 - 1);
        (first, if query < at.seq_q { last } else { -1 })
    }

    /// Whether pairs may be hidden that are in [`reach`](Self::reach) and in one chunk.
    #[inline(always)]
    pub(super) fn hides_in_reach(&self) -> bool {
        self.prefix.is_some()
            || self.mask.address.is_some()
            || self.blocks.address.is_some()
            || self.documents.of_queries.is_some()
            || self.dilation.is_some()
    }

    /// Which elements are shown of those in reach, a bit each.
    ///
    /// # Safety
    /// As [`Modifiers`](super::Modifiers); the sequence has a pair.
    #[inline(always)]
    pub(super) unsafe fn shown<A: Fn() -> Place, P: Fn(usize, usize) -> Pair>(
        &self,
        elements: &Elements<'_, A, P>,
    ) -> u32 {
        // SAFETY: the pairs exist, and the caller vouches for the arrays.
        unsafe {
            let mut word = !0;
            if self.prefix.is_some() {
                word &= elements.that(|at, pair| visible::in_band(self, at, pair));
            }
            if self.mask.address.is_some() {
                word &= elements.that(|at, pair| visible::by_mask(self, at, pair));
            }
            if self.blocks.address.is_some() {
                word &= elements.that(|at, pair| visible::by_blocks(self, at, pair));
            }
            if self.documents.of_queries.is_some() {
                word &= elements.that(|at, pair| visible::by_document(&self.documents, at, pair));
            }
            if self.dilation.is_some() {
                word &= elements.that(|at, pair| visible::by_dilation(self.dilation, at, pair));
            }
            word
        }
    }
}
