//! What the warpgroups of the first kernel share: barriers, where P lies, the order of blocks.

use cuda_std::mbarrier;
use cuda_std::warp::WARP_SIZE;

use super::super::barriers::Barriers;
use super::super::tile::Tile;
use crate::backward::side::KeepKeys;
use crate::config::wgmma::WARPS;
use crate::config::wgmma_backward_split::SplitKeysConfig;
use crate::wgmma::pipeline::PipelineState;

/// Addresses of the mbarriers.
#[derive(Clone, Copy)]
pub struct Shared {
    /// Of what is kept and what passes.
    pub blocks: Barriers,
    p: u32,
}

impl Shared {
    #[inline(always)]
    pub fn new(config: &SplitKeysConfig, smem: u32) -> Self {
        Self {
            blocks: Barriers::new(&config.blocks, smem + config.blocks.barriers_offset()),
            p: smem + config.p_barriers_offset(),
        }
    }

    /// P's stages, as the dS warpgroup sees them.
    #[inline(always)]
    pub fn p(&self) -> PipelineState {
        let stages = SplitKeysConfig::P_STAGES;
        PipelineState::consumer(self.p, self.p + stages * mbarrier::BYTES, stages)
    }

    /// dO's stages, which take the turns of `q`, Q's.
    #[inline(always)]
    pub fn d_o(&self, q: PipelineState) -> PipelineState {
        q.with_barriers_of(self.blocks.consumer(1))
    }

    /// Initialises all barriers.
    ///
    /// # Safety
    /// One thread of the block calls it, before any other uses a barrier; a barrier of the block follows.
    #[inline(always)]
    pub unsafe fn init(&self, config: &SplitKeysConfig) {
        /// The producer's arrival, in addition to the bytes.
        const PRODUCER: u32 = 1;
        let consumers = WARPS * SplitKeysConfig::CONSUMERS;
        mbarrier::init(self.blocks.kept().full_barrier(), PRODUCER);
        mbarrier::init(self.blocks.kept().empty_barrier(), consumers);
        // The queries' terms come with Q, each by a lane.
        let arrivals = [PRODUCER + WARP_SIZE, PRODUCER];
        for operand in 0..arrivals.len() {
            let mut stage = self.blocks.producer(operand as u32);
            for _ in 0..config.blocks.stages {
                mbarrier::init(stage.full_barrier(), arrivals[operand]);
                mbarrier::init(stage.empty_barrier(), consumers);
                stage.advance();
            }
        }
        let mut p = self.p();
        for _ in 0..SplitKeysConfig::P_STAGES {
            mbarrier::init(p.full_barrier(), WARPS);
            if config.waits_for_p() {
                mbarrier::init(p.empty_barrier(), WARPS);
            }
            p.advance();
        }
        mbarrier::fence_init();
    }
}

/// One of the blocks that pass.
#[derive(Clone, Copy)]
pub struct Step {
    pub head: u32,
    pub block: u32,
}

impl Step {
    /// The first of the tile's, of which there is one.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn first(tile: &Tile<KeepKeys>) -> Self {
        let [block, _, head, _] = tile.passing();
        Self { head, block }
    }

    /// Whether none of its query head passes before it.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn is_first_of_head(self, tile: &Tile<KeepKeys>) -> bool {
        let [begin, ..] = tile.passing();
        self.block == begin
    }

    /// Whether it is the last one.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn is_last(self, tile: &Tile<KeepKeys>) -> bool {
        let [_, end, _, head_end] = tile.passing();
        self.block + 1 == end && self.head + 1 == head_end
    }

    /// The one after it.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn next(self, tile: &Tile<KeepKeys>) -> Self {
        let [begin, end, ..] = tile.passing();
        let Self { head, block } = self;
        if block + 1 < end {
            Self {
                head,
                block: block + 1,
            }
        } else {
            Self {
                head: head + 1,
                block: begin,
            }
        }
    }

    /// Whether some of its pairs are masked out, or some of the tile's keys do not exist.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn needs_mask(self, tile: &Tile<KeepKeys>, config: &SplitKeysConfig) -> bool {
        let rows = config.blocks.block_m();
        let block_n = config.blocks.block_n;
        let is_cut = tile.begin() + rows > tile.extent().kept;
        // Asked of a tile that is not cut alone, which has all its rows.
        let seen = tile.blocks_of_rows(rows, block_n);
        is_cut || seen.needs_mask(self.block * block_n, block_n)
    }
}

/// A thread of a warpgroup that takes every block that passes, one after the other.
pub trait Consumer {
    const CONFIG: SplitKeysConfig;

    fn tile(&self) -> &Tile<'_, KeepKeys>;

    /// Computes the first block's product, when its operands are there.
    ///
    /// # Safety
    /// All threads of the warpgroup call it, once.
    unsafe fn begin(&mut self);

    /// Takes note that another query head passes, of whose first block the product is there; no product is in flight.
    ///
    /// # Safety
    /// As [`Consumer::begin`], before the head's first block.
    #[inline(always)]
    unsafe fn begin_head(&mut self) {}

    /// Takes one block, whose product is there, and starts that of the next one, unless it is the `LAST`.
    ///
    /// # Safety
    /// As [`Consumer::begin`], for each block in turn.
    unsafe fn block<const MASKED: bool, const LAST: bool>(&mut self, step: Step);

    /// Takes all blocks.
    ///
    /// # Safety
    /// As [`Consumer::begin`]; a block passes.
    #[inline(always)]
    unsafe fn all_steps(&mut self) {
        self.begin();
        let mut step = Step::first(self.tile());
        loop {
            if step.is_first_of_head(self.tile()) {
                self.begin_head();
            }
            let is_last = step.is_last(self.tile());
            match (step.needs_mask(self.tile(), &Self::CONFIG), is_last) {
                (false, false) => self.block::<false, false>(step),
                (true, false) => self.block::<true, false>(step),
                (false, true) => self.block::<false, true>(step),
                (true, true) => self.block::<true, true>(step),
            }
            if is_last {
                break;
            }
            step = step.next(self.tile());
        }
    }
}
