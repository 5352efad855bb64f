//! Which passing blocks a tile takes. With modifiers, the producer's warps find out, each for itself, and tell the consumers with
//! every stage of the first operand which block it holds.

use cuda_std::shared;
use cuda_std::warp::{WARP_SIZE, ballot, lane_id, uniform};

use super::tile::Tile;
use crate::abi::BlockState;
use crate::backward::side::Side;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::modifiers::Modifiers;
use crate::units::F32_BYTES;

/// A passing block, in two words.
///
/// ```text
/// word 0: the head     word 1, bit 0: a pair of the tile is hidden     bit 1: it is the tile's last     bits 2 ..: its number
/// ```
#[derive(Clone, Copy)]
pub struct Told {
    pub head: u32,
    block: u32,
}

impl Told {
    const NEEDS_MASK: u32 = 1;
    const IS_LAST: u32 = 2;
    const SHIFT: u32 = 2;

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
    pub fn is_last(&self) -> bool {
        self.block & Self::IS_LAST != 0
    }

    /// The same block, which is the tile's last if `is_last`.
    #[inline(always)]
    fn or_last(self, is_last: bool) -> Self {
        let is_last = if is_last { Self::IS_LAST } else { 0 };
        Self {
            block: self.block | is_last,
            ..self
        }
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
    /// Calls `step` with every passing block of the tile that is not hidden, in the order of consumers. Without modifiers it does
    /// not say which of them need a mask and which is the last.
    ///
    /// # Safety
    /// As [`Tile::begin`]; with modifiers, all lanes of a warp reach the same call.
    #[inline(always)]
    pub unsafe fn each_block(&self, config: &WgmmaBackwardConfig, mut step: impl FnMut(Told)) {
        if M::IS_NONE {
            self.each_step(config, |head, block| step(Told::new(head, block, false)));
            return;
        }
        let mut shown = self.shown();
        let mut next = shown.next(config);
        while let Some(block) = next {
            next = shown.next(config);
            step(block.or_last(next.is_none()));
        }
    }

    /// The tile's blocks that are not hidden, from the first on.
    ///
    /// # Safety
    /// As [`Tile::begin`]; all lanes of a warp reach the same call.
    #[inline(always)]
    pub unsafe fn shown(&self) -> Shown<'_, '_, S, M> {
        let [begin, _, head, _] = self.passing();
        Shown {
            tile: self,
            head: uniform(head),
            first: uniform(begin),
            left: 0,
            full: 0,
        }
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

/// Blocks of a tile with modifiers that are not hidden, a warp's width of them looked at together.
pub struct Shown<'t, 'a, S, M> {
    tile: &'t Tile<'a, S, M>,
    head: u32,
    /// First block of those that are looked at next.
    first: u32,
    /// Of those looked at last, a bit each: which are left, and of which all pairs are shown.
    left: u32,
    full: u32,
}

impl<S: Side, M: Modifiers> Shown<'_, '_, S, M> {
    /// The next one, if there is one.
    ///
    /// # Safety
    /// As [`Tile::shown`].
    #[inline(always)]
    pub unsafe fn next(&mut self, config: &WgmmaBackwardConfig) -> Option<Told> {
        while self.left == 0 {
            let [begin, end, _, head_end] = self.tile.passing().map(|word| uniform(word));
            if self.first >= end {
                self.head += 1;
                self.first = begin;
            }
            if self.head >= head_end {
                return None;
            }
            self.look(config, end);
        }
        let index = self.left.trailing_zeros();
        self.left &= self.left - 1;
        let needs_mask = self.full >> index & 1 == 0;
        let block = self.first - WARP_SIZE + index;
        Some(Told::new(self.head, block, needs_mask))
    }

    /// Looks at the next blocks, a lane each.
    ///
    /// # Safety
    /// As [`Tile::shown`]; the head is one that passes.
    #[inline(always)]
    unsafe fn look(&mut self, config: &WgmmaBackwardConfig, end: u32) {
        let block = self.first + lane_id();
        let mut state = BlockState::Hidden as u32;
        if block < end {
            state = self.tile.state(config, self.head, block);
        }
        self.left = ballot(state != BlockState::Hidden as u32);
        self.full = ballot(state == BlockState::Full as u32);
        self.first += WARP_SIZE;
    }
}
