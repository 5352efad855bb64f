//! Which blocks of keys a tile with modifiers needs: the producer walks them, and tells the consumers with every stage of K
//! which block it holds.

use cuda_std::warp::uniform;
use cuda_std::{global, shared};

use super::Launch;
use super::blocks::cluster_range;
use crate::abi::BlockState;
use crate::config::wgmma::WgmmaConfig;
use crate::modifiers::Modifiers;
use crate::tile::block_range::BlockRange;
use crate::tile::sequence::Sequence;
use crate::units::F32_BYTES;
use crate::wgmma::scheduler::TileCoord;

/// A block of keys, in a word.
///
/// ```text
/// bit 0: a row of the tile does not see all of it     bit 1: it is the tile's last     bits 2 ..: its number
/// ```
#[derive(Clone, Copy)]
pub struct Block(u32);

impl Block {
    const NEEDS_MASK: u32 = 1;
    const IS_LAST: u32 = 2;
    const SHIFT: u32 = 2;

    #[inline(always)]
    fn new(n_block: u32, needs_mask: bool) -> Self {
        Self(n_block << Self::SHIFT | u32::from(needs_mask))
    }

    /// That in stage `stage` of K, the same in every lane; `smem` is that of the launch's shared memory.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call; the stage is full.
    #[inline(always)]
    pub unsafe fn read(smem: u32, config: &WgmmaConfig, stage: u32) -> Self {
        let words = smem + config.block_words_offset();
        Self(uniform(shared::load_bits(words + stage * F32_BYTES)))
    }

    /// The block as a word; `is_last` says whether the tile needs no other after it.
    #[inline(always)]
    pub fn word(self, is_last: bool) -> u32 {
        self.0 | if is_last { Self::IS_LAST } else { 0 }
    }

    #[inline(always)]
    pub const fn n_block(self) -> u32 {
        self.0 >> Self::SHIFT
    }

    #[inline(always)]
    pub const fn needs_mask(self) -> bool {
        self.0 & Self::NEEDS_MASK != 0
    }

    #[inline(always)]
    pub const fn is_last(self) -> bool {
        self.0 & Self::IS_LAST != 0
    }
}

/// States of blocks in a word, a byte each.
const STATES: u32 = size_of::<u32>() as u32;

/// The blocks of keys of a tile that some row may see, from the last to the first.
pub struct BlockWalk {
    /// Device address of the states of the tile's blocks; 0 where the band alone hides pairs.
    states: u64,
    range: BlockRange,
    block_n: u32,
}

impl BlockWalk {
    /// That of tile `work_tile`, whose batch entry `sequence` is.
    ///
    /// # Safety
    /// `launch` holds; the arrays of `modifiers` are live.
    #[inline(always)]
    pub unsafe fn new<M: Modifiers>(
        launch: &Launch,
        config: &WgmmaConfig,
        modifiers: &M,
        work_tile: TileCoord,
        sequence: &Sequence,
    ) -> Self {
        let block_n = config.block_n;
        if modifiers.hides() && sequence.has_pairs() {
            let at = launch.place(work_tile, sequence);
            return Self {
                states: modifiers.states(&at, work_tile.cluster_m_block),
                range: BlockRange::all(sequence.seq_kv, block_n),
                block_n,
            };
        }
        Self {
            states: 0,
            range: cluster_range(sequence, config, work_tile, launch.pack_gqa()),
            block_n,
        }
    }

    /// The first block to load. Where no row sees a key it is one that is masked out, so that every pipeline moves with every
    /// tile.
    ///
    /// # Safety
    /// As [`BlockWalk::new`].
    #[inline(always)]
    pub unsafe fn first(&self) -> Block {
        match self.before(self.range.end) {
            Some(block) => block,
            None => Block::new(0, true),
        }
    }

    /// The block to load after block `n_block`, which lies before it.
    ///
    /// # Safety
    /// As [`BlockWalk::new`].
    #[inline(always)]
    pub unsafe fn before(&self, n_block: u32) -> Option<Block> {
        if self.states == 0 {
            return (n_block > self.range.begin).then(|| {
                let block = n_block - 1;
                let needs_mask = self.range.needs_mask(block * self.block_n, self.block_n);
                Block::new(block, needs_mask)
            });
        }
        const { assert!(BlockState::Hidden as u32 == 0) };
        let mut end = n_block;
        while end > 0 {
            let word = (end - 1) / STATES;
            let beyond = STATES - (end - word * STATES);
            let states = global::load_u32(self.states + u64::from(word * STATES));
            let states = states << (u8::BITS * beyond);
            if states != 0 {
                // The last byte that is not 0.
                let above = states.leading_zeros() / u8::BITS;
                let state = states >> (u8::BITS * (STATES - 1 - above)) & u32::from(u8::MAX);
                let needs_mask = state != BlockState::Full as u32;
                return Some(Block::new(end - 1 - above, needs_mask));
            }
            end = word * STATES;
        }
        None
    }
}
