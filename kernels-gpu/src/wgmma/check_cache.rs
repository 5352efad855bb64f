//! Checks a cache's lengths and pages before a kernel of Hopper's reads it.
//!
//! A tile sees some of a sequence's keys, but a page that cannot be makes all rows of the sequence NaN. So a block looks at all
//! pages of a sequence before tiles are listed, and leaves the length that the kernels behind it go by. They are safe with any
//! table: TMA reads nothing outside its operand.

use cuda_std::global;
use cuda_std::thread::{block_idx_x, sync_threads_or, thread_idx_x};

use crate::abi::{CacheFault, CachePages, CheckCacheParams};
use crate::config::check_cache::THREADS;
use crate::tile::cached_keys::CachedKeys;
use crate::tile::rows::q_rows;
use crate::units::F32_BYTES;

/// Checks the sequence of the block's number.
///
/// # Safety
/// The arrays of `params` are live, with an element, and of the block table a row, for each sequence; the launch has a block for
/// each, of the instance's size.
#[inline(always)]
pub unsafe fn check_cache(params: &CheckCacheParams) {
    let sequence = block_idx_x();
    let CheckCacheParams {
        attention,
        pages,
        kv_lens,
        status,
        fewest_queries,
        ..
    } = params;
    let element = |array: u64, index: u64| array + index * F32_BYTES as u64;
    // SAFETY: as the caller vouches.
    unsafe {
        let kv_lens = kv_lens.map_or(0, |lens| lens.get());
        let lens = pages.lens.map_or(0, |lens| lens.get());
        let load = |address| global::load_u32(address) as i32;
        let (_, seq_q) = q_rows(attention, sequence, load);
        if seq_q < *fewest_queries {
            if thread_idx_x() == 0 {
                let skipped = CachePages::SKIPPED as u32;
                global::store_bits(element(lens, sequence as u64), skipped);
            }
            return;
        }
        let length = global::load_u32(element(kv_lens, sequence as u64));
        let keys = CachedKeys::of_length(attention, seq_q, length);
        let (begin, end) = keys.seen;
        let mut is_bad_page = false;
        let table = pages.block_table.map_or(0, |table| table.get());
        let row = element(table, sequence as u64 * pages.table_stride);
        if begin < end && !pages.is_contiguous() {
            let last = (end - 1) >> pages.page_shift;
            let mut entry = (begin >> pages.page_shift) + thread_idx_x();
            while entry <= last {
                // A negative one is large.
                is_bad_page |= global::load_u32(element(row, entry as u64)) >= pages.num_pages;
                entry += THREADS;
            }
        }
        let is_bad_page = sync_threads_or(is_bad_page);
        if thread_idx_x() != 0 {
            return;
        }
        let is_bad = keys.is_bad | is_bad_page;
        let checked = if is_bad {
            CachePages::POISONED as u32
        } else {
            keys.kv_len
        };
        global::store_bits(element(lens, sequence as u64), checked);
        if pages.is_contiguous() {
            global::store_bits(row, sequence);
        }
        let faults = (keys.is_bad as u32 * CacheFault::BadLength as u32)
            | (is_bad_page as u32 * CacheFault::BadPage as u32);
        if let Some(status) = status
            && is_bad
        {
            global::set_bits(status.get(), faults);
        }
    }
}
