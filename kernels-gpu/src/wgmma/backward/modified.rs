//! A consumer of a kernel with modifiers: its blocks are those that the producer tells it, and what becomes of their pairs.

use core::array::from_mut;
use core::f32::consts::LOG2_E;

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::warp::shuffle_xor;
use cuda_std::wgmma::InFlight;

use super::biases::{self, Copied};
use super::consumer::Consumer;
use super::pairs::{ALL_KEPT, BlockPairs, GROUP_ELEMS, GROUP_PAIRS, PAIR, ROWS, Terms};
use super::tile::Tile;
use super::traits::BackwardKernel;
use super::walk::Told;
use crate::backward::side::Side;
use crate::config::wgmma::WARP_ROWS;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::math::{exp2, fma};
use crate::modifiers::dropout::Dropout;
use crate::modifiers::keep_mask::{self, KEYS};
use crate::modifiers::{Modifiers, Pair};
use crate::score::plain_scale_log2;
use crate::tile::black_box;
use crate::tile::quad::QUAD;
use crate::wgmma::forward::lanes::Lanes;
use crate::wgmma::forward::mask::{below, col};

/// Scores of a thread that are changed together, and the columns they cover.
const PART: usize = 8;
const PART_COLS: u32 = 16;

/// Runs `$body` for each row `$h` and pair of columns `$i` of a group, the first element of which is register `$at`.
macro_rules! for_pairs {
    ($group:expr, $h:ident, $i:ident, $at:ident => $body:block) => {
        for $i in 0..GROUP_PAIRS {
            for $h in 0..ROWS {
                let $at = (2 * ($group * GROUP_PAIRS + $i) + $h) * PAIR;
                $body
            }
        }
    };
}

/// What P is of pairs that are hidden: a 0 that tells them from those whose probability is too small for an f32.
const HIDDEN: f32 = -0.0;

impl<'a, K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>
    Consumer<'a, K, S_REGS, P_REGS, SUM_REGS>
where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    /// Takes the blocks that the producer tells.
    ///
    /// # Safety
    /// As [`consume`](super::consumer::consume), of a tile that has steps.
    #[inline(always)]
    pub(super) unsafe fn told_steps(&mut self) {
        loop {
            self.await_first(self.step);
            let told = self.told(self.step);
            match (told.needs_mask(), self.may_drop()) {
                (false, false) => self.block(self.modified_pairs::<false, false>(told)),
                (true, false) => self.block(self.modified_pairs::<true, false>(told)),
                (false, true) => self.block(self.modified_pairs::<false, true>(told)),
                (true, true) => self.block(self.modified_pairs::<true, true>(told)),
            }
            self.step += 1;
            if told.is_last() {
                break;
            }
        }
    }

    /// Whether blocks drop pairs, told apart here so that a block pays for what it needs alone: dropping half a thread's numbers
    /// by a bit each is a third of all instructions for a block. The kernel of dq has no registers for both.
    #[inline(always)]
    pub(super) fn may_drop(&self) -> bool {
        !K::Side::HAS_SECOND || self.tile.modifiers.drops()
    }

    /// The block at step `step`, whose first operand is there.
    ///
    /// # Safety
    /// As [`Self::told_steps`].
    #[inline(always)]
    pub(super) unsafe fn told(&self, step: u32) -> Told {
        let config = &K::CONFIG;
        let first = self.barriers.consumer(0).at(step);
        Told::load(config.told(black_box(self.smem), first.stage))
    }

    /// Which biases of the present block have been copied.
    ///
    /// # Safety
    /// As [`Self::told`].
    #[inline(always)]
    unsafe fn copied(&self) -> Copied {
        let config = &K::CONFIG;
        if !config.copies_biases() {
            return Copied::NO;
        }
        Copied::load(config.copied(black_box(self.smem), self.operand(0).stage))
    }

    /// # Safety
    /// As [`Self::told_steps`].
    #[inline(always)]
    pub(super) unsafe fn modified_pairs<const MASKED: bool, const DROPS: bool>(
        &self,
        told: Told,
    ) -> ModifiedPairs<'a, K::Side, K::Modifiers, MASKED, DROPS> {
        ModifiedPairs {
            tile: self.tile,
            told,
            begin: told.begin(&K::CONFIG),
            kept_begin: self.kept_begin,
            lanes: self.lanes,
            adds_dq: K::ADDS_DQ,
            config: &K::CONFIG,
            copied: self.copied(),
            biases: self.smem + K::CONFIG.bias_offset(self.operand(0).stage),
        }
    }
}

/// The pairs of a warpgroup's kept rows and one passing block of a launch with modifiers, some of which are hidden if it is
/// `MASKED`, and of whose probabilities some may be dropped if it `DROPS`.
pub(super) struct ModifiedPairs<'a, S, M, const MASKED: bool, const DROPS: bool> {
    tile: &'a Tile<'a, S, M>,
    told: Told,
    /// First passing row of the block.
    begin: u32,
    /// First kept row of the warpgroup, of the tile.
    kept_begin: u32,
    lanes: Lanes,
    /// Whether the kernel adds dq up, and so finds the keep mask in memory.
    adds_dq: bool,
    config: &'static WgmmaBackwardConfig,
    /// Which biases of the block have been copied, and where.
    copied: Copied,
    biases: u32,
}

impl<S: Side, M: Modifiers, const MASKED: bool, const DROPS: bool> BlockPairs
    for ModifiedPairs<'_, S, M, MASKED, DROPS>
{
    #[inline(always)]
    unsafe fn kept(&self) -> u32 {
        if !DROPS {
            return ALL_KEPT;
        }
        let modifiers = self.tile.modifiers;
        let (row, column) = self.origin();
        let first = pair::<S>(row, column, 0);
        if self.adds_dq {
            let heads = self.tile.params.attention.heads_q;
            let mask = modifiers.keep_mask(self.tile.batch(), self.told.head, heads);
            return global::load_bits(mask.word(first, self.lanes.reload().lane));
        }
        let Some(dropout) = modifiers.dropout(&self.tile.place(self.told.head)) else {
            return ALL_KEPT;
        };
        if !S::HAS_SECOND {
            return dropout.kept_fragment::<REGISTERS>(first);
        }
        // A call is for twice as many keys as a warp has.
        let calls_first = Pair {
            key: first.key - row / KEYS % 2 * KEYS,
            ..first
        };
        let halves = dropout.halves(calls_first);
        // The lane with the key beside.
        let taken = shuffle_xor(f32::from_bits(halves.given), QUAD).to_bits();
        let [low, high] = Dropout::joined(halves, taken, calls_first);
        if row / KEYS % 2 == 0 { low } else { high }
    }

    #[inline(always)]
    unsafe fn probabilities<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        s: &mut [f32; S_REGS],
        lse: Terms,
        kept: u32,
    ) -> [u32; P_REGS] {
        const { assert!(S_REGS == REGISTERS) };
        if M::HAS_SLOPE {
            return self.weigh::<E, S_REGS, P_REGS>(s, lse, kept);
        }
        let modifiers = self.tile.modifiers;
        let score = &self.tile.params.attention.score;
        let mut scale_log2 = plain_scale_log2(score);
        if self.config.biases.may_be() && modifiers.changes_scores() {
            if self.copied == Copied::NO {
                self.change_scores(s);
            } else {
                let scale = score.softmax_scale;
                let key = self.kept_begin + self.lanes.reload().warp * WARP_ROWS;
                biases::add(s, scale, self.copied, [self.biases, key], self.config);
            }
            scale_log2 = LOG2_E;
        }
        let lanes = self.lanes.reload();
        for group in 0..S_REGS / (ROWS * GROUP_ELEMS) {
            let lse = lse.group(group, lanes);
            for_pairs!(group, h, i, at => {
                for c in 0..PAIR {
                    s[at + c] = exp2(fma(s[at + c], scale_log2, -lse[h][i * PAIR + c]));
                }
            });
        }
        if MASKED {
            self.hide_pairs(s);
        }
        let mut p_frag = [0; P_REGS];
        for register in 0..P_REGS {
            let at = register * PAIR;
            p_frag[register] = Self::kept_pair(E::cvt_pair(s[at], s[at + 1]), kept, at);
        }
        p_frag
    }

    #[inline(always)]
    unsafe fn differences<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        p: &[f32; S_REGS],
        dp: &[f32; S_REGS],
        minus_delta: Terms,
        factor: f32,
        kept: u32,
    ) -> [u32; P_REGS] {
        let lanes = self.lanes.reload();
        let mut scale = factor;
        if DROPS {
            scale *= self.tile.modifiers.dropout_scale();
        }
        let mut ds_frag = [0; P_REGS];
        for group in 0..S_REGS / (ROWS * GROUP_ELEMS) {
            let minus_delta = minus_delta.group(group, lanes);
            for_pairs!(group, h, i, at => {
                let mut ds = [0.0; PAIR];
                for c in 0..PAIR {
                    let (p, minus_delta) = (p[at + c], minus_delta[h][i * PAIR + c]);
                    let dp = Self::kept_value(dp[at + c], kept, at + c);
                    ds[c] = p * fma(dp, scale, minus_delta);
                    // Not by P's 0: a hidden pair's dP need not be finite.
                    let is_hidden = MASKED && p.to_bits() == HIDDEN.to_bits();
                    ds[c] = if is_hidden { 0.0 } else { ds[c] };
                }
                ds_frag[at / PAIR] = E::cvt_pair(ds[0], ds[1]);
            });
        }
        ds_frag
    }
}

/// Registers of a block's scores that a thread has: a bit of a word each says which are kept.
const REGISTERS: usize = u32::BITS as usize;

impl<S: Side, M: Modifiers, const MASKED: bool, const DROPS: bool>
    ModifiedPairs<'_, S, M, MASKED, DROPS>
{
    /// The number in a register if its probability is not dropped, else 0.
    #[inline(always)]
    fn kept_value(value: f32, kept: u32, register: usize) -> f32 {
        if DROPS {
            keep_mask::kept(value, kept, register)
        } else {
            value
        }
    }

    /// The probabilities in a register and the next, rounded, that are not dropped.
    #[inline(always)]
    fn kept_pair(pair: u32, kept: u32, register: usize) -> u32 {
        if DROPS {
            keep_mask::kept_pair(pair, kept, register)
        } else {
            pair
        }
    }

    /// The row and the column of the thread's first register, of all that are kept and all that pass.
    ///
    /// # Safety
    /// As [`BlockPairs::kept`].
    #[inline(always)]
    unsafe fn origin(&self) -> (u32, u32) {
        let lanes = self.lanes.reload();
        let row = self.tile.begin() + self.kept_begin + lanes.row();
        (row, self.begin + lanes.col())
    }

    /// Turns products `q · k` into scores in nats, changed by what the modifiers add to them.
    ///
    /// # Safety
    /// As [`BlockPairs::kept`].
    #[inline(always)]
    unsafe fn change_scores<const S_REGS: usize>(&self, s: &mut [f32; S_REGS]) {
        let place = self.tile.place(self.told.head);
        let scale = self.tile.params.attention.score.softmax_scale;
        let (row, column) = self.origin();
        let mut done = 0;
        // A part at a time, in a loop that stays one: whatever is loaded for all scores at once has no registers.
        while done < black_box((S_REGS / PART) as u32) {
            let mut part = [[0.0; PART]];
            for i in 0..PART {
                part[0][i] = s[i] * scale;
            }
            let column = column + done * PART_COLS;
            let of = |_, register| pair::<S>(row, column, register);
            self.tile.modifiers.change(|| place, &mut part, of);
            // The fragment turns, so that the part in hand has the same registers in every round.
            for i in 0..S_REGS - PART {
                s[i] = s[i + PART];
            }
            for i in 0..PART {
                s[S_REGS - PART + i] = part[0][i];
            }
            done += 1;
        }
    }

    /// As [`BlockPairs::probabilities`] where modifiers have a derivative: `s` becomes P times the derivatives of scores, which takes no
    /// registers beside it. A part at a time, as in [`Self::change_scores`].
    ///
    /// # Safety
    /// As [`BlockPairs::probabilities`].
    #[inline(always)]
    unsafe fn weigh<E: Half, const S_REGS: usize, const P_REGS: usize>(
        &self,
        s: &mut [f32; S_REGS],
        lse: Terms,
        kept: u32,
    ) -> [u32; P_REGS] {
        const { assert!(PART == ROWS * GROUP_ELEMS) };
        const WORDS: usize = PART / PAIR;
        let modifiers = self.tile.modifiers;
        let place = self.tile.place(self.told.head);
        let scale = self.tile.params.attention.score.softmax_scale;
        let (row, column) = self.origin();
        let lanes = self.lanes.reload();
        let mut p_frag = [0; P_REGS];
        let mut done = 0;
        while done < black_box((S_REGS / PART) as u32) {
            let mut part = [[0.0; PART]];
            let mut slope = [1.0; PART];
            for i in 0..PART {
                part[0][i] = s[i] * scale;
            }
            let column = column + done * PART_COLS;
            let of = |_, register| pair::<S>(row, column, register);
            modifiers.change_with_slope(|| place, &mut part, of, |_, i, by| slope[i] *= by);
            let lse = lse.counted_group(done, lanes);
            for_pairs!(0, h, i, at => {
                for c in 0..PAIR {
                    part[0][at + c] = exp2(fma(part[0][at + c], LOG2_E, -lse[h][i * PAIR + c]));
                }
            });
            if MASKED {
                modifiers.hide(|| place, &mut part, of, HIDDEN);
            }
            let [p] = part;
            for i in 0..P_REGS - WORDS {
                p_frag[i] = p_frag[i + WORDS];
            }
            let kept = kept << (done * keep_mask::shift_of(PART));
            for i in 0..WORDS {
                let word = E::cvt_pair(p[i * PAIR], p[i * PAIR + 1]);
                p_frag[P_REGS - WORDS + i] = Self::kept_pair(word, kept, i * PAIR);
            }
            for i in 0..S_REGS - PART {
                s[i] = s[i + PART];
            }
            for i in 0..PART {
                let weight = p[i] * slope[i];
                // Never the mark of hidden pairs, which a small negative weight becomes as it is rounded.
                let weight = if weight == 0.0 { 0.0 } else { weight };
                let is_hidden = MASKED && p[i].to_bits() == HIDDEN.to_bits();
                s[S_REGS - PART + i] = if is_hidden { HIDDEN } else { weight };
            }
            done += 1;
        }
        p_frag
    }

    /// Marks probabilities of pairs that are hidden, or do not exist, of a sequence that has pairs.
    ///
    /// # Safety
    /// As [`BlockPairs::kept`].
    #[inline(always)]
    unsafe fn hide_pairs<const S_REGS: usize>(&self, p: &mut [f32; S_REGS]) {
        let at = || self.tile.place(self.told.head);
        let (row, column) = self.origin();
        let of = |_, register| pair::<S>(row, column, register);
        self.tile.modifiers.hide(at, from_mut(p), of, HIDDEN);
    }
}

/// The pair of a fragment's register; `row` and `column` are those of the first.
#[inline(always)]
fn pair<S: Side>(row: u32, column: u32, register: usize) -> Pair {
    let (row, column) = (row + below(register) as u32, column + col(register) as u32);
    let (query, key) = S::query_and_key(row, column);
    Pair { query, key }
}
