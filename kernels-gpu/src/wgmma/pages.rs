//! Where TMA, and who reads single keys, finds the keys of a cache.

use cuda_std::global;

use crate::abi::{AttentionParams, CachePages, SequenceRows, TensorArg};
use crate::tile::{black_box, black_box64};
use crate::units::{F32_BYTES, HALF_BYTES};

/// The pages of a launch, and what is read of them.
#[derive(Clone, Copy)]
pub struct Pages<'a>(&'a CachePages);

impl<'a> Pages<'a> {
    #[inline(always)]
    pub fn new(pages: &'a CachePages) -> Self {
        Self(pages)
    }

    /// Whether a sequence's keys end in the middle of the box that `key` is in.
    #[inline(always)]
    pub fn end_in_box_of(&self, key: u32, seq_kv: u32) -> bool {
        let begin = key & !(self.box_rows() - 1);
        (begin < seq_kv) & (begin + self.box_rows() > seq_kv)
    }

    /// Keys of a box.
    #[inline(always)]
    pub fn box_rows(&self) -> u32 {
        self.0.box_rows
    }

    /// Address of a sequence's row of the block table.
    #[inline(always)]
    pub fn table_row(&self, sequence: u32) -> u64 {
        let table = self.0.block_table.map_or(0, |table| table.get());
        table + sequence as u64 * self.0.table_stride * F32_BYTES as u64
    }

    /// The page of key `key`, which the table's row at `table_row` names.
    ///
    /// There may be no such page: those with keys that some query sees have been checked, and a block of keys holds others.
    ///
    /// # Safety
    /// The row is live, and the sequence has such a key.
    #[inline(always)]
    pub unsafe fn page(&self, table_row: u64, key: u32) -> u32 {
        let entry = key >> self.0.page_shift;
        // SAFETY: the row has an entry for every key of the sequence.
        unsafe { global::load_u32(table_row + (entry * F32_BYTES) as u64) }
    }

    /// As [`page`](Self::page); of a key behind the sequence's `seq_kv` keys a page that does not exist, from which TMA reads zeros.
    ///
    /// # Safety
    /// As [`page`](Self::page), for those keys.
    #[inline(always)]
    pub unsafe fn page_or_none(&self, table_row: u64, key: u32, seq_kv: u32) -> u32 {
        if key < seq_kv {
            // SAFETY: forwarded to the caller.
            unsafe { self.page(table_row, key) }
        } else {
            self.0.num_pages
        }
    }

    /// A key's place in its page.
    #[inline(always)]
    pub fn place(&self, key: u32) -> u32 {
        key & ((1 << self.0.page_shift) - 1)
    }

    /// Address of component 0 of key `key` of head `head_kv` of k or v.
    ///
    /// # Safety
    /// Some query of the sequence sees the key; as [`page`](Self::page).
    #[inline(always)]
    pub unsafe fn key_address(
        &self,
        operand: &TensorArg,
        head_kv: u32,
        sequence: u32,
        key: u32,
    ) -> u64 {
        // black_box: worked out for each key rather than kept, for want of registers.
        let table_row = self.table_row(black_box(sequence));
        // SAFETY: as the caller vouches.
        let page = unsafe { self.page(table_row, black_box(key)) };
        let offset = page as i64 * operand.batch_stride
            + head_kv as i64 * operand.head_stride
            + self.place(key) as i64 * operand.seq_stride;
        black_box64(operand.address).wrapping_add_signed(offset * HALF_BYTES as i64)
    }

    /// Whether rows of the sequence are NaN.
    ///
    /// # Safety
    /// The launch has that sequence, and its lens are live.
    #[inline(always)]
    pub unsafe fn is_poisoned(&self, sequence: u32) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe { self.checked_length(sequence) == CachePages::POISONED }
    }

    /// The rows of a sequence of a launch that has the same number of queries for each.
    ///
    /// # Safety
    /// As [`is_poisoned`](Self::is_poisoned).
    #[inline(always)]
    pub unsafe fn rows(&self, params: &AttentionParams, sequence: u32) -> SequenceRows {
        // SAFETY: forwarded to the caller.
        let length = unsafe { self.checked_length(sequence) };
        SequenceRows {
            q_begin: 0,
            seq_q: params.seq_q,
            kv_begin: 0,
            seq_kv: (length.max(0) as u32).min(params.seq_kv),
        }
    }

    /// Its length, or what stands for one.
    ///
    /// # Safety
    /// As [`is_poisoned`](Self::is_poisoned).
    #[inline(always)]
    unsafe fn checked_length(&self, sequence: u32) -> i32 {
        let lens = self.0.lens.map_or(0, |lens| lens.get());
        let address = lens + sequence as u64 * F32_BYTES as u64;
        // SAFETY: there is a length for every sequence, which nobody writes.
        unsafe { global::load_u32(address) as i32 }
    }
}
