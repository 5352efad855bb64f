use core::ops::Range;

use bytemuck::{Pod, Zeroable};
use kernels_gpu::abi::BlockState;
use kernels_gpu::modifiers::{Buffer, Hides, Pair, Place, ScoreMod, load};

/// Documents behind each other in a sequence, each causal: a query sees the keys of its own document up to itself.
///
/// Queries and keys are the same rows, and documents have rising ids: so that the first and the last row of a block tell which
/// documents are in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct DocumentCausal {
    /// u32 `[batch, seq]`, by address; the first buffer.
    ids: u64,
    batch: u32,
    seq: u32,
}

impl DocumentCausal {
    /// Of `batch` sequences of `seq` rows.
    pub fn new(batch: u32, seq: u32) -> Self {
        Self { ids: 0, batch, seq }
    }

    /// The document of a row.
    #[inline(always)]
    fn id(&self, at: &Place, row: u32) -> u32 {
        let index = at.batch as u64 * self.seq as u64 + row.min(self.seq - 1) as u64;
        // SAFETY: `bind` has seen that there is an id for every row.
        unsafe { load::u32(self.ids + index * size_of::<u32>() as u64) }
    }
}

impl ScoreMod for DocumentCausal {
    // Every head sees the same.
    const HIDES: Hides = Hides::ByBatch;
    const CHANGES_SCORES: bool = false;

    #[inline(always)]
    fn is_visible(&self, at: &Place, pair: Pair) -> bool {
        pair.key <= pair.query && self.id(at, pair.key) == self.id(at, pair.query)
    }

    /// Of all blocks of keys, a query tile loads those of its own documents alone.
    #[inline(always)]
    fn block_state(&self, at: &Place, queries: Range<u32>, keys: Range<u32>) -> Option<BlockState> {
        if queries.is_empty() || keys.is_empty() {
            return Some(BlockState::Hidden);
        }
        let first_query = self.id(at, queries.start);
        let is_later = keys.start >= queries.end;
        if is_later || self.id(at, keys.end - 1) < first_query {
            return Some(BlockState::Hidden);
        }
        let is_past = keys.end <= queries.start + 1;
        let is_one = self.id(at, keys.start) == self.id(at, queries.end - 1);
        (is_past && is_one).then_some(BlockState::Full)
    }

    fn bind(&mut self, buffers: &[Buffer]) -> Result<(), &'static str> {
        let elements = u64::from(self.batch) * u64::from(self.seq);
        match buffers {
            [ids] if ids.bytes >= elements * 4 => {
                self.ids = ids.address;
                Ok(())
            }
            _ => Err("one buffer, a u32 for each row"),
        }
    }
}
