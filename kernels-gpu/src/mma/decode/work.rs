//! Which item of work a block takes. All blocks work it out alike from the lengths, which the host does not know.

use cuda_std::thread::{grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{lane_id, shuffle, uniform, warp_id};
use cuda_std::{global, shared};

use crate::abi::{AttentionParams, Band, DecodeParams};
use crate::config::decode::{DecodeConfig, DecodeWorkspace};
use crate::tile::kv_tree::{Chunks, item_level, seen_keys};
use crate::units::F32_BYTES;

/// Words of shared memory: sums of nodes by level; of warps; of the item; the next item's number.
const NODES: u32 = 0;
const WARP_SUMS: u32 = 4;
const ITEM: u32 = 12;
const NEXT: u32 = 16;
/// Whether a block was the last of a node's children ([`super::climb`]).
pub const IS_LAST: u32 = 17;

/// More nodes of one thread's sequences do not change what items are.
const MANY: u32 = 1 << 20;

/// Address of a word of the item's info.
#[inline(always)]
pub fn info(word: u32) -> u32 {
    shared::dynamic_base() + DecodeConfig::INFO_OFFSET + word * F32_BYTES
}

/// The keys of a sequence.
#[derive(Clone, Copy)]
pub struct SequenceKeys {
    /// 0 where the length is bad.
    pub kv_len: u32,
    pub is_bad: bool,
    pub band: Band,
    /// Keys that some query sees: the first, and one past the last.
    pub seen: (u32, u32),
}

impl SequenceKeys {
    /// Those of a sequence whose length is read as `length`.
    #[inline(always)]
    fn of_length(attention: &AttentionParams, length: u32) -> Self {
        // A negative one is large.
        let is_bad = length > attention.seq_kv;
        let kv_len = if is_bad { 0 } else { length };
        let band = attention.mask.of_sequence(attention.seq_q, kv_len);
        Self {
            kv_len,
            is_bad,
            band,
            seen: seen_keys(attention.seq_q, kv_len, band),
        }
    }
}

/// An item: a node of a sequence's keys for a tile of rows of a head.
#[derive(Clone, Copy)]
pub struct Item {
    pub batch: u32,
    pub keys: SequenceKeys,
    pub chunks: Chunks,
    pub level: u32,
    pub node: u32,
    pub head_kv: u32,
    pub row_tile: u32,
    /// Number of the sequence's first item for the same head and row tile, and from one node's to the next one's.
    first_slot: u32,
    stride: u32,
}

impl Item {
    /// The partial result of a node of `level`: that of its first item.
    #[inline(always)]
    pub fn slot_of(&self, level: u32, node: u32) -> u32 {
        let first = self.chunks.of_node(level, node).first(self.level);
        self.first_slot + (first - self.chunks.first(self.level)) * self.stride
    }

    /// The partial result of the item itself.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slot_of(self.level, self.node)
    }
}

/// A block's way through the items, which are numbered sequence by sequence, heads and row tiles innermost.
pub struct Work<'a> {
    params: &'a DecodeParams,
    chunk_keys: u32,
    level: u32,
    /// Number of items.
    pub items: u32,
    /// The sequences that threads look at: the first; nodes of sequences before, and of these.
    base: u32,
    before: u32,
    within: u32,
    /// Nodes of sequences before this thread's, and its own.
    begin: u32,
    count: u32,
}

impl<'a> Work<'a> {
    /// # Safety
    /// As [`decode`](super::decode); the whole block calls it.
    #[inline(always)]
    pub unsafe fn new(params: &'a DecodeParams, config: DecodeConfig) -> Self {
        let mut work = Self {
            params,
            chunk_keys: config.chunk_keys(),
            level: 0,
            items: 0,
            base: 0,
            before: 0,
            within: 0,
            begin: 0,
            count: 0,
        };
        let mut nodes = [0; 3];
        let mut batch = thread_idx_x();
        while batch < params.forward.attention.batch {
            let (_, chunks) = work.keys(work.length(batch));
            for level in 0..3 {
                nodes[level] += chunks.nodes(level as u32);
            }
            // Of supers there are as few as the host has seen.
            nodes[0] = nodes[0].min(MANY);
            nodes[1] = nodes[1].min(MANY);
            batch += DecodeConfig::THREADS;
        }
        let nodes = block_sums(nodes);
        let stride = work.stride();
        let of_all = [0, 1, 2].map(|level| nodes[level] as u64 * stride as u64);
        work.level = uniform(item_level(of_all, grid_dim_x() as u64));
        let of_level = match work.level {
            0 => nodes[0],
            1 => nodes[1],
            _ => nodes[2],
        };
        work.items = uniform(of_level * stride);
        work.look_at(0);
        work
    }

    /// Items of a node.
    #[inline(always)]
    fn stride(&self) -> u32 {
        self.params.forward.attention.heads_kv * self.params.row_tiles
    }

    /// The length of a sequence, as it is given.
    ///
    /// # Safety
    /// `batch` is below the launch's.
    #[inline(always)]
    unsafe fn length(&self, batch: u32) -> u32 {
        global::load_u32(self.params.kv_lens + batch as u64 * F32_BYTES as u64)
    }

    #[inline(always)]
    fn keys(&self, length: u32) -> (SequenceKeys, Chunks) {
        let keys = SequenceKeys::of_length(&self.params.forward.attention, length);
        (keys, Chunks::of_keys(keys.seen, self.chunk_keys))
    }

    /// Looks at the sequences from `base` on.
    ///
    /// # Safety
    /// The whole block calls it.
    #[inline(always)]
    unsafe fn look_at(&mut self, base: u32) {
        self.base = base;
        let batch = base + thread_idx_x();
        self.count = 0;
        if batch < self.params.forward.attention.batch {
            let (_, chunks) = self.keys(self.length(batch));
            self.count = chunks.nodes(self.level);
        }
        let (before, all) = block_scan(self.count);
        self.begin = self.before + before;
        self.within = all;
    }

    /// Item number `index`, which is below `items` and above those asked for before.
    ///
    /// # Safety
    /// The whole block calls it.
    #[inline(always)]
    pub unsafe fn find(&mut self, index: u32) -> Item {
        let stride = self.stride();
        // SAFETY: where there are items there are heads and rows.
        core::hint::assert_unchecked(stride != 0);
        let (unit, rest) = (index / stride, index % stride);
        while unit >= uniform(self.before + self.within) {
            self.before += self.within;
            self.look_at(self.base + DecodeConfig::THREADS);
        }
        if unit >= self.begin && unit - self.begin < self.count {
            let batch = self.base + thread_idx_x();
            shared::store4_bits(info(ITEM), [batch, self.begin, 0, 0]);
        }
        sync_threads();
        let [batch, begin, ..] = shared::load4_bits(info(ITEM));
        let (batch, begin) = (uniform(batch), uniform(begin));
        let (keys, chunks) = self.keys(uniform(self.length(batch)));
        let row_tiles = self.params.row_tiles;
        core::hint::assert_unchecked(row_tiles != 0);
        Item {
            batch,
            keys,
            chunks,
            level: self.level,
            node: chunks.first(self.level) + (unit - begin),
            head_kv: rest / row_tiles,
            row_tile: rest % row_tiles,
            first_slot: begin * stride + rest,
            stride,
        }
    }

    /// Draws the number of a further item, on one thread; [`next`](Self::next) shows it to the others.
    ///
    /// # Safety
    /// One thread block draws once an item: the counter is then 0 again after the launch.
    #[inline(always)]
    pub unsafe fn draw(&self) -> u32 {
        if thread_idx_x() == 0 {
            global::fetch_increment(self.params.workspace, self.items - 1)
        } else {
            0
        }
    }

    /// The item that `ticket` stands for: behind those that blocks begin with.
    ///
    /// # Safety
    /// The whole block calls it.
    #[inline(always)]
    pub unsafe fn next(&self, ticket: u32) -> u32 {
        if thread_idx_x() == 0 {
            shared::store_bits(info(NEXT), ticket);
        }
        sync_threads();
        uniform(shared::load_bits(info(NEXT))) + grid_dim_x()
    }
}

/// The workspace of the launch.
#[inline(always)]
pub fn workspace(params: &DecodeParams) -> DecodeWorkspace {
    DecodeWorkspace {
        slots: params.slots,
    }
}

/// Sums over all threads.
///
/// # Safety
/// The whole block calls it.
#[inline(always)]
unsafe fn block_sums(mut values: [u32; 3]) -> [u32; 3] {
    if thread_idx_x() < 3 {
        shared::store_bits(info(NODES + thread_idx_x()), 0);
    }
    sync_threads();
    for index in 0..3 {
        for step in 0..5 {
            values[index] += shuffle(values[index], lane_id() ^ 1 << step);
        }
        if lane_id() == 0 {
            shared::fetch_add(info(NODES + index as u32), values[index]);
        }
    }
    sync_threads();
    [0, 1, 2].map(|index| shared::load_bits(info(NODES + index)))
}

/// The sum of `value` over the threads before this one, and over all.
///
/// # Safety
/// The whole block calls it.
#[inline(always)]
unsafe fn block_scan(value: u32) -> (u32, u32) {
    let lane = lane_id();
    let mut sum = value;
    for step in 0..5 {
        let by = 1 << step;
        let other = shuffle(sum, lane.wrapping_sub(by) % 32);
        sum += if lane >= by { other } else { 0 };
    }
    // Nobody reads the sums of the last call any more.
    sync_threads();
    if lane == 31 {
        shared::store_bits(info(WARP_SUMS + warp_id()), sum);
    }
    sync_threads();
    let (mut before, mut all) = (0, 0);
    for warp in 0..DecodeConfig::WARPS {
        let of_warp = shared::load_bits(info(WARP_SUMS + warp));
        before += if warp < warp_id() { of_warp } else { 0 };
        all += of_warp;
    }
    (before + sum - value, all)
}
