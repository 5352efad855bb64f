//! The running softmax over a score fragment, in two forms.
//!
//! The **online** form raises the rows' maxima to those of the block and rescales what was accumulated. The form under
//! a **stale maximum** leaves them (`tile/row_state.rs`, after FlashAttention-4's conditional rescaling): no maximum,
//! no shuffles, no rescaling. f32 and bf16 have exponents to spare, so it is as exact while no probability leaves their
//! range; [`Rows::raise_max_pow2`] raises the maximum when one grows large, and an overflow within one block shows in
//! the sums.

use cuda_std::math::{exp2, max, recip};
use cuda_std::warp::{self, reduce_max, reduce_sum};

use crate::layout::fragment::ROW_STEP;
use crate::modifiers::Modifiers;
use crate::tile::quad::QUAD;
use crate::tile::row_state::RowState;

/// Rows a thread holds a part of; register `4j + 2h + c` of a fragment belongs to row `h`.
pub const ROWS: usize = 2;
const _: () = assert!(ROW_STEP == 8);

/// A factor or sum for each of a thread's rows.
pub type PerRow = [f32; ROWS];

/// State of a thread's two rows.
#[derive(Clone, Copy)]
pub struct Rows([RowState<QUAD>; ROWS]);

/// Factors and log-sum-exps that complete the rows' outputs.
#[derive(Clone, Copy)]
pub struct Finalized {
    /// Normalises the output.
    pub norm: PerRow,
    /// All ones for a row that saw a key, else zero: the bits to keep of its output.
    pub keep: [u32; ROWS],
    /// Log-sum-exp in nats.
    pub lse: PerRow,
}

impl Rows {
    /// No key seen.
    #[inline(always)]
    pub fn new() -> Self {
        Self([RowState::new(); ROWS])
    }

    /// Updates the state with a block of scores and turns them into probabilities under the new maxima; returns the
    /// factors for what was accumulated under the old ones.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn update<const S_REGS: usize>(
        &mut self,
        scores: &mut [f32; S_REGS],
        scale_log2: f32,
    ) -> PerRow {
        let mut maxima = [[scores[0], scores[1]], [scores[2], scores[3]]];
        let mut i = 4;
        while i < S_REGS {
            maxima[0][0] = max(maxima[0][0], scores[i]);
            maxima[0][1] = max(maxima[0][1], scores[i + 1]);
            maxima[1][0] = max(maxima[1][0], scores[i + 2]);
            maxima[1][1] = max(maxima[1][1], scores[i + 3]);
            i += 4;
        }
        let mut rescale = [0.0; ROWS];
        for row in 0..ROWS {
            let block_max = reduce_max::<QUAD>(max(maxima[row][0], maxima[row][1]));
            rescale[row] = exp2(self.0[row].update_max(block_max * scale_log2));
        }
        let sums = self.exponentiate(scores, |_| scale_log2);
        for row in 0..ROWS {
            self.0[row].rescale_and_add(rescale[row], sums[row]);
        }
        rescale
    }

    /// Turns scores into probabilities under the present maxima; `factor` of a score takes it to bits. Returns this thread's part
    /// of their sums, for [`Self::add`].
    #[inline(always)]
    pub fn exponentiate<const S_REGS: usize>(
        &self,
        scores: &mut [f32; S_REGS],
        factor: impl Fn(f32) -> f32,
    ) -> PerRow {
        let [first, second] = self.0;
        // −0 adds nothing to any number, as LLVM knows: no instruction adds it.
        let mut sums = [[-0.0; 2]; ROWS];
        let mut i = 0;
        while i < S_REGS {
            scores[i] = first.p(scores[i], factor(scores[i]));
            scores[i + 1] = first.p(scores[i + 1], factor(scores[i + 1]));
            scores[i + 2] = second.p(scores[i + 2], factor(scores[i + 2]));
            scores[i + 3] = second.p(scores[i + 3], factor(scores[i + 3]));
            sums[0][0] += scores[i];
            sums[0][1] += scores[i + 1];
            sums[1][0] += scores[i + 2];
            sums[1][1] += scores[i + 3];
            i += 4;
        }
        [sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]]
    }

    /// Adds the sums of a block to the state.
    #[inline(always)]
    pub fn add(&mut self, sums: PerRow) {
        for row in 0..ROWS {
            self.0[row].add(sums[row]);
        }
    }

    /// Raises the maxima of rows whose probabilities have grown large by a whole power of two that
    /// brings `sums`, of the latest block, near 1. Returns the factors for what was accumulated, the latest
    /// probabilities included.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call; `sums` are below 2¹²⁶.
    #[inline(always)]
    pub unsafe fn raise_max_pow2(&mut self, sums: PerRow) -> PerRow {
        let mut factor = [1.0; ROWS];
        for row in 0..ROWS {
            let largest = reduce_max::<QUAD>(sums[row]);
            factor[row] = self.0[row].raise_max_pow2(largest);
        }
        factor
    }

    /// Whether all maxima of the warp's rows are at least `bits`.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    #[inline(always)]
    pub unsafe fn all_reach(&self, bits: f32) -> bool {
        // SAFETY: forwarded to the caller.
        unsafe { !warp::any(!(self.0[0].row_max >= bits && self.0[1].row_max >= bits)) }
    }

    /// Whether [`Self::raise_max_pow2`] would round a maximum.
    #[inline(always)]
    pub fn raising_is_inexact(&self) -> bool {
        self.0[0].raising_is_inexact() || self.0[1].raising_is_inexact()
    }

    /// Finalizes the rows, of query heads `heads`. A row that saw no key gets output 0 and, without a sink, lse −∞.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call; as [`Modifiers`].
    #[inline(always)]
    pub unsafe fn finalize<M: Modifiers>(&self, modifiers: &M, heads: [u32; ROWS]) -> Finalized {
        let mut finalized = Finalized {
            norm: [0.0; ROWS],
            keep: [0; ROWS],
            lse: [0.0; ROWS],
        };
        for row in 0..ROWS {
            let state = self.0[row];
            let sum = reduce_sum::<QUAD>(state.row_sum);
            // NaN counts as seen.
            finalized.keep[row] = if sum == 0.0 { 0 } else { !0 };
            if M::MAY_SINK {
                let closed = modifiers.finalize(&state, sum, heads[row]);
                finalized.norm[row] = closed.norm;
                finalized.lse[row] = closed.lse;
            } else {
                finalized.norm[row] = recip(sum);
                finalized.lse[row] = state.lse(sum);
            }
        }
        finalized
    }
}

impl Finalized {
    /// Makes o and lse of the rows NaN. Their elements are finite: such rows see no key.
    #[inline(always)]
    pub fn poison(&mut self) {
        self.norm = [f32::NAN; ROWS];
        self.keep = [!0; ROWS];
        self.lse = [f32::NAN; ROWS];
    }
}

/// Multiplies every element of a fragment by its row's factor.
#[inline(always)]
pub fn scale_rows<const N: usize>(fragment: &mut [f32; N], factor: PerRow) {
    let mut i = 0;
    while i < N {
        fragment[i] *= factor[0];
        fragment[i + 1] *= factor[0];
        fragment[i + 2] *= factor[1];
        fragment[i + 3] *= factor[1];
        i += 4;
    }
}
