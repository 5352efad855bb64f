//! The tiles of a block, one after the other. Its producer draws their numbers, and says ahead what the next one is, so that its
//! operands are loaded while the gradients of the present one are stored.

use core::marker::PhantomData;

use cuda_std::thread::{block_idx_x, grid_dim_x};
use cuda_std::warp::{lane_id, sync_warp, uniform};
use cuda_std::{global, mbarrier};

use super::barriers::Barriers;
use super::tile::Tile;
use crate::abi::BackwardParams;
use crate::backward::side::Side;
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::modifiers::Modifiers;

/// Where the words of tiles lie, which are counted from the block's first.
#[derive(Clone, Copy)]
pub struct Tiles<'a, S, M> {
    pub params: &'a BackwardParams,
    pub modifiers: &'a M,
    pub config: &'a WgmmaBackwardConfig,
    pub barriers: Barriers,
    /// Address of the words.
    pub words: u32,
    pub side: PhantomData<S>,
}

impl<'a, S: Side, M: Modifiers> Tiles<'a, S, M> {
    /// Tile `number` of the block.
    #[inline(always)]
    pub fn at(&self, number: u32) -> Tile<'a, S, M> {
        let stage = self.barriers.tiles().at(number).stage;
        let words = self.words + stage * WgmmaBackwardConfig::TILE_BYTES;
        Tile::at(self.params, self.modifiers, words)
    }

    /// The number in the launch of the block's first tile, of which every block has one.
    #[inline(always)]
    pub fn first() -> u32 {
        block_idx_x()
    }

    /// Says what tile `number` of the block is: number `of_launch` of the launch, or the first one drawn after it that has rows.
    /// Returns whether there is one. If not, the block has no more.
    ///
    /// # Safety
    /// `params` describes live allocations. A warp of the producer calls it, for each tile in turn until there is none.
    #[inline(always)]
    pub unsafe fn tell(&self, number: u32, mut of_launch: u32) -> bool {
        let is_writer = lane_id() == 0;
        let tile = self.at(number);
        let words = self.barriers.tiles().at(number);
        words.as_producer().producer_acquire();
        let is_one = loop {
            // The others have read what was written before.
            sync_warp();
            if of_launch > self.last() {
                if is_writer {
                    tile.write_end();
                }
                break false;
            }
            if is_writer {
                tile.write(self.first_tile() + of_launch, self.config);
            }
            sync_warp();
            if uniform(u32::from(tile.has_rows())) != 0 {
                break true;
            }
            of_launch = self.draw();
        };
        // Without asking whether anything hides: ptxas makes code then of which gradients with dropout take 1 % less.
        if !M::IS_NONE && is_one && tile.shown().next(self.config).is_none() {
            sync_warp();
            // Every lane the same, in one store of the warp.
            tile.write_nothing_passes();
            sync_warp();
        }
        mbarrier::arrive_if(is_writer, words.full_barrier());
        is_one
    }

    /// Number of the launch's last tile.
    #[inline(always)]
    fn last(&self) -> u32 {
        let tiles = S::tiles(&self.params.attention, self.config.block_m());
        match self.modifiers.units() {
            Some((_, units)) => units * tiles.m_blocks() - 1,
            None => tiles.last(),
        }
    }

    /// Number of the launch's first tile among those of the whole pass.
    #[inline(always)]
    fn first_tile(&self) -> u32 {
        let tiles = S::tiles(&self.params.attention, self.config.block_m());
        match self.modifiers.units() {
            Some((first, _)) => first * tiles.m_blocks(),
            None => 0,
        }
    }

    /// The number of a tile that no other block takes; one beyond the last if none is left.
    ///
    /// Blocks draw as often as there are tiles, once for each that they take, so that the count is 0 again in the end.
    ///
    /// # Safety
    /// As [`Self::tell`].
    #[inline(always)]
    pub unsafe fn draw(&self) -> u32 {
        let mut taken = 0;
        if lane_id() == 0 {
            taken = global::fetch_increment(self.params.tile_count, self.last());
        }
        grid_dim_x() + uniform(taken)
    }

    /// Waits until it is said what tile `number` is, and returns whether there is one. Not the tile, if there is one: the compiler
    /// would copy all parameters to local memory, as their address might be none.
    ///
    /// # Safety
    /// All lanes of a warp call it, for each tile in turn.
    #[inline(always)]
    pub unsafe fn wait(&self, number: u32) -> bool {
        self.barriers.tiles().at(number).consumer_wait();
        uniform(u32::from(self.at(number).has_rows())) != 0
    }

    /// A warp reads the words of tile `number` no more.
    ///
    /// # Safety
    /// As [`Self::wait`], after it.
    #[inline(always)]
    pub unsafe fn release(&self, number: u32, lane: u32) {
        // All lanes have read, of which one arrives.
        sync_warp();
        self.barriers.tiles().at(number).consumer_release(lane, 1);
    }
}
