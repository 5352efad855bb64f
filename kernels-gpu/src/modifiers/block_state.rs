//! What all pairs of some queries and keys look like at once, told without asking each: an option after the other.
//!
//! An option says that it shows all pairs, none of them, or neither. One that shows none hides the block; where all options show
//! all, it is full. Only a mask has to be asked pair by pair.

// Most operations of an unsafe function here need exactly the conditions under its `# Safety`.
#![allow(unsafe_op_in_unsafe_fn)]

use core::ops::Range;

use super::place::Place;
use super::{load, visible};
use crate::abi::{BlockState, Divisor, DocumentsArg, ModifierParams};
use crate::modifiers::Pair;

/// What an option says of all pairs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shows {
    All,
    Some,
    None,
}

impl Shows {
    #[inline(always)]
    fn new(all: bool, none: bool) -> Self {
        if none {
            Self::None
        } else if all {
            Self::All
        } else {
            Self::Some
        }
    }

    /// What both say together.
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::All, Self::All) => Self::All,
            _ => Self::Some,
        }
    }
}

/// Elements of a block mask that are read for one tile and block; of more the pairs are asked.
const MOST_BLOCKS: u32 = 64;

impl ModifierParams {
    /// The state of the pairs of `queries` and `keys`, neither of them empty, all of which exist: never better than it is. `None`:
    /// the pairs have to be asked.
    ///
    /// # Safety
    /// As [`Modifiers`](super::Modifiers).
    #[inline(always)]
    pub(super) unsafe fn known_state(
        &self,
        at: &Place,
        queries: &Range<u32>,
        keys: &Range<u32>,
    ) -> Option<BlockState> {
        let mut shows = self.band_shows(at, queries, keys);
        if self.documents.of_queries.is_some() {
            shows = shows.and(documents_show(&self.documents, at, queries, keys));
        }
        if self.chunk.is_some() {
            shows = shows.and(chunk_shows(self.chunk, at, queries, keys));
        }
        if self.dilation.is_some() {
            // Of several neighbours it shows some, as a rule.
            shows = shows.and(Shows::Some);
        }
        if self.blocks.address.is_some() && shows != Shows::None {
            shows = shows.and(self.blocks_show(at, queries, keys)?);
        }
        match shows {
            Shows::None => Some(BlockState::Hidden),
            _ if self.mask.address.is_some() => None,
            Shows::All => Some(BlockState::Full),
            Shows::Some => Some(BlockState::Partial),
        }
    }

    /// Band and prefix.
    #[inline(always)]
    unsafe fn band_shows(&self, at: &Place, queries: &Range<u32>, keys: &Range<u32>) -> Shows {
        let nearest = keys.start as i32 - (queries.end as i32 - 1);
        let farthest = keys.end as i32 - 1 - queries.start as i32;
        let mut all = at.band.lower <= nearest && farthest <= at.band.upper;
        let mut none = farthest < at.band.lower || at.band.upper < nearest;
        if let Some(prefix) = self.prefix {
            let length = visible::prefix_length(prefix, self.prefix_stride, at);
            all |= keys.end as i32 <= length;
            none &= length <= keys.start as i32;
        }
        Shows::new(all, none)
    }

    /// The caller's blocks; `None` if there are too many of them.
    #[inline(always)]
    unsafe fn blocks_show(
        &self,
        at: &Place,
        queries: &Range<u32>,
        keys: &Range<u32>,
    ) -> Option<Shows> {
        let rows = self.block_q.divide(queries.start)..self.block_q.divide(queries.end - 1) + 1;
        let columns = self.block_kv.divide(keys.start)..self.block_kv.divide(keys.end - 1) + 1;
        if (rows.end - rows.start) * (columns.end - columns.start) > MOST_BLOCKS {
            return None;
        }
        let (mut all, mut none) = (true, true);
        let mut query = rows.start;
        while query < rows.end {
            let mut key = columns.start;
            while key < columns.end {
                let address = visible::address(&self.blocks, at, Pair { query, key }, 1);
                let is_hidden = load::u8(address) == BlockState::Hidden as u8;
                all &= !is_hidden;
                none &= is_hidden;
                key += 1;
            }
            query += 1;
        }
        Some(Shows::new(all, none))
    }
}

/// Ids of documents: none of two sets of ids that do not overlap, all if there is but one id.
#[inline(always)]
unsafe fn documents_show(
    documents: &DocumentsArg,
    at: &Place,
    queries: &Range<u32>,
    keys: &Range<u32>,
) -> Shows {
    let (least_q, most_q) = extremes(queries, |query| {
        visible::document_of_query(documents, at, query)
    });
    let (least_k, most_k) = extremes(keys, |key| visible::document_of_key(documents, at, key));
    let all = least_q == most_k && least_k == most_q;
    Shows::new(all, most_q < least_k || most_k < least_q)
}

/// The least and the largest of the ids of `rows`.
#[inline(always)]
fn extremes(rows: &Range<u32>, id: impl Fn(u32) -> i32) -> (i32, i32) {
    /// Rows whose ids are loaded together.
    const GROUP: u32 = 8;
    let (mut least, mut most) = (i32::MAX, i32::MIN);
    let mut row = rows.start;
    while row < rows.end {
        for ahead in 0..GROUP {
            let id = id((row + ahead).min(rows.end - 1));
            least = least.min(id);
            most = most.max(id);
        }
        row += GROUP;
    }
    (least, most)
}

/// Chunks of positions.
#[inline(always)]
fn chunk_shows(chunk: Divisor, at: &Place, queries: &Range<u32>, keys: &Range<u32>) -> Shows {
    let (first, last) = (at.position(queries.start), at.position(queries.end - 1));
    if last < 0 {
        return Shows::None;
    }
    let first_chunk = chunk.divide(first.max(0) as u32);
    let last_chunk = chunk.divide(last as u32);
    let (first_key, last_key) = (chunk.divide(keys.start), chunk.divide(keys.end - 1));
    let is_one = first_chunk == last_chunk && first_key == last_key && first_chunk == first_key;
    let none = last_chunk < first_key || last_key < first_chunk;
    Shows::new(first >= 0 && is_one, none)
}
