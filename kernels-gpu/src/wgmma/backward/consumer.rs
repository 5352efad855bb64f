//! A consumer warpgroup: 64 kept rows and the sums of their gradients.

use cuda_std::global;
use cuda_std::warp::sync_warp;
use cuda_std::wgmma::{Descriptor, GemmRs, InFlight, KMajor, MnMajor};

use super::barriers::Barriers;
use super::epilogue::Epilogue;
use super::pairs::{BlockPairs, Pairs, Terms};
use super::scaled_sum;
use super::tile::Tile;
use super::tiles::Tiles;
use super::traits::BackwardKernel;
use crate::backward::side::Side;
use crate::config::wgmma::WARPGROUP_ROWS;
use crate::layout::fragment::ROW_STEP;
use crate::modifiers::Modifiers;
use crate::score::plain_scale_log2;
use crate::tile::black_box;
use crate::units::{F32_BYTES, pow2};
use crate::wgmma::barriers::WarpSchedulerBarrier;
use crate::wgmma::forward::lanes::Lanes;
use crate::wgmma::forward::traits::QkOperand;
use crate::wgmma::pipeline::PipelineState;

/// One thread of a consumer warpgroup. All methods are inlined, and the arrays live in registers.
pub(super) struct Consumer<'a, K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>
where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
{
    pub(super) tile: &'a Tile<'a, K::Side, K::Modifiers>,
    pub(super) smem: u32,
    pub(super) lanes: Lanes,
    /// First kept row of the warpgroup, of the tile.
    pub(super) kept_begin: u32,
    pub(super) kept_first: K::Kept,
    pub(super) kept_second: K::Kept,
    /// lse in bits, and −delta times 2^−κ, of the thread's rows, where queries are kept.
    kept_lse: [f32; 2],
    kept_minus_delta: [f32; 2],
    pub(super) barriers: &'a Barriers,
    /// Number of the tile's first block among all that pass in this thread block, and of the present one.
    pub(super) first_step: u32,
    pub(super) step: u32,
    /// Where dq of the block before is added.
    pub(super) dq_address: u64,
    pub(super) lse: Terms,
    pub(super) acc_s: [f32; S_REGS],
    pub(super) acc_dp: [f32; S_REGS],
    pub(super) acc_dq: [f32; S_REGS],
    pub(super) p_frag: [u32; P_REGS],
    pub(super) ds_frag: [u32; P_REGS],
    /// κ of the query head. Zero where dS is not scaled.
    pub(super) exponent: i32,
    /// dK, or dQ, times 2^−κ.
    pub(super) sum_first: [f32; SUM_REGS],
    /// dV.
    pub(super) sum_second: [f32; SUM_REGS],
}

/// Computes the warpgroup's rows of every tile of the block.
///
/// # Safety
/// `tiles` are those of a launch; all threads of consumer warpgroup `warpgroup` call it.
#[inline(always)]
pub unsafe fn consume<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>(
    tiles: &Tiles<K::Side, K::Modifiers>,
    smem: u32,
    warpgroup: u32,
) where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    let lanes = Lanes::new();
    if K::ADDS_DQ {
        WarpSchedulerBarrier::new(warpgroup, K::CONFIG.consumers).init();
    }
    let (mut number, mut step) = (0, 0);
    while tiles.wait(number) {
        let tile = tiles.at(number);
        let kept = tiles.barriers.kept().at(number);
        kept.consumer_wait();
        let (first, second) = if tile.has_steps() {
            let barriers = &tiles.barriers;
            sums::<K, S_REGS, P_REGS, SUM_REGS>(&tile, barriers, smem, warpgroup, &mut step)
        } else {
            ([0.0; SUM_REGS], [0.0; SUM_REGS])
        };
        // All lanes have read what they keep in registers, of which one arrives.
        sync_warp();
        kept.consumer_release(lanes.lane, 1);
        let epilogue = Epilogue {
            tile: &tile,
            kept_begin: warpgroup * WARPGROUP_ROWS,
            lanes,
        };
        epilogue.store::<K, S_REGS, P_REGS, SUM_REGS>(&first, &second);
        tiles.release(number, lanes.lane);
        number += 1;
    }
}

/// The sums of the warpgroup's rows over all passing blocks, of which there is one. The first of them is number `step` of all
/// that pass in this block, to which theirs are added.
///
/// # Safety
/// As [`consume`].
#[inline(always)]
unsafe fn sums<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>(
    tile: &Tile<K::Side, K::Modifiers>,
    barriers: &Barriers,
    smem: u32,
    warpgroup: u32,
    step: &mut u32,
) -> ([f32; SUM_REGS], [f32; SUM_REGS])
where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    let config = &K::CONFIG;
    let lanes = Lanes::new();
    let kept_begin = warpgroup * WARPGROUP_ROWS;
    let kept = |operand| K::Kept::load(smem + config.kept_offset(operand, warpgroup), lanes);
    let terms = tile.params.terms;
    let exponent = scaled_sum::kept_exponent(tile, K::SCALES_DS);
    let delta = kept_terms(tile, terms.delta, 0.0, kept_begin, lanes);
    let mut consumer = Consumer::<K, S_REGS, P_REGS, SUM_REGS> {
        tile,
        smem,
        lanes,
        kept_begin,
        kept_first: kept(0),
        kept_second: kept(1),
        kept_lse: kept_terms(tile, terms.lse_log2, f32::INFINITY, kept_begin, lanes),
        kept_minus_delta: delta.map(|delta| delta * -pow2(-exponent)),
        barriers,
        first_step: *step,
        step: *step,
        dq_address: 0,
        lse: Terms::Kept([0.0; 2]),
        acc_s: [0.0; S_REGS],
        acc_dp: [0.0; S_REGS],
        acc_dq: [0.0; S_REGS],
        p_frag: [0; P_REGS],
        ds_frag: [0; P_REGS],
        exponent,
        sum_first: [0.0; SUM_REGS],
        sum_second: [0.0; SUM_REGS],
    };
    match (K::ADDS_DQ, K::Modifiers::IS_NONE) {
        (true, true) => consumer.fused_steps(),
        (true, false) => consumer.told_fused_steps(),
        (false, true) => tile.each_present_step(config, |_, block| consumer.step(block)),
        (false, false) => consumer.told_steps(),
    }
    *step = consumer.step;
    if K::SCALES_DS {
        scaled_sum::multiply(&mut consumer.sum_first, consumer.exponent);
    }
    (consumer.sum_first, consumer.sum_second)
}

/// The terms at `array` of the thread's two rows, if queries are kept; `missing` of rows that do not exist.
///
/// # Safety
/// As [`consume`].
#[inline(always)]
unsafe fn kept_terms<S: Side, M: Modifiers>(
    tile: &Tile<S, M>,
    array: u64,
    missing: f32,
    kept_begin: u32,
    lanes: Lanes,
) -> [f32; 2] {
    let mut terms = [missing; 2];
    if S::HAS_SECOND {
        return terms;
    }
    let attention = &tile.params.attention;
    let address = tile.sequence().row_address(attention, array, tile.head());
    let kept = tile.extent().kept;
    for h in 0..2 {
        let row = tile.begin() + kept_begin + lanes.row() + h as u32 * ROW_STEP;
        if row < kept {
            terms[h] = global::load(address + row as u64 * F32_BYTES as u64);
        }
    }
    terms
}

impl<'a, K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>
    Consumer<'a, K, S_REGS, P_REGS, SUM_REGS>
where
    K: BackwardKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    /// Takes one passing block, which this warpgroup need not see.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn step(&mut self, block: u32) {
        let config = &K::CONFIG;
        let own = self
            .tile
            .blocks(self.kept_begin, WARPGROUP_ROWS, config.block_n);
        let begin = block * config.block_n;
        if own.begin > block || block >= own.end {
            self.skip();
        } else if own.needs_mask(begin, config.block_n) {
            self.block(self.pairs::<true>(begin));
        } else {
            self.block(self.pairs::<false>(begin));
        }
        self.step += 1;
    }

    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    pub(super) unsafe fn pairs<const MASKED: bool>(&self, begin: u32) -> Pairs<MASKED> {
        Pairs {
            extent: self.tile.extent(),
            scale_log2: plain_scale_log2(&self.tile.params.attention.score),
            begin_kept: self.tile.begin() + self.kept_begin,
            begin,
            lanes: self.lanes.reload(),
            takes_missing: K::ADDS_DQ,
            reads_terms_by_group: K::ADDS_DQ,
        }
    }

    /// Takes one passing block.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    pub(super) unsafe fn block(&mut self, pairs: impl BlockPairs) {
        let config = &K::CONFIG;
        let (first, second) = (self.operand(0), self.operand(1));
        // One opaque base: else addresses of all stages would be kept in registers.
        let smem = black_box(self.smem);
        let stage =
            |operand| smem + config.stages_offset(operand) + first.stage * config.stage_bytes();
        let (a, b) = (stage(0), stage(1));
        let (lse, minus_delta) = self.terms(smem, self.step);
        let k_major = Descriptor::<KMajor>::k_major;
        let mn_major = |smem| Descriptor::<MnMajor>::mn_major(smem, config.atom_column_bytes());

        // S = A aᵀ, dP = B bᵀ; a of a block that the producer tells is there.
        if K::Modifiers::IS_NONE {
            first.consumer_wait();
        }
        self.take_exponent(smem);
        self.kept_first.issue_qk(&mut self.acc_s, k_major(a));
        second.consumer_wait();
        self.kept_second.issue_qk(&mut self.acc_dp, k_major(b));
        let kept = pairs.kept();
        self.acc_s.wait::<1>();
        let s = &mut self.acc_s;
        self.p_frag = pairs.probabilities::<K::Element, S_REGS, P_REGS>(s, lse, kept);

        // dB += P b
        if K::Side::HAS_SECOND {
            K::Element::multiply_add(&mut self.sum_second, &self.p_frag, mn_major(b));
            self.acc_dp.wait::<1>();
        } else {
            self.acc_dp.wait::<0>();
            second.consumer_release(self.lanes.lane, 1);
        }
        let (p, dp) = (&self.acc_s, &self.acc_dp);
        let factor = self.factor();
        self.ds_frag =
            pairs.differences::<K::Element, S_REGS, P_REGS>(p, dp, minus_delta, factor, kept);

        // dA += dS a
        K::Element::multiply_add(&mut self.sum_first, &self.ds_frag, mn_major(a));
        if K::Side::HAS_SECOND {
            self.sum_second.wait::<1>();
            second.consumer_release(self.lanes.lane, 1);
        }
        self.sum_first.wait::<0>();
        first.consumer_release(self.lanes.lane, 1);
    }

    /// Takes κ of the present block's query head, and rescales the sum to it.
    ///
    /// # Safety
    /// As [`consume`]; the block's terms are visible, and no product is in flight.
    #[inline(always)]
    pub(super) unsafe fn take_exponent(&mut self, smem: u32) {
        if !(K::SCALES_DS && K::Side::HAS_SECOND) {
            return;
        }
        let config = &K::CONFIG;
        let stage = smem + config.terms_offset() + self.operand(0).stage * config.terms_bytes();
        scaled_sum::take_exponent(&mut self.exponent, &mut self.sum_first, stage, config);
    }

    /// 2^−κ.
    #[inline(always)]
    pub(super) fn factor(&self) -> f32 {
        scaled_sum::factor(K::SCALES_DS, self.exponent)
    }

    /// The order in which consumers issue their products.
    #[inline(always)]
    pub(super) fn turns(&self) -> WarpSchedulerBarrier {
        WarpSchedulerBarrier::new(self.kept_begin / WARPGROUP_ROWS, K::CONFIG.consumers)
    }

    /// Passes over a block that only the other warpgroup needs.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn skip(&mut self) {
        for operand in [self.operand(0), self.operand(1)] {
            operand.consumer_wait();
            operand.consumer_release(self.lanes.lane, 1);
        }
    }

    /// Waits for the first operand of the block at step `step`.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    pub(super) unsafe fn await_first(&self, step: u32) {
        self.barriers.consumer(0).at(step).consumer_wait();
    }

    /// Where the present block's stage of a passing operand is.
    #[inline(always)]
    pub(super) fn operand(&self, operand: u32) -> PipelineState {
        self.barriers.consumer(operand).at(self.step)
    }

    /// lse in bits, and −delta times 2^−κ, of the present block's queries.
    #[inline(always)]
    pub(super) fn terms(&self, smem: u32, step: u32) -> (Terms, Terms) {
        let config = &K::CONFIG;
        if K::Side::HAS_SECOND {
            let stage = self.barriers.consumer(0).at(step).stage;
            let stage = smem + config.terms_offset() + stage * config.terms_bytes();
            let minus_delta = stage + config.block_n * F32_BYTES;
            (Terms::Passing(stage), Terms::Passing(minus_delta))
        } else {
            (
                Terms::Kept(self.kept_lse),
                Terms::Kept(self.kept_minus_delta),
            )
        }
    }
}
