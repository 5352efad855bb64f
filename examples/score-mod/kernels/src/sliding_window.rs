use core::ops::Range;

use bytemuck::{Pod, Zeroable};
use kernels_gpu::abi::BlockState;
use kernels_gpu::modifiers::{Hides, Place, ScoreMod};

/// A query sees the key at its own position and the `left` keys before it: what `Mask::Window` does too, to be timed beside it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct SlidingWindow {
    pub left: u32,
}

impl SlidingWindow {
    /// Whether a key that lies `distance` before a query is seen.
    #[inline(always)]
    fn sees(&self, distance: i32) -> bool {
        0 <= distance && distance <= self.left as i32
    }
}

impl ScoreMod for SlidingWindow {
    // All heads of all batch entries see the same.
    const HIDES: Hides = Hides::Alike;
    const SEES_RANGE: bool = true;
    const CHANGES_SCORES: bool = false;

    #[inline(always)]
    fn visible_keys(&self, at: &Place, query: u32) -> Range<i32> {
        let position = at.position(query);
        position - self.left as i32..position + 1
    }

    /// A block's distances lie between those of two of its corners: it is known without asking a pair.
    #[inline(always)]
    fn block_state(&self, at: &Place, queries: Range<u32>, keys: Range<u32>) -> Option<BlockState> {
        if queries.is_empty() || keys.is_empty() {
            return Some(BlockState::Hidden);
        }
        let least = at.position(queries.start) - (keys.end as i32 - 1);
        let most = at.position(queries.end - 1) - keys.start as i32;
        Some(if self.sees(least) && self.sees(most) {
            BlockState::Full
        } else if most < 0 || least > self.left as i32 {
            BlockState::Hidden
        } else {
            BlockState::Partial
        })
    }
}
