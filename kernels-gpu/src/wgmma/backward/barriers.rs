//! The barriers of a backward kernel.

use cuda_std::mbarrier;
use cuda_std::warp::WARP_SIZE;

use crate::backward::side::Side;
use crate::config::wgmma::WARPS;
use crate::config::wgmma_backward::{OPERANDS, WgmmaBackwardConfig};
use crate::wgmma::pipeline::PipelineState;

/// Addresses of the mbarriers; those of a pipeline's stages are consecutive.
#[derive(Clone, Copy)]
pub struct Barriers {
    base: u32,
    stages: u32,
    ds_blocks: u32,
}

impl Barriers {
    /// Stages of what is kept.
    const KEPT: u32 = 1;

    #[inline(always)]
    pub fn new(config: &WgmmaBackwardConfig, base: u32) -> Self {
        Self {
            base,
            stages: config.stages,
            ds_blocks: config.ds_blocks,
        }
    }

    /// The kept operands, which consumers wait for once a tile.
    #[inline(always)]
    pub fn kept(&self) -> PipelineState {
        let empty = self.base + Self::KEPT * mbarrier::BYTES;
        PipelineState::consumer(self.base, empty, Self::KEPT)
    }

    /// The words of tiles.
    #[inline(always)]
    pub fn tiles(&self) -> PipelineState {
        let full = self.base + 2 * Self::KEPT * mbarrier::BYTES;
        let stages = WgmmaBackwardConfig::TILES;
        PipelineState::consumer(full, full + stages * mbarrier::BYTES, stages)
    }

    #[inline(always)]
    fn full(&self, operand: u32) -> u32 {
        let before = Self::KEPT + WgmmaBackwardConfig::TILES + operand * self.stages;
        self.base + 2 * before * mbarrier::BYTES
    }

    #[inline(always)]
    fn empty(&self, operand: u32) -> u32 {
        self.full(operand) + self.stages * mbarrier::BYTES
    }

    /// The producer's side of passing operand `operand`.
    #[inline(always)]
    pub fn producer(&self, operand: u32) -> PipelineState {
        self.consumer(operand).as_producer()
    }

    /// The consumers' side of passing operand `operand`.
    #[inline(always)]
    pub fn consumer(&self, operand: u32) -> PipelineState {
        PipelineState::consumer(self.full(operand), self.empty(operand), self.stages)
    }

    /// The blocks of dS, which consumers write and read.
    #[inline(always)]
    pub fn ds_writer(&self) -> PipelineState {
        self.ds_reader().as_producer()
    }

    /// As [`Self::ds_writer`], for those who read.
    #[inline(always)]
    pub fn ds_reader(&self) -> PipelineState {
        let full = self.full(OPERANDS);
        PipelineState::consumer(
            full,
            full + self.ds_blocks * mbarrier::BYTES,
            self.ds_blocks,
        )
    }

    /// Initialises all of them.
    ///
    /// # Safety
    /// One thread of the block calls it, before any other uses a barrier; a barrier of the block follows.
    #[inline(always)]
    pub unsafe fn init<S: Side>(&self, config: &WgmmaBackwardConfig) {
        /// The producer's arrival, in addition to the bytes.
        const PRODUCER: u32 = 1;
        let consumers = WARPS * config.consumers;
        // Terms of queries come with the first operand, if it is Q that passes: by a warp that reads the words of tiles too.
        let (terms, readers) = match S::HAS_SECOND {
            true => (WARP_SIZE, consumers + 1),
            false => (0, consumers),
        };
        // And once more when its copies have arrived.
        let copies = if config.copies_biases() { terms } else { 0 };
        mbarrier::init(self.kept().full_barrier(), PRODUCER);
        mbarrier::init(self.kept().empty_barrier(), consumers);
        let mut tile = 0;
        while tile < WgmmaBackwardConfig::TILES {
            let words = self.tiles().at(tile);
            mbarrier::init(words.full_barrier(), PRODUCER);
            mbarrier::init(words.empty_barrier(), readers);
            tile += 1;
        }
        let mut stage = 0;
        while stage < config.stages {
            let at = |first: u32| first + stage * mbarrier::BYTES;
            mbarrier::init(at(self.full(0)), PRODUCER + terms + copies);
            mbarrier::init(at(self.full(1)), PRODUCER);
            mbarrier::init(at(self.empty(0)), consumers);
            mbarrier::init(at(self.empty(1)), consumers);
            stage += 1;
        }
        let readers = match config.shares_dq() {
            true => consumers,
            false => WARPS,
        };
        let mut block = 0;
        while block < config.ds_blocks {
            let full = self.full(OPERANDS) + block * mbarrier::BYTES;
            mbarrier::init(full, consumers);
            mbarrier::init(full + config.ds_blocks * mbarrier::BYTES, readers);
            block += 1;
        }
        mbarrier::fence_init();
    }
}
