//! A row's running softmax ([`RowState`]) where `LANES` lanes, `STRIDE` apart, share the row.

use cuda_std::warp::{reduce_max_strided, reduce_sum_strided};

use super::row_state::{Finalized, RowState};
use crate::math::{fma, max};
use crate::modifiers::Modifiers;
use crate::score::ScoreTransform;

impl<const LANES: u32, const STRIDE: u32> RowState<LANES, STRIDE> {
    /// Updates the state with a block of scores, turns them into probabilities under the new maximum, and returns the
    /// factor by which to rescale what was accumulated under the old one.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call, and every block of the row so far came through this method.
    #[inline(always)]
    pub unsafe fn update<const COLS: usize>(
        &mut self,
        scores: &mut [f32; COLS],
        transform: &ScoreTransform,
    ) -> f32 {
        // SAFETY: the caller vouches that all lanes are here.
        let block_max = unsafe { Self::block_max(scores, transform) };
        self.update_under(block_max, scores, transform.scale_log2)
    }

    /// The largest score of a block of the row, in bits, as [`RowState::update_max`] takes it.
    ///
    /// It counts [`ScoreTransform::shift`] above the score: that leaves room for sums of products `p · v` with values
    /// near f32's limit; it costs the exponent's last bits.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn block_max<const COLS: usize>(
        scores: &[f32; COLS],
        transform: &ScoreTransform,
    ) -> f32 {
        // SAFETY: the caller vouches that all lanes are here.
        let block_max = unsafe { reduce_max_strided::<LANES, STRIDE>(largest(scores)) };
        fma(block_max, transform.scale_log2, transform.shift)
    }

    /// Closes the row, of query head `head`: the factor that normalises its output, and its log-sum-exp in nats.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn finalize<M: Modifiers>(&self, modifiers: &M, head: u32) -> Finalized {
        // SAFETY: the caller vouches that all lanes are here, and for the modifiers.
        unsafe {
            let sum = reduce_sum_strided::<LANES, STRIDE>(self.row_sum);
            modifiers.finalize(self, sum, head)
        }
    }
}

/// The largest of a lane's scores.
#[inline(always)]
pub fn largest<const COLS: usize>(scores: &[f32; COLS]) -> f32 {
    let mut largest = scores[0];
    for score in &scores[1..] {
        largest = max(largest, *score);
    }
    largest
}
