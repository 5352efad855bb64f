//! Which rows a tile keeps, and which blocks pass.

use core::marker::PhantomData;

use cuda_std::shared;

use crate::abi::{BackwardParams, Band};
use crate::backward::side::{Extent, Side};
use crate::config::wgmma_backward::WgmmaBackwardConfig;
use crate::modifiers::{Modifiers, NoModifiers, Place};
use crate::tile::black_box;
use crate::tile::block_range::BlockRange;
use crate::tile::sequence::Sequence;

/// A tile. What is known of it lies in shared memory, and is read where it is needed: registers are scarce.
///
/// ```text
/// word  0  first kept row     head           rows written   batch
///       4  batch of strides   first query    first key      diagonal
///       8  kept rows          passing rows   band.lower     band.upper
///      12  first block        end            first head     end          of those that pass
/// ```
#[derive(Clone, Copy)]
pub struct Tile<'a, S, M = NoModifiers> {
    pub params: &'a BackwardParams,
    /// What else the launch does to single pairs.
    pub modifiers: &'a M,
    /// Address of the words.
    smem: u32,
    side: PhantomData<S>,
}

/// Bytes of a row of words.
const ROW_BYTES: u32 = 16;

impl<'a, S: Side, M: Modifiers> Tile<'a, S, M> {
    /// The tile whose words lie at `smem`.
    #[inline(always)]
    pub fn at(params: &'a BackwardParams, modifiers: &'a M, smem: u32) -> Self {
        Self {
            params,
            modifiers,
            smem,
            side: PhantomData,
        }
    }

    /// Writes the words of tile number `index` of the launch, which is below its count.
    ///
    /// # Safety
    /// `params` describes live allocations; one thread of the block calls it, and a barrier follows.
    #[inline(always)]
    pub unsafe fn write(&self, index: u32, config: &WgmmaBackwardConfig) {
        let attention = &self.params.attention;
        let block_m = config.block_m();
        let coord = S::coord(S::tiles(attention, block_m).get(index), attention, block_m);
        let sequence = Sequence::new(attention, coord.batch);
        let extent = S::extent(&sequence);
        let written = S::rows_written(attention, coord.batch);
        let place = [coord.m_block * block_m, coord.head, written, coord.batch];
        let diagonal = extent.diagonal as u32;
        let rows = [
            sequence.batch,
            sequence.q_begin,
            sequence.kv_begin,
            diagonal,
        ];
        let Band { lower, upper } = extent.band;
        let seen = [extent.kept, extent.passing, lower as u32, upper as u32];
        shared::store4_bits(self.smem, place);
        shared::store4_bits(self.smem + ROW_BYTES, rows);
        shared::store4_bits(self.smem + 2 * ROW_BYTES, seen);
        let mut blocks = if S::HAS_SECOND {
            self.blocks(0, block_m, config.block_n)
        } else {
            // Nobody asks for those of a tile without queries.
            let end = (place[0] + block_m).min(extent.kept);
            BlockRange::new(place[0], end, extent.band, extent.passing, config.block_n)
        };
        if self.modifiers.hides() && place[0] < extent.kept {
            // Any block may be shown: the states tell.
            blocks = BlockRange::all(extent.passing, config.block_n);
        }
        let (head, end) = S::passing_heads(attention, coord.head);
        let passing = [blocks.begin, blocks.end, head, end];
        shared::store4_bits(self.smem + 3 * ROW_BYTES, passing);
    }

    /// Writes that there is no tile.
    ///
    /// # Safety
    /// As [`Tile::write`].
    #[inline(always)]
    pub unsafe fn write_end(&self) {
        shared::store4_bits(self.smem, [0; 4]);
    }

    /// Writes that no block passes.
    ///
    /// # Safety
    /// As [`Tile::write`], after it and by lanes of the same warp.
    #[inline(always)]
    pub unsafe fn write_nothing_passes(&self) {
        shared::store4_bits(self.smem + 3 * ROW_BYTES, [0; 4]);
    }

    /// Lets no more than some of the blocks and of the heads pass that [`write`](Self::write) found.
    ///
    /// # Safety
    /// As [`Tile::write`], after it and by the same thread.
    #[inline(always)]
    pub unsafe fn restrict(&self, blocks: (u32, u32), heads: (u32, u32)) {
        let [begin, end, head, _] = self.row(3);
        let (begin, end) = (begin.max(blocks.0), end.min(blocks.1));
        let passing = [begin, end, head + heads.0, head + heads.1];
        shared::store4_bits(self.smem + 3 * ROW_BYTES, passing);
    }

    #[inline(always)]
    unsafe fn row(&self, row: u32) -> [u32; 4] {
        shared::load4_bits(black_box(self.smem) + row * ROW_BYTES)
    }

    /// First kept row.
    ///
    /// # Safety
    /// The words are written and visible.
    #[inline(always)]
    pub unsafe fn begin(&self) -> u32 {
        self.row(0)[0]
    }

    /// The head that is kept.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn head(&self) -> u32 {
        self.row(0)[1]
    }

    /// Kept rows of the sequence whose gradients are written: those that it leaves unused (`seqused_kv`) get zeros.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn rows_written(&self) -> u32 {
        self.row(0)[2]
    }

    /// Whether any gradients of the tile's rows are written.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn has_rows(&self) -> bool {
        let [begin, _, written, _] = self.row(0);
        begin < written
    }

    /// The batch entry, of those that have lengths of their own.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn batch(&self) -> u32 {
        self.row(0)[3]
    }

    /// Where the batch entry's rows begin; how many it has, and its band, are the [`extent`](Self::extent)'s.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn sequence(&self) -> Sequence {
        let [batch, q_begin, kv_begin, _] = self.row(1);
        Sequence {
            batch,
            q_begin,
            kv_begin,
            seq_q: 0,
            seq_kv: 0,
            band: Band::FULL,
        }
    }

    /// Rows of both sides.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn extent(&self) -> Extent {
        let [kept, passing, lower, upper] = self.row(2);
        Extent {
            kept,
            passing,
            band: Band {
                lower: lower as i32,
                upper: upper as i32,
            },
            diagonal: self.row(1)[3] as i32,
        }
    }

    /// The query head of the sequence that takes part in a step in which head `passing_head` passes.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn place(&self, passing_head: u32) -> Place {
        let head = self.query_head(passing_head);
        let heads = self.params.attention.heads_q;
        let (extent, sequence) = (self.extent(), self.sequence());
        extent.place::<S>(&sequence, self.batch(), head, heads)
    }

    /// The passing blocks that some of the tile's first `rows` rows sees, which there are.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn blocks_of_rows(&self, rows: u32, block_n: u32) -> BlockRange {
        let (extent, begin) = (self.extent(), self.begin());
        BlockRange::new(begin, begin + rows, extent.band, extent.passing, block_n)
    }

    /// The passing blocks that some of `rows` kept rows from row `begin` of the tile on sees.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn blocks(&self, begin: u32, rows: u32, block_n: u32) -> BlockRange {
        let extent = self.extent();
        let begin = self.begin() + begin;
        let end = (begin + rows).min(extent.kept);
        let (band, passing) = (extent.band, extent.passing);
        let range = BlockRange::new(begin, end.max(begin + 1), band, passing, block_n);
        if begin < end {
            range
        } else {
            BlockRange::EMPTY
        }
    }

    /// First passing block and end, first passing head and end.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn passing(&self) -> [u32; 4] {
        self.row(3)
    }

    /// Whether any block passes, or may: modifiers may hide them all.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn has_steps(&self) -> bool {
        let [begin, end, ..] = self.row(3);
        begin < end
    }

    /// Calls `step` with the head and the number of every passing block of the tile, in the order of consumers.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn each_step(&self, config: &WgmmaBackwardConfig, step: impl FnMut(u32, u32)) {
        if self.has_steps() {
            self.each_present_step(config, step);
        }
    }

    /// As [`each_step`](Self::each_step), of a tile that has steps.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn each_present_step(
        &self,
        config: &WgmmaBackwardConfig,
        mut step: impl FnMut(u32, u32),
    ) {
        let [mut block, _, mut head, _] = self.row(3);
        loop {
            step(head, block);
            block += 1;
            // Read for every block rather than kept.
            let [begin, end, _, head_end] = self.row(3);
            if block == end {
                block = begin;
                head += 1;
                if head == head_end {
                    break;
                }
            }
        }
    }

    /// The query head of a step in which head `passing_head` passes.
    ///
    /// # Safety
    /// As [`Tile::begin`].
    #[inline(always)]
    pub unsafe fn query_head(&self, passing_head: u32) -> u32 {
        if S::HAS_SECOND {
            passing_head
        } else {
            self.head()
        }
    }
}
