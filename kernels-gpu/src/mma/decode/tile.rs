//! The rows and keys of an item.
//!
//! The loop over keys has no register to spare, and needs these numbers once a step or less: they are written once an item to
//! shared memory ([`super::work`]) and read where they are needed.

use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id};
use cuda_std::{global, shared};

use super::State;
use super::work::{Word, divide, drafts_of, info, put};
use crate::abi::{Band, CacheScales, DecodeParams};
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::ROW_STEP;
use crate::mma::Element;
use crate::score::{ScoreTransform, alibi};
use crate::tile::block_range::visible_keys;
use crate::tile::grid;
use crate::tile::kv_tree::Chunks;
use crate::tile::{black_box, black_box64};

/// Stands for the rows of all positions.
pub const ALL_POSITIONS: u32 = u32::MAX;

/// An item, with what follows from it. Row `r` of those of a head of K and V is query `r / group` of head `r % group` of its
/// group.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    params: &'a DecodeParams,
    /// Of an e4m3 cache.
    pub scales: &'a CacheScales,
    pub config: DecodeConfig,
}

impl<'a> Tile<'a> {
    /// The item that is described in shared memory.
    #[inline(always)]
    pub fn new(params: &'a DecodeParams, scales: &'a CacheScales, config: DecodeConfig) -> Self {
        Self {
            params,
            scales,
            config,
        }
    }

    /// Address of a slot of the ring.
    #[inline(always)]
    pub fn slot_address(&self, slot: u32) -> u32 {
        shared::dynamic_base() + slot * self.config.slot_bytes()
    }

    /// The parameters, such that what is computed from them is computed again the next time.
    #[inline(always)]
    pub fn params(&self) -> DecodeParams {
        reload(self.params)
    }

    /// A number of the item, read again each time.
    #[inline(always)]
    pub fn get(&self, word: Word) -> u32 {
        // SAFETY: it is written, and a barrier has shown it.
        unsafe { shared::load_bits(black_box(info(word as u32))) }
    }

    /// An address of the item, of two words.
    #[inline(always)]
    pub fn get_address(&self, word: Word) -> u64 {
        let low = black_box(info(word as u32));
        // SAFETY: as in `get`.
        unsafe { (shared::load_bits(low + 4) as u64) << 32 | shared::load_bits(low) as u64 }
    }

    /// The first of this warp's keys among those of a step.
    #[inline(always)]
    pub fn warp_key(&self) -> u32 {
        self.warp() * self.config.warp_keys()
    }

    /// Index of this warp.
    #[inline(always)]
    pub fn warp(&self) -> u32 {
        black_box(thread_idx_x()) / WARP_SIZE
    }

    /// Row `i` of this lane, in half `i` of the tile; one of the tile's, also where it has fewer.
    #[inline(always)]
    pub fn row(&self, i: usize) -> u32 {
        self.lane_row(i).min(self.get(Word::RowEnd) - 1)
    }

    #[inline(always)]
    fn lane_row(&self, i: usize) -> u32 {
        self.get(Word::RowBegin) + black_box(lane_id()) / 4 + i as u32 * ROW_STEP
    }

    /// Rows of the tile: the first, and one past the last.
    #[inline(always)]
    pub fn rows(&self) -> (u32, u32) {
        (self.get(Word::RowBegin), self.get(Word::RowEnd))
    }

    /// Whether there is a row `i` of this lane, and it belongs to a query at `position`.
    #[inline(always)]
    pub fn has_row(&self, i: usize, position: u32) -> bool {
        let row = self.lane_row(i);
        let is_there = row < self.get(Word::RowEnd);
        is_there && (position == ALL_POSITIONS || self.query(row) == position)
    }

    /// Query of a row.
    #[inline(always)]
    pub fn query(&self, row: u32) -> u32 {
        self.query_and_head(row).0
    }

    /// Query head of a row, and row of q and o that its query is.
    #[inline(always)]
    pub fn head_and_q_row(&self, row: u32) -> (u32, u32) {
        let (query, head) = self.query_and_head(row);
        (
            self.get(Word::HeadKv) * self.get(Word::Group) + head,
            self.get(Word::QBegin) + query,
        )
    }

    /// Query of a row, and its head among those that share a head of K and V.
    #[inline(always)]
    fn query_and_head(&self, row: u32) -> (u32, u32) {
        // SAFETY: heads_kv divides heads_q, and neither is 0 where there is an item.
        unsafe { divide(row, self.get(Word::Group)) }
    }

    /// Query head of a row.
    #[inline(always)]
    fn head(&self, row: u32) -> u32 {
        self.head_and_q_row(row).0
    }

    /// Queries of the tile: the first and the last. Asked for where values are not finite, once a position: by plain divisions.
    #[inline(always)]
    pub fn positions(&self) -> (u32, u32) {
        let (begin, end) = self.rows();
        let query = |row| grid::divide(row, self.get(Word::Group)).0;
        (query(begin), query(end - 1))
    }

    #[inline(always)]
    pub fn band(&self) -> Band {
        Band {
            lower: self.get(Word::Lower) as i32,
            upper: self.get(Word::Upper) as i32,
        }
    }

    /// Keys that the query at a position sees: the first and the last.
    #[inline(always)]
    pub fn visible(&self, position: u32) -> (i32, i32) {
        visible_keys(position as i32, self.band(), self.get(Word::KvLen))
    }

    /// Whether some row of the tile does not see all keys that some query of the sequence sees.
    #[inline(always)]
    pub fn some_see_less(&self) -> bool {
        let (first, last) = self.seen_by_all();
        let (begin, end) = self.seen();
        first > begin as i32 || last + 1 < end as i32
    }

    /// Keys that every row of the tile sees: the first and the last.
    #[inline(always)]
    pub fn seen_by_all(&self) -> (i32, i32) {
        let (first, last) = (self.get(Word::FullFirst), self.get(Word::FullLast));
        (first as i32, last as i32)
    }

    /// Takes keys of K and V for zeros that the queries at `position` do not see.
    ///
    /// # Safety
    /// The whole block calls it, and nobody copies.
    #[inline(always)]
    pub unsafe fn copy_for(&self, position: u32) {
        if thread_idx_x() == 0 {
            let (first, last) = self.visible(position);
            put(Word::CopyBegin, first as u32);
            // A query before all keys has its last one below 0.
            let end = (last + 1).min(self.get(Word::FirstDraft) as i32);
            put(Word::CopyEnd, end.max(0) as u32);
            put(Word::Position, position);
        }
        sync_threads();
    }

    /// Key of the first draft of a tree, if there is one.
    #[inline(always)]
    pub fn first_draft(&self) -> Option<i32> {
        let first = self.get(Word::FirstDraft) as i32;
        (first != i32::MAX).then_some(first)
    }

    /// Which drafts the query at a position of the tile sees, a bit for each, where there is a tree.
    #[inline(always)]
    pub fn drafts(&self, position: u32) -> u64 {
        let address = black_box(info(drafts_of(position)));
        // SAFETY: as in `get`.
        let [low, high] = unsafe { [shared::load_bits(address), shared::load_bits(address + 4)] };
        (high as u64) << 32 | low as u64
    }

    /// Which of 32 keys, from draft `first` on, the query at a position of the tile sees, a bit for each, where there is a tree. Those
    /// before the first draft, which is below 0 then, are seen; keys behind the last have no score, whatever their bits are.
    #[inline(always)]
    pub fn sees_drafts(&self, position: u32, first: i32) -> u32 {
        let drafts = self.drafts(position);
        if first >= 0 {
            return (drafts >> first.min(63)) as u32;
        }
        let before = first.unsigned_abs().min(32);
        (drafts << before) as u32 | ((1u64 << before) - 1) as u32
    }

    /// Keys that some query of the sequence sees: the first, and one past the last.
    #[inline(always)]
    fn seen(&self) -> (u32, u32) {
        (self.get(Word::SeenBegin), self.get(Word::SeenEnd))
    }

    /// The chunks that the sequence's queries see.
    #[inline(always)]
    pub fn chunks(&self) -> Chunks {
        Chunks::of_keys(self.seen(), self.config.tree())
    }

    /// The item's steps: the first, and one past the last.
    #[inline(always)]
    pub fn steps(&self) -> (u32, u32) {
        let of_node = self
            .chunks()
            .of_node(self.get(Word::Level), self.get(Word::Node));
        let (first, last) = self.seen();
        let begin = first.max(of_node.begin * self.config.chunk_keys());
        let end = last.min(of_node.end * self.config.chunk_keys());
        if begin >= end {
            return (0, 0);
        }
        let step_keys = self.config.step_keys();
        (begin / step_keys, end.div_ceil(step_keys))
    }

    /// Whether the item is all of its sequence.
    #[inline(always)]
    pub fn is_row(&self) -> bool {
        self.chunks().nodes(self.get(Word::Level)) == 1
    }

    /// Where partial results of the item's sequence, head and row tile are.
    #[inline(always)]
    pub fn slots(&self) -> Slots {
        Slots {
            chunks: self.chunks(),
            of_items: self.get(Word::Level),
            first: self.get(Word::FirstSlot),
            stride: self.get(Word::Stride),
        }
    }

    /// The partial result of the item itself.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slots()
            .of_node(self.get(Word::Level), self.get(Word::Node))
    }

    /// [`has_row`](Self::has_row) of each half.
    #[inline(always)]
    pub fn has_rows<const HALVES: usize>(&self, position: u32) -> [bool; HALVES] {
        let mut has_rows = [false; HALVES];
        for i in 0..HALVES {
            has_rows[i] = self.has_row(i, position);
        }
        has_rows
    }

    /// How scores of the rows are transformed, apart from their slopes.
    #[inline(always)]
    pub fn transform<E: Element>(&self) -> ScoreTransform {
        ScoreTransform::of_rows(&self.params().forward.attention.score, E::SHIFT)
    }

    /// The slope of row `i` of this lane; 0 without slopes.
    ///
    /// # Safety
    /// The launch's arrays are live.
    #[inline(always)]
    pub unsafe fn slope(&self, i: usize) -> f32 {
        let score = self.params().forward.attention.score;
        if score.alibi_slopes.is_none() {
            return 0.0;
        }
        alibi::slope(&score, self.get(Word::Batch), self.head(self.row(i)))
    }

    /// The sink of a row in nats, if there are sinks.
    ///
    /// # Safety
    /// As [`slope`](Self::slope).
    #[inline(always)]
    pub unsafe fn sink(&self, row: u32) -> Option<f32> {
        let sinks = self.params().sinks?;
        let address = sinks.get() + self.head(row) as u64 * size_of::<f32>() as u64;
        Some(f32::from_bits(global::load_u32(address)))
    }

    /// Whether an element of one of the tile's rows has left f32's range, or is NaN.
    #[inline(always)]
    pub fn has_overflowed<const HALVES: usize, const O_COLS: usize>(
        &self,
        state: &State<HALVES, O_COLS>,
    ) -> bool {
        let mut overflowed = false;
        for i in 0..HALVES {
            let mut zero = 0.0;
            for col in 0..O_COLS {
                zero = crate::math::fma(state.acc_o[i][col], 0.0, zero);
            }
            overflowed |= zero != 0.0 && self.has_row(i, ALL_POSITIONS);
        }
        overflowed
    }
}

/// Where partial results of a sequence's nodes are, for one head and row tile.
#[derive(Clone, Copy)]
pub struct Slots {
    pub chunks: Chunks,
    /// Level of the items.
    pub of_items: u32,
    /// Of the sequence's first item, and from one item to the next.
    first: u32,
    stride: u32,
}

impl Slots {
    /// The partial result of a node of `level`: that of its first item.
    #[inline(always)]
    pub fn of_node(&self, level: u32, node: u32) -> u32 {
        let item = self.chunks.of_node(level, node).first(self.of_items);
        self.first + (item - self.chunks.first(self.of_items)) * self.stride
    }
}

/// See [`Tile::params`].
#[inline(always)]
pub fn reload(params: &DecodeParams) -> DecodeParams {
    const WORDS: usize = size_of::<DecodeParams>() / size_of::<u64>();
    let mut words: [u64; WORDS] = bytemuck::cast(*params);
    for word in &mut words {
        *word = black_box64(*word);
    }
    bytemuck::cast(words)
}
