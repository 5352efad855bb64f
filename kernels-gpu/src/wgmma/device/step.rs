//! One block of keys: from its scores to rounded probabilities, by the online softmax or the max-free one.

use cuda_std::half::Half;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp;
use cuda_std::wgmma::InFlight;

use super::blocks::row_begin;
use super::consumer::Consumer;
use super::mask::{Keys, below, col};
use super::policy::Policy;
use super::rescore::rescore;
use super::softmax::{PerRow, scale_rows};
use super::work::Inbox;
use crate::config::wgmma::WARPGROUP;
use crate::score::{self, ScoreTransform};
use crate::tile::block_range::BlockRange;
use crate::tile::opaque;
use crate::tile::sequence::Sequence;
use crate::units::pow2;
use crate::wgmma::schedule::Tile;

/// A thread's part of a block's sum above which the maxima are raised: far from f32's limit, and below
/// f16's, so that no probability that is rounded to f16 overflows.
const LARGE_SUM: f32 = 1024.0;

/// A thread's part of a block's sum above which the block is done again by the online softmax: 2¹²⁰, well inside
/// the range in which [`Rows::raise_max_pow2`](super::softmax::Rows::raise_max_pow2) has an exact factor.
const HUGE_SUM: f32 = pow2(120);

impl<K, const S: usize, const P: usize, const O: usize> Consumer<'_, K, S, P, O>
where
    K: Policy<S, P, O>,
    [f32; S]: InFlight,
    [f32; O]: InFlight,
{
    /// Moves on by one block: S = Q Kᵀ of block `next` beside O += P V of the one before, then the online
    /// softmax, with masks where the block needs them.
    #[inline(always)]
    pub(super) unsafe fn step_online(
        &mut self,
        query: &K::Query,
        blocks: BlockRange,
        next: u32,
        inbox: &Inbox,
    ) {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.multiply(query);
            self.release_k();
            let rescale = self.softmax(blocks, next, inbox);
            self.finish_output();
            scale_rows(&mut self.acc_o, rescale);
            self.pack();
        }
    }

    /// Whether the max-free step rounds probabilities as soon as it has them, which hides the rounding under other
    /// exponentials. It can where PV is done with the last ones, and where none that [`Self::rescale_late`] can still save is
    /// rounded to ∞.
    const PACKS_EARLY: bool = !Self::TILE.overlap && K::Element::LARGEST_EXPONENT.is_none();

    /// As [`Self::step_online`] for a block without masks, under the maxima of the block before.
    #[inline(always)]
    pub(super) unsafe fn step_max_free(&mut self, query: &K::Query) {
        // SAFETY: forwarded to the caller.
        unsafe {
            self.multiply(query);
            let sums = self.rows.exponentiate(&mut self.acc_s, self.scale_log2);
            if Self::PACKS_EARLY {
                self.pack();
            }
            let large = warp::any(!(sums[0] <= LARGE_SUM && sums[1] <= LARGE_SUM));
            // K of this block stays if its scores may be needed again. That this is asked here also keeps ptxas from
            // moving exponentials behind the wait for O.
            self.k
                .release_if(!large, self.lanes.lane, Self::TILE.cluster);
            self.finish_output();
            if large {
                self.rescale_late(query, sums);
            } else {
                self.rows.add(sums);
            }
            self.k.advance();
            if !Self::PACKS_EARLY {
                self.pack();
            }
        }
    }

    /// Takes in a block in which a row of this warp outgrew its stale maximum: by raising the maximum, or, if the row may
    /// have outgrown f32 or its maxima are too large to be raised exactly, by the online softmax.
    #[inline(always)]
    unsafe fn rescale_late(&mut self, query: &K::Query, sums: PerRow) {
        let Self { lanes, k, .. } = *self;
        // SAFETY: forwarded to the caller; the whole warp takes the same branch.
        unsafe {
            let in_range = sums[0] <= HUGE_SUM && sums[1] <= HUGE_SUM;
            let factor = if warp::any(!in_range || self.rows.raising_is_inexact()) {
                let k_smem = self.k_smem.offset(k.stage * Self::TILE.k_bytes());
                let k_smem = k_smem.address(self.launch.smem);
                rescore::<K::Element, _, S>(&Self::TILE, query, &mut self.acc_s, k_smem, lanes);
                // One lane releases Q and K, which all have read.
                warp::sync_warp();
                let factor = self.rows.update(&mut self.acc_s, self.scale_log2);
                if Self::PACKS_EARLY {
                    self.pack();
                }
                factor
            } else {
                self.rows.add(sums);
                let factor = self.rows.raise_max_pow2(sums);
                if Self::PACKS_EARLY {
                    self.scale_packed(factor);
                } else {
                    scale_rows(&mut self.acc_s, factor);
                }
                factor
            };
            scale_rows(&mut self.acc_o, factor);
            self.k.release(lanes.lane, Self::TILE.cluster);
        }
    }

    /// Transforms and masks the scores of block `n_block` where needed, and turns them into probabilities.
    #[inline(always)]
    pub(super) unsafe fn softmax(
        &mut self,
        blocks: BlockRange,
        n_block: u32,
        inbox: &Inbox,
    ) -> PerRow {
        let key_begin = n_block * Self::TILE.block_n;
        let right = blocks.needs_right_mask(key_begin, Self::TILE.block_n);
        let left = blocks.needs_left_mask(key_begin);
        let is_plain = self.is_plain();
        let mut scale_log2 = self.scale_log2;
        // SAFETY: forwarded to the caller.
        unsafe {
            if right || left || !is_plain {
                // What only such blocks need is worked out here rather than kept.
                let place = inbox.tile();
                let sequence = inbox.sequence(&self.launch.params.attention, place);
                let warpgroup = opaque(thread_idx_x()) / WARPGROUP - 1;
                let row = row_begin(self.launch, &Self::TILE, place, warpgroup) + self.lanes.row();
                if !is_plain {
                    scale_log2 = self.transform(place, &sequence, row, key_begin);
                }
                let keys = Keys {
                    lanes: self.lanes,
                    row,
                    packing: self.launch.packing(),
                    key_begin,
                    sequence: &sequence,
                };
                if right {
                    keys.hide_right(&mut self.acc_s);
                }
                if left {
                    keys.hide_left(&mut self.acc_s);
                }
            }
            self.rows.update(&mut self.acc_s, scale_log2)
        }
    }

    /// Turns `q · k` into scores; returns what is left of the scale, in bits.
    #[inline(always)]
    unsafe fn transform(
        &mut self,
        place: Tile,
        sequence: &Sequence,
        row: u32,
        key_begin: u32,
    ) -> f32 {
        // Slopes come with packs of one head, so there is one slope, and a row is a query.
        let head = self.launch.query_head(place, 0);
        // SAFETY: forwarded to the caller; the tile's batch entry and head exist.
        let transform = unsafe {
            ScoreTransform::new(&self.launch.params.attention.score, place.batch, head, 0.0)
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

    /// Whether scores are a positive multiple of `q · k`.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        score::is_plain(&self.launch.params.attention.score)
    }

    /// Rounds the probabilities to the left operand of P V.
    #[inline(always)]
    pub(super) fn pack(&mut self) {
        let mut i = 0;
        while i < P {
            self.p_frag[i] = K::Element::pack(self.acc_s[2 * i], self.acc_s[2 * i + 1]);
            i += 1;
        }
    }

    /// Multiplies the rounded probabilities by their rows' factors, powers of two.
    #[inline(always)]
    fn scale_packed(&mut self, factor: PerRow) {
        let mut i = 0;
        while i < P {
            let [low, high] = K::Element::unpack(self.p_frag[i]);
            let factor = factor[i % 2];
            self.p_frag[i] = K::Element::pack(low * factor, high * factor);
            i += 1;
        }
    }
}
