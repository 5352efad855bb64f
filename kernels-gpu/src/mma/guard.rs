//! Keeping ∞ and NaN in V away from rows that do not see them.
//!
//! A hidden key's probability is 0, and 0·∞ would poison the row. So when a tile is computed with care, the block
//! first takes every non-finite element out of V's stage and notes, for each row that sees its key, what it was; the
//! notes are applied to the rows as they are written.
//!
//! A *note* is a word for the eight columns of a piece, four bits a column: [`PLUS`], [`MINUS`], [`NAN`].

use cuda_std::half::SIGN;
use cuda_std::shared;
use cuda_std::thread::thread_idx_x;

use super::element::Element;
use crate::abi::Band;
use crate::config::mma::MmaTile;
use crate::layout::swizzle::{offset, row_pieces};
use crate::tile::block_range::visible_keys;
use crate::tile::opaque;

/// The column's row sees a +∞, −∞ or NaN.
const PLUS: u32 = 1;
const MINUS: u32 = 2;
const NAN: u32 = 4;
/// Bits of a note for each column.
const COLUMN_BITS: u32 = 4;

/// The notes of a tile: one word for each row and piece, then a row of words for keys that all rows see.
#[derive(Clone, Copy)]
pub struct Notes {
    /// In shared memory.
    address: u32,
    rows: u32,
    row_pieces: u32,
    threads: u32,
}

impl Notes {
    #[inline(always)]
    pub fn new(address: u32, config: MmaTile) -> Self {
        Self {
            address,
            rows: config.block_m() as u32,
            row_pieces: row_pieces(config.head_dim) as u32,
            threads: config.threads(),
        }
    }

    #[inline(always)]
    fn note(&self, row: u32, piece: u32) -> u32 {
        self.address + (row * self.row_pieces + piece) * size_of::<u32>() as u32
    }

    /// Erases all notes, as a whole block.
    ///
    /// # Safety
    /// Nobody else accesses them until a barrier is passed.
    #[inline(always)]
    pub unsafe fn clear(&self) {
        let mut index = thread_idx_x();
        while index < opaque((self.rows + 1) * self.row_pieces) {
            // SAFETY: forwarded to the caller.
            unsafe { shared::store_bits(self.note(0, index), 0) };
            index += self.threads;
        }
    }

    /// Takes the non-finite elements out of V's stage at `v_smem`, whose rows are keys from `key_begin` on, and notes
    /// them for the rows of the tile, queries from `m_begin` on.
    ///
    /// # Safety
    /// The whole block calls it, V has arrived, and nobody else accesses it or the notes until a barrier is passed.
    #[inline(always)]
    pub unsafe fn clean<E: Element>(
        &self,
        config: MmaTile,
        v_smem: u32,
        key_begin: u32,
        m_begin: u32,
        band: Band,
        seq_kv: u32,
    ) {
        let mut index = thread_idx_x();
        while index < opaque(config.block_n as u32 * self.row_pieces) {
            let (key, piece) = (index / self.row_pieces, index % self.row_pieces);
            let address = v_smem + offset(config.head_dim, key, piece);
            // SAFETY: forwarded to the caller.
            unsafe {
                let words = shared::load4_bits(address);
                let (words, note) = split::<E>(words);
                if note != 0 {
                    shared::store4_bits(address, words);
                    self.spread(key_begin + key, piece, note, m_begin, band, seq_kv);
                }
            }
            index += self.threads;
        }
    }

    /// Adds `note` to every row that sees `key`.
    ///
    /// # Safety
    /// As [`Notes::clean`].
    #[inline(always)]
    unsafe fn spread(
        &self,
        key: u32,
        piece: u32,
        note: u32,
        m_begin: u32,
        band: Band,
        seq_kv: u32,
    ) {
        let key = key as i32;
        let sees = |row: u32| {
            let (first, last) = visible_keys((m_begin + row) as i32, band, seq_kv);
            first <= key && key <= last
        };
        // The rows that see a key are consecutive.
        if sees(0) && sees(self.rows - 1) {
            // SAFETY: forwarded to the caller.
            unsafe { shared::atomic_or(self.note(self.rows, piece), note) };
            return;
        }
        let mut row = 0;
        while row < opaque(self.rows) {
            if sees(row) {
                // SAFETY: forwarded to the caller.
                unsafe { shared::atomic_or(self.note(row, piece), note) };
            }
            row += 1;
        }
    }

    /// Applies the notes to a piece of row `row` of the output.
    ///
    /// # Safety
    /// All notes are written and visible.
    #[inline(always)]
    pub unsafe fn apply<E: Element>(&self, words: [u32; 4], row: u32, piece: u32) -> [u32; 4] {
        // SAFETY: forwarded to the caller.
        let note = unsafe {
            shared::load_bits(self.note(row, piece))
                | shared::load_bits(self.note(self.rows, piece))
        };
        let mut result = words;
        if note != 0 {
            for i in 0..8 {
                let word = &mut result[i / 2];
                let half = i as u32 % 2 * 16;
                let seen = note >> (i as u32 * COLUMN_BITS);
                let element = *word >> half & 0xffff;
                let element = mark::<E>(element, seen);
                *word = *word & !(0xffff << half) | element << half;
            }
        }
        result
    }
}

/// `words` with non-finite elements replaced by 0, and the note about them.
#[inline(always)]
fn split<E: Element>(mut words: [u32; 4]) -> ([u32; 4], u32) {
    let mut note = 0;
    for i in 0..8 {
        let word = &mut words[i / 2];
        let half = i as u32 % 2 * 16;
        let element = *word >> half & 0xffff;
        let magnitude = element & !SIGN;
        if magnitude >= E::INFINITY {
            let kind = if magnitude > E::INFINITY {
                NAN
            } else if element & SIGN != 0 {
                MINUS
            } else {
                PLUS
            };
            note |= kind << (i as u32 * COLUMN_BITS);
            *word &= !(0xffff << half);
        }
    }
    (words, note)
}

/// The output `element` once what its row sees, the low bits of `seen`, is added.
#[inline(always)]
fn mark<E: Element>(element: u32, seen: u32) -> u32 {
    let is_nan = element & !SIGN > E::INFINITY;
    match seen & (PLUS | MINUS | NAN) {
        0 => element,
        _ if is_nan => element,
        PLUS => E::INFINITY,
        MINUS => E::INFINITY | SIGN,
        _ => E::INFINITY | 1,
    }
}
