//! A consumer warpgroup: 64 rows of scores, softmax and output.

use core::marker::PhantomData;

use cuda_std::wgmma::{Descriptor, InFlight, KMajor, MnMajor};
use cuda_std::{mbarrier, tma};

use super::Launch;
use super::blocks::Ranges;
use super::epilogue::Epilogue;
use super::keep_mask;
use super::lanes::Lanes;
use super::softcap::Softcap;
use super::softmax::Rows;
use super::traits::{ForwardKernel, QkOperand};
use crate::abi::{Band, ScoreParams};
use crate::config::wgmma::{WARPGROUP_ROWS, WgmmaConfig};
use crate::modifiers::Modifiers;
use crate::score;
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::wgmma::barriers::WarpSchedulerBarrier;
use crate::wgmma::pipeline::PipelineState;
use crate::wgmma::scheduler::tile_pipe::WorkTilePipe;

/// One thread of a consumer warpgroup. All methods are inlined, and the arrays live in registers.
pub(super) struct Consumer<'a, K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>
where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
{
    pub(super) launch: &'a Launch<'a>,
    pub(super) modifiers: &'a K::Modifiers,
    /// Multiplies `q · k`: to bits where scores are plain, or to what [`Softcap`] bends, if a softcap alone changes them.
    pub(super) scale: f32,
    pub(super) lanes: Lanes,
    pub(super) scheduler_barrier: WarpSchedulerBarrier,
    pub(super) k: PipelineState,
    pub(super) v: PipelineState,
    /// Dropout's keep mask.
    pub(super) keep: keep_mask::Reader,
    pub(super) k_smem: Descriptor<KMajor>,
    pub(super) v_smem: Descriptor<MnMajor>,
    pub(super) kernel: PhantomData<K>,
    pub(super) acc_s: [f32; S_REGS],
    pub(super) p_frag: [u32; P_REGS],
    pub(super) acc_o: [f32; O_REGS],
    pub(super) rows: Rows,
}

/// Computes tiles until there are no more.
///
/// # Safety
/// `launch` holds; all threads of consumer warpgroup `warpgroup` call it.
#[inline(always)]
pub unsafe fn consume<K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>(
    launch: &Launch,
    modifiers: &K::Modifiers,
    warpgroup: u32,
) where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; O_REGS]: InFlight,
{
    let config = &K::CONFIG;
    let Launch { smem, barriers, .. } = *launch;
    let mut consumer = Consumer::<K, S_REGS, P_REGS, O_REGS>::setup(launch, modifiers, warpgroup);
    let mut q = PipelineState::consumer(barriers.q_full, barriers.q_empty, config.q_stages);
    let mut tile_pipe = WorkTilePipe::new(smem + config.work_offset(), &barriers, config);
    if config.ping_pong {
        consumer.scheduler_barrier.init();
    }
    // Every wait below is matched by the producer's loads of the same tile, in the same order.
    while tile_pipe.consumer_wait() {
        consumer.compute(warpgroup, &q, &tile_pipe);
        consumer.finish(warpgroup, &tile_pipe);
        tile_pipe.release(consumer.lanes.lane == 0);
        q.advance();
    }
    if !config.reuses_v() {
        // The block must not exit before TMA has read the last tile's output. Stages of V are returned when it has.
        tma::wait_stores_read();
    }
}

impl<'a, K, const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>
    Consumer<'a, K, S_REGS, P_REGS, O_REGS>
where
    K: ForwardKernel<S_REGS, P_REGS, O_REGS>,
    [f32; S_REGS]: InFlight,
    [f32; O_REGS]: InFlight,
{
    pub(super) const CONFIG: WgmmaConfig = K::CONFIG;

    /// Where the warpgroup's part of shared memory and the stages are; no tile is known yet.
    #[inline(always)]
    fn setup(launch: &'a Launch<'a>, modifiers: &'a K::Modifiers, warpgroup: u32) -> Self {
        let config = &K::CONFIG;
        let Launch {
            params,
            smem,
            barriers,
            ..
        } = *launch;
        Self {
            launch,
            modifiers,
            scale: Self::scale(&params.attention.score),
            lanes: Lanes::new(),
            scheduler_barrier: WarpSchedulerBarrier::new(warpgroup, config.consumers),
            k: PipelineState::consumer(barriers.k_full, barriers.k_empty, config.k_stages),
            v: PipelineState::consumer(barriers.v_full, barriers.v_empty, config.v_stages),
            keep: keep_mask::Reader::new(),
            k_smem: Descriptor::k_major(smem + config.k_offset()),
            v_smem: Descriptor::mn_major(smem + config.v_offset(), config.kv_atom_column_bytes()),
            kernel: PhantomData,
            acc_s: [0.0; S_REGS],
            p_frag: [0; P_REGS],
            acc_o: [0.0; O_REGS],
            rows: Rows::new(),
        }
    }

    /// How a softcap bends scores, if nothing else changes them. Kernels with modifiers have no registers for this.
    #[inline(always)]
    pub(super) fn softcap_alone(score: &ScoreParams) -> Option<Softcap> {
        Softcap::alone(score).filter(|_| K::Modifiers::IS_NONE)
    }

    /// What `q · k` is multiplied by, worked out once.
    #[inline(always)]
    fn scale(score: &ScoreParams) -> f32 {
        match Self::softcap_alone(score) {
            Some(softcap) => softcap.factor(score.softmax_scale),
            None => score::plain_scale_log2(score),
        }
    }

    /// From the tile's Q to its output in registers, past the key blocks on the right that others need.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn compute(&mut self, warpgroup: u32, q: &PipelineState, tile_pipe: &WorkTilePipe) {
        let config = &K::CONFIG;
        let Launch { params, smem, .. } = *self.launch;
        let q_smem = smem + (q.stage * config.consumers + warpgroup) * config.q_bytes();
        if !K::Modifiers::IS_NONE {
            q.consumer_wait();
            let q_operand = K::QkOperand::load(q_smem, self.lanes);
            self.attend_told(&q_operand, q, tile_pipe);
            return;
        }
        let work_tile = tile_pipe.work_tile();
        let sequence = tile_pipe.sequence(&params.attention, work_tile);
        let ranges = Ranges::new(self.launch, config, &sequence, work_tile, warpgroup);
        if config.cluster > 1 {
            self.skip(ranges.cluster.end - ranges.block.end, false);
        }
        self.skip(ranges.block.end - ranges.own.end, config.ping_pong);
        q.consumer_wait();
        let q_operand = K::QkOperand::load(q_smem, self.lanes);
        self.attend(&q_operand, ranges.own, q, tile_pipe);
    }

    /// From the output in registers to global memory, past the key blocks on the left that others need.
    ///
    /// # Safety
    /// As [`consume`]; the tile is computed.
    #[inline(always)]
    unsafe fn finish(&mut self, warpgroup: u32, tile_pipe: &WorkTilePipe) {
        let config = &K::CONFIG;
        let params = self.launch.params;
        let work_tile = tile_pipe.work_tile();
        // Read again rather than kept.
        let sequence = tile_pipe.sequence(&params.attention, work_tile);
        if K::Modifiers::IS_NONE && params.attention.mask.band.lower > -Band::OPEN {
            // Without a border on the left all ranges begin with block 0.
            let ranges = Ranges::begins(self.launch, config, &sequence, work_tile, warpgroup);
            // At most one: its first row lies behind the block's by no more than a block of keys.
            const { assert!((K::CONFIG.consumers - 1) * WARPGROUP_ROWS <= K::CONFIG.block_n) };
            if ranges.own.begin != ranges.block.begin {
                self.skip_one(config.ping_pong);
            }
            if config.cluster > 1 {
                self.skip(ranges.block.begin - ranges.cluster.begin, false);
            }
        }
        let (launch, lanes) = (self.launch, self.lanes);
        let epilogue = Epilogue::new(launch, config, warpgroup, lanes, work_tile, &sequence);
        let (acc_o, rows) = (&self.acc_o, &self.rows);
        epilogue.store::<K, S_REGS, P_REGS, O_REGS>(acc_o, rows, self.modifiers, &mut self.v);
    }

    /// Skips key blocks that only others need: the other block of the cluster, or, `in_turn` to issue GEMMs, other warpgroups
    /// of this block.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn skip(&mut self, blocks: u32, in_turn: bool) {
        let mut i = 0;
        // Hidden: they are few, and no loop for two at once is worth its code.
        while i < black_box(blocks) {
            self.skip_one(in_turn);
            i += 1;
        }
    }

    /// Skips one.
    ///
    /// # Safety
    /// As [`consume`].
    #[inline(always)]
    unsafe fn skip_one(&mut self, in_turn: bool) {
        self.k.consumer_wait();
        self.release_k();
        self.v.consumer_wait();
        self.release_v();
        if in_turn {
            self.scheduler_barrier.sync();
            self.scheduler_barrier.arrive();
        }
    }

    /// From the last block's scores to the first block's output.
    ///
    /// # Safety
    /// As [`consume`]; Q has arrived.
    #[inline(always)]
    unsafe fn attend(
        &mut self,
        q_operand: &K::QkOperand,
        blocks: BlockRange,
        q: &PipelineState,
        tile_pipe: &WorkTilePipe,
    ) {
        self.rows = Rows::new();
        self.acc_o = [0.0; O_REGS];
        // S = Q Kᵀ of the last block
        self.k.consumer_wait();
        self.issue_qk(q_operand);
        self.acc_s.wait::<0>();
        if Self::CONFIG.q_in_registers {
            // The multiplication has read the registers, so the loads that filled them are done.
            mbarrier::arrive_if(self.lanes.lane == 0, q.empty_barrier());
        }
        let mut n_block = blocks.end - 1;
        let mut is_first = true;
        // One round from a block's scores to those of the next that may have a mask, so that there is one copy of the online softmax.
        loop {
            self.finish_online(blocks, n_block, is_first, tile_pipe);
            // P of block `n_block` is an operand; its PV is still to come.
            if n_block == blocks.begin {
                break;
            }
            if self.is_plain() {
                // Computed anew in every round rather than kept.
                let blocks = BlockRange::from_words(blocks.to_words().map(black_box));
                let (fast_begin, fast_end) = blocks.unmasked(Self::CONFIG.block_n);
                while fast_begin < n_block && n_block <= fast_end {
                    self.step_stale_max(q_operand);
                    n_block -= 1;
                }
                if n_block == blocks.begin {
                    break;
                }
            }
            self.issue_qk_pv(q_operand);
            self.wait_qk();
            n_block -= 1;
            is_first = false;
        }

        if !Self::CONFIG.q_in_registers {
            mbarrier::arrive_if(self.lanes.lane == 0, q.empty_barrier());
        }
        // O += P V of the first block
        self.v.consumer_wait();
        self.issue_pv();
        self.acc_o.wait::<0>();
        self.release_v();
    }
}
