//! The keys of a sequence of a cache, of a length that nobody has checked.

use super::kv_tree::seen_keys;
use crate::abi::{AttentionParams, Band};

/// The keys of a sequence of a cache.
#[derive(Clone, Copy)]
pub struct CachedKeys {
    /// 0 where the length is bad.
    pub kv_len: u32,
    /// Whether the length is below 0 or beyond the cache's capacity.
    pub is_bad: bool,
    /// Which keys a query sees.
    pub band: Band,
    /// Keys that some query sees: the first, and one past the last.
    pub seen: (u32, u32),
}

impl CachedKeys {
    /// Those of a sequence of `seq_q` queries whose length is read as `length`.
    #[inline(always)]
    pub fn of_length(attention: &AttentionParams, seq_q: u32, length: u32) -> Self {
        // A negative one is large.
        let is_bad = length > attention.seq_kv;
        let kv_len = if is_bad { 0 } else { length };
        let band = attention.mask.of_sequence(seq_q, kv_len);
        Self {
            kv_len,
            is_bad,
            band,
            seen: seen_keys(seq_q, kv_len, band),
        }
    }
}
