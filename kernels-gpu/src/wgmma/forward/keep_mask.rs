//! Dropout's keep mask. Whether a pair's probability stays depends on its place alone, so it is found beside the consumers, a block of
//! keys ahead of them, by warps that have nothing else to do: those of the producer's warpgroup that load nothing and, where rows are
//! short, one warpgroup more. Consumers have neither the registers nor the time: a call of the generator is a chain of twenty
//! products.
//!
//! ```text
//! a stage, of one consumer warpgroup    [4 warps][block_n / 64][32 lanes] words (`Dropout::dropped_signs`)
//! ```

use cuda_std::bytes::spread_signs;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{WARP_SIZE, sync_warp, uniform, warp_id};
use cuda_std::{mbarrier, shared};

use super::Launch;
use super::block_walk::Block;
use super::blocks::row_begin;
use super::lanes::Lanes;
use crate::config::wgmma::{WARP_ROWS, WARPGROUP, WARPS, WgmmaConfig};
use crate::modifiers::dropout::{Dropout, SIGNS_COLS, SIGNS_REGISTERS};
use crate::modifiers::{Modifiers, Pair};
use crate::tile::black_box;
use crate::tile::quad::QUAD;
use crate::wgmma::pipeline::{PipelineState, init_stages};
use crate::wgmma::scheduler::TileCoord;
use crate::wgmma::scheduler::tile_pipe::WorkTilePipe;

/// First of the full barriers, and of the empty ones: a pair for each warpgroup. `smem` is the address of the launch's shared memory.
#[inline(always)]
fn barriers(smem: u32, config: &WgmmaConfig) -> [u32; 2] {
    let full = smem + config.keep_barriers_offset();
    [full, full + config.keep_stages() * mbarrier::BYTES]
}

/// The pipeline, whose stages are one for each warpgroup, as its producer sees it.
#[inline(always)]
fn pipeline(smem: u32, config: &WgmmaConfig) -> PipelineState {
    let [full, empty] = barriers(smem, config);
    PipelineState::producer(full, empty, config.keep_stages())
}

/// Initialises the barriers.
///
/// # Safety
/// One thread of the block calls it, before any other uses a barrier; a barrier of the block follows.
#[inline(always)]
pub unsafe fn init_barriers(smem: u32, config: &WgmmaConfig) {
    init_stages(
        barriers(smem, config),
        config.keep_stages(),
        [config.keep_warps, WARPS],
    );
    mbarrier::fence_init();
}

/// Words of a lane for a block of keys.
#[inline(always)]
const fn words(config: &WgmmaConfig) -> u32 {
    config.block_n / SIGNS_COLS
}

/// Address of word `word` of a lane's in the stage of warpgroup `warpgroup`; `smem` is that of the launch's shared memory.
#[inline(always)]
fn address(smem: u32, config: &WgmmaConfig, warpgroup: u32, word: u32, lane: u32) -> u32 {
    let stage = smem + config.keep_offset() + warpgroup * config.keep_bytes();
    stage + (word * WARP_SIZE + lane) * size_of::<u32>() as u32
}

/// Makes the masks of all blocks that the producer tells, for tiles until there are no more.
///
/// # Safety
/// `launch` holds and drops probabilities; the [`keep_warps`](WgmmaConfig::keep_warps) call it.
#[inline(always)]
pub unsafe fn make<M: Modifiers>(launch: &Launch, config: &WgmmaConfig, modifiers: &M) {
    let Launch { smem, barriers, .. } = *launch;
    let lanes = Lanes::new();
    let attention = &launch.params.attention;
    let mut k = PipelineState::consumer(barriers.k_full, barriers.k_empty, config.k_stages);
    let mut maker = Maker {
        launch,
        config,
        lanes,
        stages: pipeline(smem, config),
        word: maker_number(),
    };
    let mut tile_pipe = WorkTilePipe::new(smem + config.work_offset(), &barriers, config);
    while tile_pipe.consumer_wait() {
        let work_tile = tile_pipe.work_tile();
        let sequence = tile_pipe.sequence(attention, work_tile);
        let at = launch.place(work_tile, &sequence);
        // The launch drops probabilities.
        let dropout = modifiers.dropout(&at).unwrap_unchecked();
        loop {
            k.consumer_wait();
            let block = Block::read(smem, config, k.stage);
            k.consumer_release(lanes.lane, config.cluster);
            k.advance();
            maker.make_block(&dropout, work_tile, block.n_block());
            if block.is_last() {
                break;
            }
        }
        tile_pipe.release(lanes.lane == 0);
    }
}

/// Which of the warps that make masks this is: first come those of the producer's warpgroup, which has one that loads.
///
/// # Safety
/// As [`make`].
#[inline(always)]
unsafe fn maker_number() -> u32 {
    let warp = uniform(warp_id());
    if warp < WARPS {
        warp - 1
    } else {
        WARPS - 1 + warp % WARPS
    }
}

/// A warp that makes a part of every mask.
struct Maker<'a> {
    launch: &'a Launch<'a>,
    config: &'a WgmmaConfig,
    lanes: Lanes,
    stages: PipelineState,
    /// The next word of the stage in hand that this warp makes; words go round the warps, from stage to stage.
    word: u32,
}

impl Maker<'_> {
    /// Makes this warp's part of the masks of a block of keys, for one warpgroup after the other.
    ///
    /// # Safety
    /// As [`make`].
    #[inline(always)]
    unsafe fn make_block(&mut self, dropout: &Dropout, work_tile: TileCoord, n_block: u32) {
        let Self {
            launch,
            config,
            lanes,
            ..
        } = *self;
        let mut warpgroup = 0;
        while warpgroup < config.consumers {
            self.stages.producer_acquire();
            let row = row_begin(launch, config, work_tile, warpgroup) + lanes.lane / QUAD;
            let key = n_block * config.block_n + lanes.col();
            while self.word < WARPS * words(config) {
                let (warp, part) = (self.word / words(config), self.word % words(config));
                let signs = dropout.dropped_signs(Pair {
                    query: row + warp * WARP_ROWS,
                    key: key + part * SIGNS_COLS,
                });
                let to = address(launch.smem, config, warpgroup, self.word, lanes.lane);
                shared::store_bits(to, signs);
                self.word += config.keep_warps;
            }
            self.word -= WARPS * words(config);
            sync_warp();
            mbarrier::arrive_if(lanes.lane == 0, self.stages.full_barrier());
            self.stages.advance();
            warpgroup += 1;
        }
    }
}

/// What a thread has read of a mask: two words, for at most 64 registers.
pub type Signs = [u32; 2];

/// A consumer's side of the pipeline.
#[derive(Clone, Copy)]
pub struct Reader {
    /// Parity of the phase that it waits for next.
    phase: u32,
}

impl Reader {
    #[inline(always)]
    pub const fn new() -> Self {
        Self { phase: 0 }
    }

    /// Waits for the mask of a block, and reads this thread's words of it.
    ///
    /// # Safety
    /// All lanes of a consumer's warp reach the same call, once for every block that the producer tells.
    #[inline(always)]
    pub unsafe fn read(&mut self, smem: u32, config: &WgmmaConfig) -> Signs {
        // Computed here rather than kept.
        let thread = black_box(thread_idx_x());
        let warpgroup = thread / WARPGROUP - 1;
        let (warp, lane) = (thread % WARPGROUP / WARP_SIZE, thread % WARP_SIZE);
        let mut stage = pipeline(smem, config);
        stage.stage = warpgroup;
        mbarrier::wait(stage.full_barrier(), self.phase);
        self.phase ^= 1;
        let mut signs = [0; 2];
        let mut part = 0;
        while part < words(config) {
            let word = warp * words(config) + part;
            signs[part as usize] = shared::load_bits(address(smem, config, warpgroup, word, lane));
            part += 1;
        }
        // One lane releases the stage, which all have read.
        sync_warp();
        mbarrier::arrive_if(lane == 0, stage.empty_barrier());
        signs
    }
}

/// Sets the rounded probabilities to 0 that are dropped.
#[inline(always)]
pub fn drop<const P_REGS: usize>(p_frag: &mut [u32; P_REGS], signs: Signs) {
    const WORD_REGS: usize = SIGNS_REGISTERS / 2;
    let mut i = 0;
    while i < P_REGS {
        let word = signs[i / WORD_REGS] << (i % WORD_REGS / 2);
        p_frag[i] &= !spread_signs::<0x9988>(word, word);
        p_frag[i + 1] &= !spread_signs::<0xbbaa>(word, word);
        i += 2;
    }
}
