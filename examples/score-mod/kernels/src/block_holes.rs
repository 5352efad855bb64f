use core::ops::Range;

use bytemuck::{Pod, Zeroable};
use kernels_gpu::abi::BlockState;
use kernels_gpu::modifiers::{Hides, Pair, Place, ScoreMod};

/// A query sees the keys of its own block of `2^block_log2` rows, but for a hole of `hole` keys, which lies elsewhere in each head.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct BlockHoles {
    pub block_log2: u32,
    /// Keys of the hole, from key `7 · head` of each block on.
    pub hole: u32,
}

impl BlockHoles {
    /// How many keys one head's hole begins behind that of the head before it.
    pub const STEP: u32 = 7;

    #[inline(always)]
    fn block(&self, row: u32) -> u32 {
        row >> self.block_log2
    }
}

impl ScoreMod for BlockHoles {
    const HIDES: Hides = Hides::ByHead;
    const CHANGES_SCORES: bool = false;

    #[inline(always)]
    fn is_visible(&self, at: &Place, pair: Pair) -> bool {
        let in_block = pair.key & ((1 << self.block_log2) - 1);
        let begin = at.head * Self::STEP;
        let in_hole = begin <= in_block && in_block < begin + self.hole;
        self.block(pair.query) == self.block(pair.key) && !in_hole
    }

    #[inline(always)]
    fn block_state(&self, _: &Place, queries: Range<u32>, keys: Range<u32>) -> Option<BlockState> {
        if queries.is_empty() || keys.is_empty() {
            return Some(BlockState::Hidden);
        }
        let is_before = self.block(keys.end - 1) < self.block(queries.start);
        let is_behind = self.block(keys.start) > self.block(queries.end - 1);
        (is_before || is_behind).then_some(BlockState::Hidden)
    }
}
