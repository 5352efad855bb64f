//! Addresses of a cache.

use super::address::{WORD_BYTES, check_address};
use crate::{CacheLayout, Error};

/// Addresses that attention to a cache has in addition to those of [`Operands`](crate::Operands).
///
/// Kernels do not trust what lies there: see [`KvCache`](crate::KvCache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheOperands {
    /// Keys of each sequence, i32 `[batch]`.
    pub kv_lens: u64,
    /// Pages of each sequence, i32 `[batch, max_pages]`; needed by a paged cache, and ignored otherwise.
    pub block_table: Option<u64>,
    /// A u32 in which a launch sets the bits of [`CacheFaults`](crate::CacheFaults) that it meets, and clears none.
    pub status: Option<u64>,
    /// f32 scales of k and v, of an e4m3 cache that has some.
    pub scales: Option<[u64; 2]>,
}

impl CacheOperands {
    /// The addresses of a contiguous cache.
    pub const fn new(kv_lens: u64) -> Self {
        Self {
            kv_lens,
            block_table: None,
            status: None,
            scales: None,
        }
    }

    /// Sets [`block_table`](Self::block_table).
    pub fn block_table(mut self, address: impl Into<Option<u64>>) -> Self {
        self.block_table = address.into();
        self
    }

    /// Sets [`status`](Self::status).
    pub fn status(mut self, address: impl Into<Option<u64>>) -> Self {
        self.status = address.into();
        self
    }

    /// Sets [`scales`](Self::scales).
    pub fn scales(mut self, addresses: impl Into<Option<[u64; 2]>>) -> Self {
        self.scales = addresses.into();
        self
    }

    /// Returns an error if one cannot be the address of its array, or scales are given that the problem has none of, or not those
    /// that it has.
    pub(crate) fn check(&self, layout: CacheLayout, has_scales: bool) -> Result<(), Error> {
        if has_scales != self.scales.is_some() {
            let wrong = format!("given: {}", self.scales.is_some());
            let allowed = format!("{has_scales}, as the problem has it");
            return Err(Error::argument("scales", wrong, allowed));
        }
        // Of no page there are none, which may lie nowhere.
        let scales = self.scales.into_iter().flatten();
        for scales in scales.filter(|&address| address != 0) {
            check_address("scales", scales, WORD_BYTES)?;
        }
        check_address("kv_lens", self.kv_lens, WORD_BYTES)?;
        match (layout, self.block_table) {
            (CacheLayout::Paged { .. }, None) => {
                let wrong = "no address is given, and the cache has pages";
                let allowed = "its address among those of the cache";
                return Err(Error::argument("block_table", wrong, allowed));
            }
            (CacheLayout::Paged { max_pages, .. }, Some(address)) if max_pages > 0 => {
                check_address("block_table", address, WORD_BYTES)?;
            }
            _ => {}
        }
        match self.status {
            Some(address) => check_address("status", address, WORD_BYTES),
            None => Ok(()),
        }
    }
}
