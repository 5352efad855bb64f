//! The warpgroup that computes dS, stores it, and dK of it.

use core::marker::PhantomData;

use cuda_std::global;
use cuda_std::half::Half;
use cuda_std::warp::sync_warp;
use cuda_std::wgmma::{Descriptor, GemmRs, InFlight, MnMajor};

use super::super::gradient::Gradient;
use super::super::pairs::{ALL_KEPT, BlockPairs, Pairs, Terms};
use super::super::scaled_sum;
use super::super::tile::Tile;
use super::shared::{Consumer, Shared, Step};
use super::{SplitKeysKernel, ds_tiles, passed};
use crate::backward::careful::{Code, Which};
use crate::backward::side::{KeepKeys, Side};
use crate::config::wgmma_backward_split::SplitKeysConfig;
use crate::layout::ds_tile;
use crate::layout::fragment::ROW_STEP;
use crate::score::plain_scale_log2;
use crate::tile::black_box;
use crate::tile::quad::QUAD;
use crate::units::F32_BYTES;
use crate::wgmma::forward::lanes::Lanes;
use crate::wgmma::forward::traits::QkOperand;
use crate::wgmma::pipeline::PipelineState;

/// One thread of the warpgroup.
struct Differences<'a, K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize> {
    tile: &'a Tile<'a, KeepKeys>,
    shared: &'a Shared,
    smem: u32,
    lanes: Lanes,
    /// What is added to a block's [`row_offset`](crate::tile::ds_tiles::DsTiles::row_offset) for the address of its dS.
    ds: u64,
    /// Of Q; the stages of dO take the same turns.
    q: PipelineState,
    p: PipelineState,
    acc_dp: [f32; S_REGS],
    /// κ of the present block's query head: the sum is times 2^−κ. Zero where dS is not scaled.
    exponent: i32,
    sum: [f32; SUM_REGS],
    kernel: PhantomData<K>,
}

/// Computes dK and dS of the tile.
///
/// # Safety
/// `tile` is one of the launch, of the chunk's unit number `unit`; all threads of the warpgroup call it.
#[inline(always)]
pub unsafe fn consume<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>(
    tile: &Tile<KeepKeys>,
    shared: &Shared,
    smem: u32,
    unit: u64,
) where
    K: SplitKeysKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    let lanes = Lanes::new();
    let attention = &tile.params.attention;
    let gradient = Gradient {
        tile,
        scale: attention.score.softmax_scale / passed::factor::<K::Element>(),
        which: Which::First,
        code: Code::of_sum(SUM_REGS),
    };
    let mut sum = gradient.begun::<SUM_REGS>(lanes);
    if tile.has_steps() {
        let mut consumer = Differences::<K, S_REGS, P_REGS, SUM_REGS> {
            tile,
            shared,
            smem,
            lanes,
            ds: ds_of_keys(tile, unit),
            q: shared.blocks.consumer(0),
            p: shared.p(),
            acc_dp: [0.0; S_REGS],
            exponent: 0,
            sum,
            kernel: PhantomData,
        };
        consumer.all_steps();
        sum = consumer.sum;
        if K::SCALES_DS {
            scaled_sum::multiply(&mut sum, consumer.exponent);
        }
    }
    gradient.end::<K::Element, SUM_REGS>(&sum, lanes);
}

/// What to add to `row_offset` of a query head and a block of queries for the address of the dS that the tile's keys have with
/// them; the heads that pass belong to the chunk's unit number `unit`.
///
/// # Safety
/// As [`consume`].
#[inline(always)]
unsafe fn ds_of_keys(tile: &Tile<KeepKeys>, unit: u64) -> u64 {
    let params = tile.params;
    let (tiles, chunk) = (ds_tiles(params), &params.ds);
    let q_block = chunk.first_q_block;
    let own = tiles.offset(unit, 0, q_block, tile.begin() / ds_tile::ROWS);
    let (group_head, _) = KeepKeys::passing_heads(&params.attention, tile.head());
    let first_head = group_head + chunk.first_head;
    let start = chunk.tiles.map_or(0, |tiles| tiles.get());
    start
        .wrapping_add(own)
        .wrapping_sub(tiles.row_offset(first_head as u64, q_block))
}

impl<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize> Consumer
    for Differences<'_, K, S_REGS, P_REGS, SUM_REGS>
where
    K: SplitKeysKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    const CONFIG: SplitKeysConfig = K::SPLIT;

    #[inline(always)]
    fn tile(&self) -> &Tile<'_, KeepKeys> {
        self.tile
    }

    #[inline(always)]
    unsafe fn begin(&mut self) {
        self.shared.blocks.kept().consumer_wait();
        self.issue_dp(black_box(self.smem));
        self.acc_dp.wait::<0>();
    }

    #[inline(always)]
    unsafe fn begin_head(&mut self) {
        if K::SCALES_DS {
            let config = &K::SPLIT.blocks;
            self.q.consumer_wait();
            let terms = self.smem + config.terms_offset() + self.q.stage * config.terms_bytes();
            scaled_sum::take_exponent(&mut self.exponent, &mut self.sum, terms, config);
        }
    }

    #[inline(always)]
    unsafe fn block<const MASKED: bool, const LAST: bool>(&mut self, step: Step) {
        let config = &K::SPLIT.blocks;
        // One opaque base: else addresses of all stages would be kept in registers.
        let smem = black_box(self.smem);
        let (q, d_o) = (self.q, self.shared.d_o(self.q));
        let lanes = self.lanes.reload();
        self.p.consumer_wait();
        let p = passed::load::<K::Element, S_REGS>(
            smem + K::SPLIT.p_offset() + self.p.stage * K::SPLIT.p_bytes(),
            lanes,
        );
        let ds_frag = self.differences::<MASKED>(&p, step, smem);
        sync_warp();
        if K::SPLIT.waits_for_p() {
            self.p.consumer_release(self.lanes.lane, 1);
        }
        self.p.advance();
        d_o.consumer_release(self.lanes.lane, 1);
        self.store(&ds_frag, step);

        // dK += dS Q
        let stage = smem + config.stages_offset(0) + q.stage * config.stage_bytes();
        let stage = Descriptor::<MnMajor>::mn_major(stage, config.atom_column_bytes());
        K::Element::multiply_add(&mut self.sum, &ds_frag, stage);

        // dP of the next block
        self.q.advance();
        if LAST {
            self.sum.wait::<0>();
            q.consumer_release(self.lanes.lane, 1);
        } else {
            self.issue_dp(smem);
            self.sum.wait::<1>();
            q.consumer_release(self.lanes.lane, 1);
            self.acc_dp.wait::<0>();
        }
    }
}

impl<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>
    Differences<'_, K, S_REGS, P_REGS, SUM_REGS>
where
    K: SplitKeysKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    /// Starts dP = V dOᵀ of the present stage, when dO is there.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn issue_dp(&mut self, smem: u32) {
        let config = &K::SPLIT.blocks;
        self.shared.d_o(self.q).consumer_wait();
        let d_o = smem + config.stages_offset(1) + self.q.stage * config.stage_bytes();
        let v = K::Kept::load(smem + config.kept_offset(1, 0), self.lanes);
        v.issue_qk(&mut self.acc_dp, Descriptor::k_major(d_o));
    }

    /// dS = P ∘ (dP − delta), times 2^−κ.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn differences<const MASKED: bool>(
        &self,
        p: &[f32; S_REGS],
        step: Step,
        smem: u32,
    ) -> [u32; P_REGS] {
        let config = &K::SPLIT.blocks;
        let pairs = Pairs::<MASKED> {
            extent: self.tile.extent(),
            scale_log2: plain_scale_log2(&self.tile.params.attention.score),
            begin_kept: self.tile.begin(),
            begin: step.block * config.block_n,
            lanes: self.lanes.reload(),
            takes_missing: true,
            reads_terms_by_group: false,
        };
        // −delta comes with Q.
        self.q.consumer_wait();
        let terms = smem + config.terms_offset() + self.q.stage * config.terms_bytes();
        let minus_delta = Terms::Passing(terms + config.block_n * F32_BYTES);
        pairs.differences::<K::Element, S_REGS, P_REGS>(
            p,
            &self.acc_dp,
            minus_delta,
            scaled_sum::factor(K::SCALES_DS, self.exponent),
            ALL_KEPT,
        )
    }

    /// Stores dS for the kernel of dq.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn store(&self, ds_frag: &[u32; P_REGS], step: Step) {
        let offset = ds_tiles(self.tile.params).row_offset(step.head as u64, step.block);
        let tile = self.ds.wrapping_add(offset);
        let lanes = self.lanes.reload();
        for h in 0..2 {
            let key = lanes.row() + h as u32 * ROW_STEP;
            for vec16 in 0..ds_tile::VEC16S as usize {
                let pair = |j: usize| ds_frag[2 * (4 * vec16 + j) + h];
                let at = ds_tile::offset(key, lanes.lane % QUAD, vec16 as u32);
                let pairs = [pair(0), pair(1), pair(2), pair(3)];
                global::store4_bits(tile + at as u64, pairs);
            }
        }
    }
}
