//! Which passing blocks a tile with modifiers takes: the producer's warps walk them, each for itself, and tell the consumers with
//! every stage of the first operand which block it holds. Behind the last one comes a stage without a block.

use cuda_std::shared;
use cuda_std::warp::{WARP_SIZE, ballot, lane_id, uniform};

use super::tile::Tile;
use crate::abi::BlockState;
use crate::backward::side::Side;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::modifiers::Modifiers;
use crate::units::F32_BYTES;

/// A passing block, or that there is none, in two words.
///
/// ```text
/// word 0: the head     word 1, bit 0: a pair of the tile is hidden     bit 1: there is no block     bits 2 ..: its number
/// ```
#[derive(Clone, Copy)]
pub struct Told {
    pub head: u32,
    block: u32,
}

impl Told {
    const NEEDS_MASK: u32 = 1;
    const IS_END: u32 = 2;
    const SHIFT: u32 = 2;

    /// There are no more blocks.
    pub const END: Self = Self {
        head: 0,
        block: Self::IS_END,
    };

    #[inline(always)]
    fn new(head: u32, block: u32, needs_mask: bool) -> Self {
        Self {
            head,
            block: block << Self::SHIFT | u32::from(needs_mask),
        }
    }

    /// First row of the block.
    #[inline(always)]
    pub fn begin(&self, config: &WgmmaBackwardConfig) -> u32 {
        (self.block >> Self::SHIFT) * config.block_n
    }

    /// Whether some pair of the tile and the block is hidden, or does not exist.
    #[inline(always)]
    pub fn needs_mask(&self) -> bool {
        self.block & Self::NEEDS_MASK != 0
    }

    #[inline(always)]
    pub fn is_end(&self) -> bool {
        self.block & Self::IS_END != 0
    }

    /// Leaves the words at `smem`.
    ///
    /// # Safety
    /// Nobody else accesses them until the stage is full.
    #[inline(always)]
    pub unsafe fn store(&self, smem: u32) {
        shared::store_bits(smem, self.head);
        shared::store_bits(smem + F32_BYTES, self.block);
    }

    /// The words at `smem`.
    ///
    /// # Safety
    /// The stage is full; all lanes of the warp reach the same call.
    #[inline(always)]
    pub unsafe fn load(smem: u32) -> Self {
        Self {
            head: uniform(shared::load_bits(smem)),
            block: uniform(shared::load_bits(smem + F32_BYTES)),
        }
    }
}

impl<S: Side, M: Modifiers> Tile<'_, S, M> {
    /// Calls `step` with every passing block of the tile that is not hidden, in the order of consumers, as a whole warp.
    ///
    /// # Safety
    /// As [`Tile::begin`]; all lanes of a warp reach the same call.
    #[inline(always)]
    pub unsafe fn each_shown(&self, config: &WgmmaBackwardConfig, mut step: impl FnMut(Told)) {
        let [_, _, head, _] = self.passing();
        let mut head = uniform(head);
        loop {
            let [begin, end, _, head_end] = self.passing().map(|word| uniform(word));
            let mut first = begin;
            while first < end {
                let (mut shown, full) = self.states(config, head, first);
                while shown != 0 {
                    let index = shown.trailing_zeros();
                    let needs_mask = full >> index & 1 == 0;
                    step(Told::new(head, first + index, needs_mask));
                    shown &= shown - 1;
                }
                first += WARP_SIZE;
            }
            head += 1;
            if head >= head_end {
                break;
            }
        }
    }

    /// Of the blocks from `first` on, a bit each: which are not hidden, and of which all pairs are shown.
    ///
    /// # Safety
    /// As [`Tile::each_shown`].
    #[inline(always)]
    unsafe fn states(&self, config: &WgmmaBackwardConfig, head: u32, first: u32) -> (u32, u32) {
        let block = first + lane_id();
        let [_, end, ..] = self.passing();
        let mut state = BlockState::Hidden as u32;
        if block < end {
            state = self.state(config, head, block);
        }
        let shown = ballot(state != BlockState::Hidden as u32);
        (shown, ballot(state == BlockState::Full as u32))
    }

    /// The [`BlockState`] of a passing block that there is.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    unsafe fn state(&self, config: &WgmmaBackwardConfig, head: u32, block: u32) -> u32 {
        if self.modifiers.hides() {
            let kept = self.begin() / config.block_m();
            let (tile, block) = S::query_and_key(kept, block);
            return self.modifiers.state(&self.place(head), tile, block);
        }
        let range = self.blocks(0, config.block_m(), config.block_n);
        let lacks_rows = self.begin() + config.block_m() > self.extent().kept;
        let needs_mask = range.needs_mask(block * config.block_n, config.block_n);
        if needs_mask | lacks_rows {
            BlockState::Partial as u32
        } else {
            BlockState::Full as u32
        }
    }
}
