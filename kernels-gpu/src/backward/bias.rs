//! The gradient by a bias: who writes which of its elements.
//!
//! A block owns the elements of a tile of queries and a block of keys, or of all queries and a block of keys where queries share them.
//! It takes the pairs of every batch entry and head that these are summed over, one tile of queries after the other, adds up what they give
//! in registers, in one order, and writes each element once.

use core::ops::Range;

use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{global, shared};

use crate::abi::{AttentionParams, Band, BiasGradientParams};
use crate::modifiers::{Modifiers, Pair, Place, pair_address};
use crate::tile::bias_owners::{owners, query_tiles};
use crate::tile::black_box;
use crate::tile::grid::{BlockCoord, divide};
use crate::units::F32_BYTES;

/// What a block owns.
#[derive(Clone, Copy)]
pub struct Owned<'a> {
    params: &'a BiasGradientParams,
    attention: &'a AttentionParams,
    /// A batch entry and a head of the gradient.
    coord: BlockCoord,
    /// The tile of queries, if not all.
    tile: u32,
    tile_queries: u32,
    /// The block of keys, and the first of its keys.
    pub block: u32,
    first_key: u32,
}

impl<'a> Owned<'a> {
    /// What block `index` of a launch owns, of [`owners`] for the same kernel.
    #[inline(always)]
    pub fn new(
        params: &'a BiasGradientParams,
        attention: &'a AttentionParams,
        [tile_queries, block_keys]: [u32; 2],
        index: u32,
    ) -> Self {
        let coord = owners(params, attention, [tile_queries, block_keys]).get(index);
        let tiles = query_tiles(params, attention, tile_queries);
        let (block, tile) = divide(coord.m_block, tiles);
        Self {
            params,
            attention,
            coord,
            tile,
            tile_queries,
            block,
            first_key: block * block_keys,
        }
    }

    /// The batch entries that it takes.
    #[inline(always)]
    pub fn batches(&self) -> Range<u32> {
        of_axis(self.params.batch, self.attention.batch, self.coord.batch)
    }

    /// The query heads.
    #[inline(always)]
    pub fn heads(&self) -> Range<u32> {
        of_axis(self.params.heads, self.attention.heads_q, self.coord.head)
    }

    /// The tiles of queries.
    #[inline(always)]
    pub fn tiles(&self) -> Range<u32> {
        let all = self.attention.seq_q.div_ceil(self.tile_queries);
        of_axis(self.params.queries, all, self.tile)
    }

    /// The biases of its elements, in nats, as they stand in a thread's part of a tile of scores; `pair` tells which pair of the tile and the
    /// block each is of. Those of queries and keys that do not exist are anything.
    ///
    /// # Safety
    /// The bias is live.
    #[inline(always)]
    pub unsafe fn biases<const COLS: usize, const ROWS: usize>(
        &self,
        modifiers: &impl Modifiers,
        pair: impl Fn(usize, usize) -> Pair,
    ) -> [[f32; COLS]; ROWS] {
        let mut biases = [[0.0; COLS]; ROWS];
        if self.attention.seq_q != 0 {
            // SAFETY: there are queries, and keys, of which a block is owned.
            unsafe {
                modifiers.change(|| self.place(), &mut biases, |i, j| self.of_all(pair(i, j)))
            };
        }
        biases
    }

    /// Pair `pair` of the tile and the block, counted from the first of a sequence.
    #[inline(always)]
    fn of_all(&self, pair: Pair) -> Pair {
        Pair {
            query: self.tile * self.tile_queries + pair.query,
            key: self.first_key + pair.key,
        }
    }

    /// Where the elements are: of the longest sequence.
    #[inline(always)]
    fn place(&self) -> Place {
        let AttentionParams {
            heads_q,
            seq_q,
            seq_kv,
            ..
        } = *self.attention;
        Place {
            batch: self.coord.batch,
            head: self.coord.head,
            heads: heads_q,
            q_begin: 0,
            kv_begin: 0,
            seq_q,
            seq_kv,
            band: Band::FULL,
        }
    }

    /// Address of an element.
    #[inline(always)]
    fn address(&self, pair: Pair) -> u64 {
        pair_address(&self.params.d_bias, &self.place(), pair, F32_BYTES)
    }

    /// Whether queries have elements of their own.
    #[inline(always)]
    pub fn has_queries(&self) -> bool {
        self.params.queries != 1
    }

    /// Writes a thread's elements; `pair` tells which pair of the tile and the block each is of.
    ///
    /// # Safety
    /// The gradient is live, and nobody else writes these elements. Queries have elements of their own.
    #[inline(always)]
    pub unsafe fn store<const COLS: usize, const ROWS: usize>(
        &self,
        sums: &[[f32; COLS]; ROWS],
        pair: impl Fn(usize, usize) -> Pair,
    ) {
        for i in 0..ROWS {
            for j in 0..COLS {
                let of_all = self.of_all(pair(i, j));
                if of_all.query < self.params.queries && of_all.key < self.attention.seq_kv {
                    // SAFETY: the element exists, and is the thread's.
                    unsafe { global::store(self.address(of_all), sums[i][j]) };
                }
            }
        }
    }

    /// Writes elements that queries share, each the sum of `PARTS` numbers, which lie in shared memory from `smem` on: those of the
    /// block's `KEYS` keys for the first part, and so on.
    ///
    /// # Safety
    /// As [`store`](Self::store), but for queries; the whole block, of no fewer threads than keys, reaches the same call, and all have
    /// written their parts.
    #[inline(always)]
    pub unsafe fn store_of_keys<const PARTS: u32, const KEYS: u32>(&self, smem: u32) {
        let key = black_box(thread_idx_x());
        let of_all = self.of_all(Pair { query: 0, key });
        // SAFETY: the element exists, and is the thread's; the words are the block's.
        unsafe {
            sync_threads();
            if key < KEYS && of_all.key < self.attention.seq_kv {
                let mut sum = 0.0;
                for part in 0..PARTS {
                    sum += shared::load(smem + (part * KEYS + key) * F32_BYTES);
                }
                global::store(self.address(of_all), sum);
            }
        }
    }
}

/// What a block takes of an axis of `extent`, of which the gradient has `size` elements, 1 or all.
#[inline(always)]
fn of_axis(size: u32, extent: u32, index: u32) -> Range<u32> {
    if size == 1 {
        0..extent
    } else {
        index..index + 1
    }
}
