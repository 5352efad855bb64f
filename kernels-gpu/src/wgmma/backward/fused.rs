//! A consumer of a kernel that adds up dq too: its blocks in a pipeline of their own, so that the tensor cores have work while
//! P and dS are computed.
//!
//! ```text
//! dP(j) = V dOᵀ        issued first; P(j) runs under it, of S(j) that is there already
//! dV += P(j) dO        dS(j) = P ∘ (dP − delta) runs under it, and goes to shared memory
//! dQ(j−1) = dS(j−1) K  of all consumers' keys, a block behind: nobody waits for the other's dS
//! dK += dS(j) Q        dQ(j−1) is added to global memory under it
//! S(j+1) = K Qᵀ        issued under dK; what is known of block j+1 is worked out under it
//! ```

use cuda_std::warp::uniform;
use cuda_std::wgmma::{Descriptor, GemmRs, InFlight, KMajor, MnMajor};

use super::consumer::Consumer;
use super::dq::Dq;
use super::pairs::BlockPairs;
use super::traits::BackwardKernel;
use crate::backward::exponent;
use crate::config::wgmma::WARPGROUP_ROWS;
use crate::modifiers::Modifiers;
use crate::tile::black_box;
use crate::wgmma::forward::traits::QkOperand;

/// A passing block, by its head and its number.
#[derive(Clone, Copy)]
struct Passing {
    head: u32,
    block: u32,
}

/// The passing blocks of a tile, in registers: shared memory is what these kernels wait for most.
#[derive(Clone, Copy)]
struct Walk {
    /// First block and end.
    begin: u32,
    end: u32,
    head_end: u32,
    /// First block and end of those of which the warpgroup's rows see all.
    unmasked: (u32, u32),
}

impl Walk {
    #[inline(always)]
    fn is_last(&self, at: Passing) -> bool {
        (at.block + 1 == self.end) & (at.head + 1 == self.head_end)
    }

    /// The block behind `at`, if that is not the last.
    #[inline(always)]
    fn following(&self, at: Passing) -> Passing {
        let is_next_head = at.block + 1 == self.end;
        let block = if is_next_head {
            self.begin
        } else {
            at.block + 1
        };
        let head = at.head + u32::from(is_next_head);
        Passing { head, block }
    }

    /// Whether a pair of the warpgroup's rows and the block is hidden, or does not exist.
    #[inline(always)]
    fn needs_mask(&self, at: Passing) -> bool {
        let (begin, end) = self.unmasked;
        at.block < begin || end <= at.block
    }
}

impl<'a, K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>
    Consumer<'a, K, S_REGS, P_REGS, SUM_REGS>
where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    /// Takes every passing block of the tile, and adds dq.
    ///
    /// # Safety
    /// As [`consume`](super::consumer::consume), of a tile that has steps.
    #[inline(always)]
    pub(super) unsafe fn fused_steps(&mut self) {
        let config = &K::CONFIG;
        let (mut at, walk) = self.walk();
        let mut needs_mask = walk.needs_mask(at);
        self.await_first(self.step);
        self.start();
        loop {
            let begin = at.block * config.block_n;
            let is_last = walk.is_last(at);
            if at.block == walk.begin {
                self.take_exponent(black_box(self.smem));
                self.tell_exponent(at.head);
            }
            if needs_mask {
                self.fused_block(self.pairs::<true>(begin), is_last);
            } else {
                self.fused_block(self.pairs::<false>(begin), is_last);
            }
            // Under the scores of the next block.
            let dq_address = if at.block == walk.begin {
                self.dq().address(self.tile, at.head, begin)
            } else {
                self.dq_address + self.dq().block_bytes(self.tile)
            };
            self.close_step(dq_address);
            at = walk.following(at);
            needs_mask = walk.needs_mask(at);
            self.finish_scores();
            if is_last {
                break;
            }
        }
        self.finish_tile();
    }

    /// The first block, and how to go on from it.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn walk(&self) -> (Passing, Walk) {
        let config = &K::CONFIG;
        let (tile, rows) = (self.tile, WARPGROUP_ROWS);
        let [begin, end, head, head_end] = tile.passing().map(|word| uniform(word));
        let own = tile.blocks(self.kept_begin, rows, config.block_n);
        let (first, last) = own.unmasked(config.block_n);
        // dq takes all kept rows of a block, also those that do not exist.
        let lacks_rows = tile.begin() + self.kept_begin + rows > tile.extent().kept;
        let last = if lacks_rows { 0 } else { last };
        let walk = Walk {
            begin,
            end,
            head_end,
            unmasked: (uniform(first), uniform(last)),
        };
        (Passing { head, block: begin }, walk)
    }

    /// As [`Self::fused_steps`], of the blocks that the producer tells.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    pub(super) unsafe fn told_fused_steps(&mut self) {
        self.await_first(self.step);
        let mut told = self.told(self.step);
        self.start();
        loop {
            let is_last = told.is_last();
            self.take_exponent(black_box(self.smem));
            self.tell_exponent(told.head);
            match (told.needs_mask(), self.may_drop()) {
                (false, false) => {
                    self.fused_block(self.modified_pairs::<false, false>(told), is_last)
                }
                (true, false) => {
                    self.fused_block(self.modified_pairs::<true, false>(told), is_last)
                }
                (false, true) => {
                    self.fused_block(self.modified_pairs::<false, true>(told), is_last)
                }
                (true, true) => self.fused_block(self.modified_pairs::<true, true>(told), is_last),
            }
            let begin = told.begin(&K::CONFIG);
            self.close_step(self.dq().address(self.tile, told.head, begin));
            self.finish_scores();
            if is_last {
                break;
            }
            told = self.told(self.step);
        }
        self.finish_tile();
    }

    /// Tells the kernel that rounds dq what that of query head `head` is added times.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn tell_exponent(&self, head: u32) {
        if K::SCALES_DS && self.kept_begin == 0 && self.lanes.reload().is_first() {
            exponent::tell(self.tile.params, self.tile.batch(), head, self.exponent);
        }
    }

    /// Computes the scores of the first block, whose queries are there.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn start(&mut self) {
        let smem = black_box(self.smem);
        self.issue_scores(smem, self.step);
        self.take_lse(smem, self.step);
        self.finish_scores();
    }

    /// Starts S = K Qᵀ of the block at step `step`, whose queries are there.
    ///
    /// # Safety
    /// As [`Self::fused_steps`]; the accumulator is not in use.
    #[inline(always)]
    unsafe fn issue_scores(&mut self, smem: u32, step: u32) {
        let config = &K::CONFIG;
        let queries = self.barriers.consumer(0).at(step);
        let stage = smem + config.stages_offset(0) + queries.stage * config.stage_bytes();
        self.kept_first
            .issue_qk(&mut self.acc_s, Descriptor::<KMajor>::k_major(stage));
    }

    /// Takes lse of the block at step `step`, whose queries are there: to registers, where there are some, as a read of shared
    /// memory waits for the operands that products read from it, and behind what the warp adds to dq.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn take_lse(&mut self, smem: u32, step: u32) {
        let (lse, _) = self.terms(smem, step);
        self.lse = if K::Modifiers::IS_NONE {
            lse.load(self.lanes.reload())
        } else {
            lse
        };
    }

    /// [`Self::take_lse`], where there are registers for it while dq is computed.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn take_lse_early(&mut self, smem: u32, step: u32) {
        if K::CONFIG.has_spare_registers() {
            self.await_first(step);
            self.take_lse(smem, step);
        }
    }

    /// Waits for the scores.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn finish_scores(&mut self) {
        self.acc_s.wait::<0>();
        // Moved, so that ptxas may compute scores in other registers than it takes them from: where dq of the block before was,
        // whose registers are free by then. In one place, ptxas finds no room and serialises all products (C7512).
        self.acc_s = self.acc_s.map(|s| f32::from_bits(black_box(s.to_bits())));
    }

    /// Takes one block, whose scores are computed, and starts those of the next; of the last, whose queries stay, again.
    ///
    /// # Safety
    /// As [`Self::fused_steps`].
    #[inline(always)]
    unsafe fn fused_block(&mut self, pairs: impl BlockPairs, is_last: bool) {
        let config = &K::CONFIG;
        let (first, second) = (self.operand(0), self.operand(1));
        // One opaque base: else addresses of all stages would be kept in registers.
        let smem = black_box(self.smem);
        let stage =
            |operand| smem + config.stages_offset(operand) + first.stage * config.stage_bytes();
        let (q, d_o) = (stage(0), stage(1));
        let (_, minus_delta) = self.terms(smem, self.step);
        let mn_major = |smem| Descriptor::<MnMajor>::mn_major(smem, config.atom_column_bytes());

        second.consumer_wait();
        self.kept_second
            .issue_qk(&mut self.acc_dp, Descriptor::<KMajor>::k_major(d_o));
        let kept = pairs.kept();
        let s = &mut self.acc_s;
        self.p_frag = pairs.probabilities::<K::Element, S_REGS, P_REGS>(s, self.lse, kept);

        let minus_delta = if K::CONFIG.has_spare_registers() && K::Modifiers::IS_NONE {
            minus_delta.load(self.lanes.reload())
        } else {
            minus_delta
        };

        self.turns().sync();
        K::Element::multiply_add(&mut self.sum_second, &self.p_frag, mn_major(d_o));
        self.acc_dp.wait::<1>();
        let (p, dp) = (&self.acc_s, &self.acc_dp);
        let factor = self.factor();
        self.ds_frag =
            pairs.differences::<K::Element, S_REGS, P_REGS>(p, dp, minus_delta, factor, kept);
        let next = self.step + u32::from(!is_last);
        let dq = self.dq();
        dq.write_ds(smem, &self.ds_frag);

        // Nothing may be in flight where threads might part.
        self.sum_second.wait::<0>();
        second.consumer_release(self.lanes.lane, 1);
        if dq.is_due() {
            dq.issue::<K::Element, S_REGS>(smem, &mut self.acc_dq);
            K::Element::multiply_add(&mut self.sum_first, &self.ds_frag, mn_major(q));
            self.turns().arrive();
            self.take_lse_early(smem, next);
            self.acc_dq.wait::<1>();
            dq.add(self.dq_address, &self.acc_dq);
        } else {
            K::Element::multiply_add(&mut self.sum_first, &self.ds_frag, mn_major(q));
            self.turns().arrive();
            self.take_lse_early(smem, next);
        }
        if K::CONFIG.has_spare_registers() {
            self.issue_scores(smem, next);
        } else {
            self.await_first(next);
            self.issue_scores(smem, next);
            self.take_lse(smem, next);
        }
        self.sum_first.wait::<1>();
        // Scores of the last are being computed again.
        first.consumer_release_if(!is_last, self.lanes.lane, 1);
    }

    /// Leaves the queries of the last block, and adds its dq.
    ///
    /// # Safety
    /// As [`Self::fused_steps`], once all blocks are taken.
    #[inline(always)]
    unsafe fn finish_tile(&mut self) {
        let queries = self.barriers.consumer(0).at(self.step - 1);
        queries.consumer_release(self.lanes.lane, 1);
        let dq = self.dq();
        if dq.is_due() {
            dq.issue::<K::Element, S_REGS>(black_box(self.smem), &mut self.acc_dq);
            self.acc_dq.wait::<0>();
            dq.add(self.dq_address, &self.acc_dq);
        }
    }

    /// Goes on to the next block, from the one whose dq is added at `dq_address`.
    #[inline(always)]
    fn close_step(&mut self, dq_address: u64) {
        self.dq_address = dq_address;
        self.step += 1;
    }

    #[inline(always)]
    fn dq(&self) -> Dq<'a> {
        Dq {
            config: &K::CONFIG,
            barriers: self.barriers,
            warpgroup: self.kept_begin / WARPGROUP_ROWS,
            first_step: self.first_step,
            step: self.step,
            lanes: self.lanes.reload(),
        }
    }
}
