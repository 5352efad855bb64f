//! Where pairs of queries and keys are.

use crate::abi::Band;

/// A query and a key, counted from the first of their sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub query: u32,
    pub key: u32,
}

/// A query head of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Number of the sequence.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Query heads of the launch.
    pub heads: u32,
    /// First rows of the sequence in packed operands; 0 otherwise.
    pub q_begin: u32,
    pub kv_begin: u32,
    pub seq_q: u32,
    pub seq_kv: u32,
    /// From the sequence's top-left corner.
    pub band: Band,
}

impl Place {
    /// Position among the keys of `query`: the last query stands at the last key.
    #[inline(always)]
    pub fn position(&self, query: u32) -> i32 {
        query as i32 + self.seq_kv as i32 - self.seq_q as i32
    }
}

#[cfg(target_arch = "nvptx64")]
impl Place {
    /// Query head `head` of `sequence`, which is number `batch` of the `heads` heads' launch.
    #[inline(always)]
    pub fn new(
        sequence: &crate::tile::sequence::Sequence,
        batch: u32,
        head: u32,
        heads: u32,
    ) -> Self {
        Self {
            batch,
            head,
            heads,
            q_begin: sequence.q_begin,
            kv_begin: sequence.kv_begin,
            seq_q: sequence.seq_q,
            seq_kv: sequence.seq_kv,
            band: sequence.band,
        }
    }
}
