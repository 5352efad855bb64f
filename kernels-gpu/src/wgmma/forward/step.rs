//! One block of keys: from its scores to rounded probabilities, by the online softmax or under a stale maximum.

use cuda_std::half::Half;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp;
use cuda_std::wgmma::InFlight;

use super::biases::{Copied, add as add_biases};
use super::blocks::row_begin;
use super::consumer::Consumer;
use super::mask::{BlockMask, below, col};
use super::recompute::recompute_scores;
use super::softcap::{NearZero, Softcap};
use super::softmax::{PerRow, ROWS, scale_rows};
use super::traits::ForwardKernel;
use crate::config::biases::Biases;
use crate::config::wgmma::WARPGROUP;
use crate::modifiers::Modifiers;
use crate::score::{self, ScoreTransform};
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::sequence::Sequence;
use crate::units::pow2;
use crate::wgmma::scheduler::TileCoord;
use crate::wgmma::scheduler::tile_pipe::WorkTilePipe;

/// A thread's part of a block's sum above which the maxima are raised: far from f32's limit, and below
/// f16's, so that no probability that is rounded to f16 overflows.
const LARGE_SUM: f32 = 1024.0;

/// Whether a sum of the warp's rows is large, infinite or NaN.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
unsafe fn any_large(sums: PerRow) -> bool {
    // SAFETY: forwarded to the caller.
    unsafe { warp::any(!(sums[0] <= LARGE_SUM && sums[1] <= LARGE_SUM)) }
}

/// A thread's part of a block's sum above which the block is done again by the online softmax: 2¹²⁰, well inside
/// the range in which [`Rows::raise_max_pow2`](super::softmax::Rows::raise_max_pow2) has an exact factor.
const HUGE_SUM: f32 = pow2(HUGE_SUM_EXPONENT);
const HUGE_SUM_EXPONENT: i32 = 120;

/// A probability's exponent up to which a thread's part of a block's sum stays below [`HUGE_SUM`].
const LARGEST_EXPONENT: f32 = (HUGE_SUM_EXPONENT - MOST_COLUMNS.ilog2() as i32) as f32;
/// Scores of a row that a thread has of a block, at most.
const MOST_COLUMNS: usize = 64;

impl<K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>
    Consumer<'_, K, S_REGS, P_REGS, O_REGS>
where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; O_REGS]: InFlight,
{
    /// From the scores of a block, which may have masks, to rounded probabilities by the online softmax. Waits for O += P V of the block
    /// before, if this is not the first.
    #[inline(always)]
    pub(super) unsafe fn finish_online(
        &mut self,
        blocks: BlockRange,
        n_block: u32,
        is_first: bool,
        tile_pipe: &WorkTilePipe,
    ) {
        self.release_k();
        let rescale = self.softmax(blocks, n_block, tile_pipe);
        self.wait_pv_unless(is_first);
        // Before the first PV the output is 0.
        if !is_first && warp::any(rescale[0] != 1.0 || rescale[1] != 1.0) {
            scale_rows(&mut self.acc_o, rescale);
        }
        self.cvt_p();
    }

    /// Whether the step under a stale maximum converts each probability right after computing it: `cvt` is then issued
    /// between `ex2`, and the unit for exponentials stays busy. Possible if PV has read the previous probabilities by
    /// then, if no probability that [`Self::rescale_late`] could still save is rounded to ∞, and if none is dropped.
    const CVT_P_EARLY: bool =
        K::Modifiers::IS_NONE && !Self::CONFIG.overlap && K::Element::LARGEST_EXPONENT.is_none();

    /// Advances by one block, without masks: S = Q Kᵀ of the next one while O += P V of the one before runs, then the softmax under the
    /// maxima of the block before.
    #[inline(always)]
    pub(super) unsafe fn step_stale_max(&mut self, q_operand: &K::QkOperand) {
        self.issue_qk_pv(q_operand);
        self.wait_qk();
        self.finish_stale_max(q_operand);
        if !Self::CVT_P_EARLY {
            self.cvt_p();
        }
    }

    /// From the scores of a block without masks to probabilities under the maxima of the block before.
    #[inline(always)]
    pub(super) unsafe fn finish_stale_max(&mut self, q_operand: &K::QkOperand) {
        let scale = self.scale;
        let sums = self.rows.exponentiate(&mut self.acc_s, |_| scale);
        if Self::CVT_P_EARLY {
            self.cvt_p();
        }
        let large = any_large(sums);
        // K of this block stays if its scores may be needed again. The vote's place here also keeps ptxas from
        // moving exponentials behind the wait for PV.
        self.k
            .consumer_release_if(!large, self.lanes.lane, Self::CONFIG.cluster);
        self.wait_pv();
        if large {
            self.rescale_late(q_operand, sums);
        } else {
            self.rows.add(sums);
        }
        self.k.advance();
    }

    /// Handles a block in which a row of this warp outgrew its stale maximum: raises the maximum, or, if the row may
    /// have overflowed f32 or its maxima are too large to be raised exactly, redoes the block by the online softmax.
    #[inline(always)]
    unsafe fn rescale_late(&mut self, q_operand: &K::QkOperand, sums: PerRow) {
        let Self { lanes, k, .. } = *self;
        // SAFETY: the whole warp takes the same branch.
        unsafe {
            let in_range = sums[0] <= HUGE_SUM && sums[1] <= HUGE_SUM;
            let factor = if warp::any(!in_range || self.rows.raising_is_inexact()) {
                let k_smem = self.k_smem.offset(k.stage * Self::CONFIG.k_bytes());
                let k_smem = k_smem.address(self.launch.smem);
                recompute_scores::<K::Element, _, S_REGS>(
                    &Self::CONFIG,
                    q_operand,
                    &mut self.acc_s,
                    k_smem,
                    lanes,
                );
                // One lane releases Q and K, which all have read.
                warp::sync_warp();
                let factor = self.rows.update(&mut self.acc_s, self.scale);
                if Self::CVT_P_EARLY {
                    self.cvt_p();
                }
                factor
            } else {
                self.rows.add(sums);
                let factor = self.rows.raise_max_pow2(sums);
                if Self::CVT_P_EARLY {
                    self.scale_p(factor);
                } else {
                    scale_rows(&mut self.acc_s, factor);
                }
                factor
            };
            scale_rows(&mut self.acc_o, factor);
            self.k.consumer_release(lanes.lane, Self::CONFIG.cluster);
        }
    }

    /// Transforms and masks the scores of block `n_block` where needed, and turns them into probabilities.
    #[inline(always)]
    pub(super) unsafe fn softmax(
        &mut self,
        blocks: BlockRange,
        n_block: u32,
        tile_pipe: &WorkTilePipe,
    ) -> PerRow {
        let key_begin = n_block * Self::CONFIG.block_n;
        let right = blocks.needs_right_mask(key_begin, Self::CONFIG.block_n);
        let left = blocks.needs_left_mask(key_begin);
        self.softmax_masked(key_begin, [right, left], Copied::No, tile_pipe)
    }

    /// The same of the block whose first key is `key_begin`, and which needs masks on the right, and on the left, or not.
    #[inline(always)]
    pub(super) unsafe fn softmax_masked(
        &mut self,
        key_begin: u32,
        [right, left]: [bool; 2],
        biases: Copied,
        tile_pipe: &WorkTilePipe,
    ) -> PerRow {
        let mut is_plain = self.is_plain();
        let mut scale_log2 = self.scale;
        if let Some(softcap) = Self::softcap_alone(&self.launch.params.attention.score) {
            let floor = softcap.largest_near_zero() - LARGEST_EXPONENT;
            // Rows of which no key was seen do not reach it.
            let may_be_stale = !right && !left && self.rows.all_reach(floor);
            let are_near_zero = Softcap::shrink(&mut self.acc_s, self.scale);
            if may_be_stale && are_near_zero {
                return self.under_stale_max(softcap.near_zero());
            }
            softcap.bend(&mut self.acc_s, are_near_zero);
            scale_log2 = 1.0;
            is_plain = true;
        }
        if right || left || !is_plain {
            // Needed by such blocks alone, so computed here rather than kept.
            let work_tile = tile_pipe.work_tile();
            let sequence = tile_pipe.sequence(&self.launch.params.attention, work_tile);
            let warpgroup = black_box(thread_idx_x()) / WARPGROUP - 1;
            let row =
                row_begin(self.launch, &Self::CONFIG, work_tile, warpgroup) + self.lanes.row();
            if !is_plain {
                scale_log2 = self.transform(work_tile, &sequence, row, key_begin);
            }
            if self.changes_scores() && sequence.has_pairs() {
                if biases == Copied::No {
                    self.change_scores(key_begin, tile_pipe);
                } else {
                    add_biases(&mut self.acc_s, biases, self.launch.smem, &Self::CONFIG);
                }
            }
            if (right || left) && self.modifiers.hides() && sequence.has_pairs() {
                self.hide_pairs(key_begin, tile_pipe);
                return self.rows.update(&mut self.acc_s, scale_log2);
            }
            let mask = BlockMask {
                lanes: self.lanes,
                row,
                pack_gqa: self.launch.pack_gqa(),
                key_begin,
                sequence: &sequence,
            };
            if right {
                mask.mask_right(&mut self.acc_s);
            }
            if left {
                mask.mask_left(&mut self.acc_s);
            }
        }
        self.rows.update(&mut self.acc_s, scale_log2)
    }

    /// Turns shrunk scores near zero into probabilities under the maxima of the block before, and raises those if a row outgrew
    /// them. Returns the factors for what was accumulated. Unlike in [`Self::finish_stale_max`], no block needs to be done again: the
    /// softcap bounds scores, and the maxima are at most [`LARGEST_EXPONENT`] bits below that bound.
    #[inline(always)]
    unsafe fn under_stale_max(&mut self, near_zero: NearZero) -> PerRow {
        const { assert!(S_REGS / ROWS <= MOST_COLUMNS) };
        let sums = self
            .rows
            .exponentiate(&mut self.acc_s, |score| near_zero.factor(score));
        self.rows.add(sums);
        let mut rescale = [1.0; ROWS];
        if any_large(sums) {
            rescale = self.rows.raise_max_pow2(sums);
            scale_rows(&mut self.acc_s, rescale);
        }
        rescale
    }

    /// Turns `q · k` into scores; returns the factor that remains to be applied, in bits.
    #[inline(always)]
    unsafe fn transform(
        &mut self,
        work_tile: TileCoord,
        sequence: &Sequence,
        row: u32,
        key_begin: u32,
    ) -> f32 {
        // Slopes come with packs of one head, so there is one slope, and a row is a query.
        let head = self.launch.query_head(work_tile, 0);
        // SAFETY: the tile's batch entry and head exist.
        let transform = unsafe {
            let score = &self.launch.params.attention.score;
            if self.changes_scores() {
                ScoreTransform::in_nats(score, work_tile.batch, head, 0.0)
            } else {
                ScoreTransform::new(score, work_tile.batch, head, 0.0)
            }
        };
        let corner = sequence.seq_kv as i32 - sequence.seq_q as i32;
        let distance = (row as i32 + corner) - (key_begin + self.lanes.col()) as i32;
        let scores = core::array::from_mut(&mut self.acc_s);
        transform.apply(
            scores,
            |_| distance,
            |register| col(register) - below(register),
        );
        transform.scale_log2
    }

    /// Whether modifiers change scores.
    #[inline(always)]
    pub(super) fn changes_scores(&self) -> bool {
        match Self::CONFIG.biases {
            Biases::None => false,
            Biases::Read => self.modifiers.changes_scores(),
            Biases::Present | Biases::Copied => true,
        }
    }

    /// Whether scores are a positive multiple of `q · k`.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        score::is_plain(&self.launch.params.attention.score) && !self.changes_scores()
    }

    /// Rounds the probabilities to the left operand of P V.
    #[inline(always)]
    pub(super) fn cvt_p(&mut self) {
        let mut i = 0;
        while i < P_REGS {
            self.p_frag[i] = K::Element::cvt_pair(self.acc_s[2 * i], self.acc_s[2 * i + 1]);
            i += 1;
        }
    }

    /// Multiplies the rounded probabilities by their rows' factors, powers of two.
    #[inline(always)]
    fn scale_p(&mut self, factor: PerRow) {
        let mut i = 0;
        while i < P_REGS {
            let [low, high] = K::Element::widen_pair(self.p_frag[i]);
            let factor = factor[i % 2];
            self.p_frag[i] = K::Element::cvt_pair(low * factor, high * factor);
            i += 1;
        }
    }
}
