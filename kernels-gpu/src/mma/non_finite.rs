//! Taking the non-finite elements out of V, and putting into the output what they would have made of it. Why, and how the
//! Hopper kernels do it: [`crate::tile::non_finite`].
//!
//! The record of the eight columns of a vec16 is a word with four bits a column: [`PLUS`], [`MINUS`], [`NAN`].

use cuda_std::half::SIGN;
use cuda_std::shared;
use cuda_std::thread::thread_idx_x;

use super::MmaKernel;
use super::arithmetic::Arithmetic;
use super::context::TileContext;
use super::element::Element;
use crate::abi::Band;
use crate::config::mma::MmaConfig;
use crate::layout::swizzle::{VEC16_ELEMS, offset, row_vec16s};
use crate::modifiers::{Modifiers, Pair};
use crate::tile::black_box;
use crate::tile::block_range::visible_keys;
use crate::tile::non_finite::{ELEMENT_MASK, is_nan, is_non_finite, shift};
use crate::tile::sequence::Sequence;

/// The column's row sees a +∞, −∞ or NaN.
const PLUS: u32 = 1;
const MINUS: u32 = 2;
const NAN: u32 = 4;
/// Bits of a record for each column.
const COLUMN_BITS: u32 = 4;

/// Record of what a tile's rows see: one word for each row and vec16, then a row of words for keys that all rows see.
#[derive(Clone, Copy)]
pub struct NonFiniteMask {
    /// In shared memory.
    smem: u32,
    rows: u32,
    row_vec16s: u32,
    threads: u32,
}

impl NonFiniteMask {
    #[inline(always)]
    pub fn new(smem: u32, config: MmaConfig) -> Self {
        Self {
            smem,
            rows: config.block_m() as u32,
            row_vec16s: row_vec16s(config.columns()) as u32,
            threads: config.threads(),
        }
    }

    #[inline(always)]
    fn address(&self, row: u32, vec16: u32) -> u32 {
        self.smem + (row * self.row_vec16s + vec16) * size_of::<u32>() as u32
    }

    /// Erases all records, as a whole block.
    ///
    /// # Safety
    /// Nobody else accesses them until a barrier is passed.
    #[inline(always)]
    pub unsafe fn clear(&self) {
        let mut index = thread_idx_x();
        while index < black_box((self.rows + 1) * self.row_vec16s) {
            shared::store_bits(self.address(0, index), 0);
            index += self.threads;
        }
    }

    /// Takes the non-finite elements out of V's stage at `v_smem`, whose rows are keys from `key_begin` on, and records
    /// them for the rows of the tile, queries from `m_begin` on.
    ///
    /// # Safety
    /// The whole block calls it, V has arrived, and nobody else accesses it or the records until a barrier is passed.
    #[inline(always)]
    pub unsafe fn sanitize_v<K: MmaKernel>(
        &self,
        tile: &TileContext<K::Modifiers>,
        v_smem: u32,
        key_begin: u32,
    ) {
        let config = K::CONFIG;
        let m_begin = tile.m_begin();
        let Sequence { seq_kv, band, .. } = tile.info().sequence;
        let mut index = thread_idx_x();
        // Not the field, which compilers may lose sight of: a division by 0 would panic.
        let row_vec16s = row_vec16s(config.columns()) as u32;
        while index < black_box(config.block_n as u32 * row_vec16s) {
            let (key, vec16) = (index / row_vec16s, index % row_vec16s);
            let address = v_smem + offset(config.columns(), key, vec16);
            let words = shared::load4_bits(address);
            let (words, kinds) = K::Element::take_non_finite(words);
            if kinds != 0 {
                shared::store4_bits(address, words);
                let key = key_begin + key;
                if tile.modifiers.hides() {
                    self.record_of_pairs(tile, key, vec16, kinds);
                } else {
                    self.record(key, vec16, kinds, m_begin, band, seq_kv);
                }
            }
            index += self.threads;
        }
    }

    /// Adds `kinds` to the record of every row that sees `key`.
    ///
    /// # Safety
    /// As [`NonFiniteMask::sanitize_v`].
    #[inline(always)]
    unsafe fn record(
        &self,
        key: u32,
        vec16: u32,
        kinds: u32,
        m_begin: u32,
        band: Band,
        seq_kv: u32,
    ) {
        let key = key as i32;
        let sees = |row: u32| {
            let (first, last) = visible_keys((m_begin + row) as i32, band, seq_kv);
            first <= key && key <= last
        };
        // The band moves right as the row grows: the last row has the last first key, the first row the first last one.
        let (_, last) = visible_keys(m_begin as i32, band, seq_kv);
        let (first, _) = visible_keys((m_begin + self.rows - 1) as i32, band, seq_kv);
        if first <= key && key <= last {
            shared::atomic_or(self.address(self.rows, vec16), kinds);
            return;
        }
        let mut row = 0;
        while row < black_box(self.rows) {
            if sees(row) {
                shared::atomic_or(self.address(row, vec16), kinds);
            }
            row += 1;
        }
    }

    /// As [`NonFiniteMask::record`], where more than the band hides pairs.
    ///
    /// # Safety
    /// As [`NonFiniteMask::sanitize_v`].
    #[inline(always)]
    unsafe fn record_of_pairs<M: Modifiers>(
        &self,
        tile: &TileContext<M>,
        key: u32,
        vec16: u32,
        kinds: u32,
    ) {
        let (at, m_begin) = (tile.place(), tile.m_begin());
        let mut row = 0;
        while row < black_box(self.rows) {
            let query = m_begin + row;
            let exists = query < at.seq_q && key < at.seq_kv;
            if exists && tile.modifiers.sees(&at, Pair { query, key }) {
                shared::atomic_or(self.address(row, vec16), kinds);
            }
            row += 1;
        }
    }

    /// Applies the records to a vec16 of row `row` of the output.
    ///
    /// # Safety
    /// All records are written and visible.
    #[inline(always)]
    pub unsafe fn apply<E: Arithmetic>(&self, words: [u32; 4], row: u32, vec16: u32) -> [u32; 4] {
        // SAFETY: forwarded to the caller.
        let kinds = unsafe {
            shared::load_bits(self.address(row, vec16))
                | shared::load_bits(self.address(self.rows, vec16))
        };
        E::put_non_finite(words, kinds)
    }
}

/// `words` of the output with what the record `kinds` says that their row sees.
#[inline(always)]
pub fn join<E: Element>(words: [u32; 4], kinds: u32) -> [u32; 4] {
    let mut result = words;
    if kinds != 0 {
        for i in 0..VEC16_ELEMS {
            let word = &mut result[i / 2];
            let half = shift(i);
            let seen = kinds >> (i as u32 * COLUMN_BITS);
            let element = *word >> half & ELEMENT_MASK;
            let element = mark::<E>(element, seen);
            *word = *word & !(ELEMENT_MASK << half) | element << half;
        }
    }
    result
}

/// `words` with non-finite elements replaced by 0, and what they were.
#[inline(always)]
pub fn split<E: Element>(mut words: [u32; 4]) -> ([u32; 4], u32) {
    let mut kinds = 0;
    for i in 0..VEC16_ELEMS {
        let word = &mut words[i / 2];
        let half = shift(i);
        let element = *word >> half & ELEMENT_MASK;
        if is_non_finite::<E>(element) {
            let kind = if is_nan::<E>(element) {
                NAN
            } else if element & SIGN != 0 {
                MINUS
            } else {
                PLUS
            };
            kinds |= kind << (i as u32 * COLUMN_BITS);
            *word &= !(ELEMENT_MASK << half);
        }
    }
    (words, kinds)
}

/// The output `element` once what its row sees, the low bits of `seen`, is added.
#[inline(always)]
fn mark<E: Element>(element: u32, seen: u32) -> u32 {
    let is_nan = is_nan::<E>(element);
    match seen & (PLUS | MINUS | NAN) {
        0 => element,
        _ if is_nan => element,
        PLUS => E::INFINITY,
        MINUS => E::INFINITY | SIGN,
        _ => E::INFINITY | 1,
    }
}
