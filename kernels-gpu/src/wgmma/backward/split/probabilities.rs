//! The warpgroup that computes P, and dV of it.

use cuda_std::half::Half;
use cuda_std::mbarrier;
use cuda_std::warp::sync_warp;
use cuda_std::wgmma::{Descriptor, GemmRs, InFlight, MnMajor};

use super::super::gradient::Gradient;
use super::super::pairs::{ALL_KEPT, BlockPairs, Pairs, Terms};
use super::super::tile::Tile;
use super::shared::{Consumer, Shared, Step};
use super::{SplitKeysKernel, passed};
use crate::backward::careful::{Code, Which};
use crate::backward::side::KeepKeys;
use crate::config::wgmma_backward_split::SplitKeysConfig;
use crate::score::plain_scale_log2;
use crate::tile::black_box;
use crate::wgmma::forward::lanes::Lanes;
use crate::wgmma::forward::traits::QkOperand;
use crate::wgmma::pipeline::PipelineState;

/// One thread of the warpgroup.
struct Probabilities<'a, K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize> {
    tile: &'a Tile<'a, KeepKeys>,
    shared: &'a Shared,
    smem: u32,
    lanes: Lanes,
    /// Of Q; the stages of dO take the same turns.
    q: PipelineState,
    p: PipelineState,
    acc_s: [f32; S_REGS],
    sum: [f32; SUM_REGS],
    kernel: core::marker::PhantomData<K>,
}

/// Computes dV of the tile, and P for the other warpgroup.
///
/// # Safety
/// `tile` is one of the launch; all threads of the warpgroup call it.
#[inline(always)]
pub unsafe fn consume<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>(
    tile: &Tile<KeepKeys>,
    shared: &Shared,
    smem: u32,
) where
    K: SplitKeysKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    let lanes = Lanes::new();
    let attention = &tile.params.attention;
    let gradient = Gradient {
        tile,
        scale: 1.0,
        which: Which::Second,
        code: Code::of_sum(SUM_REGS),
    };
    let mut sum = gradient.begun::<SUM_REGS>(lanes);
    if tile.has_steps() {
        let mut consumer = Probabilities::<K, S_REGS, P_REGS, SUM_REGS> {
            tile,
            shared,
            smem,
            lanes,
            q: shared.blocks.consumer(0),
            p: shared.p().as_producer(),
            acc_s: [0.0; S_REGS],
            sum,
            kernel: core::marker::PhantomData,
        };
        consumer.all_steps();
        sum = consumer.sum;
    }
    gradient.end::<K::Element, SUM_REGS>(&sum, lanes);
}

impl<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize> Consumer
    for Probabilities<'_, K, S_REGS, P_REGS, SUM_REGS>
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
        self.issue_s(black_box(self.smem));
        self.acc_s.wait::<0>();
    }

    #[inline(always)]
    unsafe fn block<const MASKED: bool, const LAST: bool>(&mut self, step: Step) {
        let config = &K::SPLIT.blocks;
        // One opaque base: else addresses of all stages would be kept in registers.
        let smem = black_box(self.smem);
        let d_o = self.shared.d_o(self.q);
        let pairs = Pairs::<MASKED> {
            extent: self.tile.extent(),
            scale_log2: plain_scale_log2(&self.tile.params.attention.score),
            begin_kept: self.tile.begin(),
            begin: step.block * config.block_n,
            lanes: self.lanes.reload(),
            takes_missing: true,
            reads_terms_by_group: false,
        };
        let terms = smem + config.terms_offset() + self.q.stage * config.terms_bytes();
        let lse = Terms::Passing(terms);
        let p_frag =
            pairs.probabilities::<K::Element, S_REGS, P_REGS>(&mut self.acc_s, lse, ALL_KEPT);
        sync_warp();
        self.q.consumer_release(self.lanes.lane, 1);

        // dV += P dO
        d_o.consumer_wait();
        let stage = smem + config.stages_offset(1) + self.q.stage * config.stage_bytes();
        let stage = Descriptor::<MnMajor>::mn_major(stage, config.atom_column_bytes());
        K::Element::multiply_add(&mut self.sum, &p_frag, stage);
        self.pass_p(smem);

        // S of the next block
        self.q.advance();
        if LAST {
            self.sum.wait::<0>();
            d_o.consumer_release(self.lanes.lane, 1);
        } else {
            self.issue_s(smem);
            if K::SPLIT.waits_for_p() {
                // While products are computed.
                self.p.producer_acquire();
            }
            self.sum.wait::<1>();
            d_o.consumer_release(self.lanes.lane, 1);
            self.acc_s.wait::<0>();
        }
    }
}

impl<K, const S_REGS: usize, const P_REGS: usize, const SUM_REGS: usize>
    Probabilities<'_, K, S_REGS, P_REGS, SUM_REGS>
where
    K: SplitKeysKernel<S_REGS, P_REGS, SUM_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; SUM_REGS]: InFlight,
{
    /// Starts S = K Qᵀ of the present stage, when Q is there.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn issue_s(&mut self, smem: u32) {
        let config = &K::SPLIT.blocks;
        self.q.consumer_wait();
        let q = smem + config.stages_offset(0) + self.q.stage * config.stage_bytes();
        let k = K::Kept::load(smem + config.kept_offset(0, 0), self.lanes);
        k.issue_qk(&mut self.acc_s, Descriptor::k_major(q));
    }

    /// Gives P to the other warpgroup.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn pass_p(&mut self, smem: u32) {
        let lanes = self.lanes.reload();
        passed::store::<K::Element, S_REGS>(
            smem + K::SPLIT.p_offset() + self.p.stage * K::SPLIT.p_bytes(),
            &self.acc_s,
            lanes,
        );
        sync_warp();
        mbarrier::arrive_if(self.lanes.lane == 0, self.p.full_barrier());
        self.p.advance();
    }
}
