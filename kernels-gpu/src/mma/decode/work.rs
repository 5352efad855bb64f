//! Which item of work a block takes. All blocks work it out alike from the lengths, which the host does not know.

use cuda_std::thread::{grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, any, lane_id, reduce_add, shuffle, sync_warp, uniform, warp_id};
use cuda_std::{global, shared};

use super::loader::CopyMode;
use super::merge::maximum;
use super::tile::{ALL_POSITIONS, reload};
use crate::abi::{AttentionParams, DecodeParams, LengthsParams, SequenceRows, TensorArg};
use crate::config::decode::{DecodeConfig, DecodeWorkspace};
use crate::score::ScoreTransform;
use crate::tile::black_box;
use crate::tile::block_range::visible_keys;
use crate::tile::cached_keys::CachedKeys;
use crate::tile::kv_tree::Chunks;
use crate::tile::rows::q_rows;
use crate::units::F32_BYTES;

/// The words of shared memory that a block's threads exchange.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Word {
    /// The item's sequence, and items of sequences before it.
    Batch = 0,
    Before,
    /// The number of the next item.
    Next,
    /// Whether a block was the last of a node's children.
    IsLast,
    /// The item: see [`Tile`](super::tile::Tile).
    KvLen,
    IsBad,
    Lower,
    Upper,
    SeenBegin,
    SeenEnd,
    Level,
    Node,
    /// Queries of the sequence: how many, and the first's row of q and o where they are packed.
    SeqQ,
    QBegin,
    HeadKv,
    RowBegin,
    RowEnd,
    Group,
    /// Number of the sequence's first item for the same head and row tile, and from one node's to the next one's.
    FirstSlot,
    Stride,
    /// Keys that every row of the tile sees: the first and the last.
    FullFirst,
    FullLast,
    /// Addresses of the head's first key of page 0, of K and of V: two words each.
    KBase,
    KBaseHigh,
    VBase,
    VBaseHigh,
    /// How they are copied: a [`CopyMode`](super::loader::CopyMode) each.
    KMode,
    VMode,
    /// Keys of K and V that are copied, others but single drafts are taken for zeros: the first, and one past the last.
    CopyBegin,
    CopyEnd,
    /// How scores are transformed: whether they are not before they are scaled, and the scale, in bits.
    IsPlain,
    ScaleLog2,
    /// Key of the first draft of a tree, i32; its largest number where there is no tree.
    FirstDraft,
    /// The position whose rows are computed, or that of all.
    Position,
    /// Whether a page of the item was bad.
    IsPoisoned,
    /// Level of all items, and their number.
    ItemLevel,
    Items,
    /// Two words for each position of the tile: which drafts of a tree it sees, a bit for each.
    Drafts,
}

/// The first of a position's words from [`Word::Drafts`] on: those of a tile follow each other, and are as many at most.
#[inline(always)]
pub fn drafts_of(position: u32) -> u32 {
    Word::Drafts as u32 + position % DecodeConfig::MOST_ROWS * 2
}

const _: () =
    assert!(Word::Drafts as u32 + 2 * DecodeConfig::MOST_ROWS <= DecodeConfig::INFO_WORDS);

/// More items of one thread's sequences do not change of which level they are.
const MANY: u32 = 1 << 20;

/// Address of a word of the item's info.
#[inline(always)]
pub fn info(word: u32) -> u32 {
    shared::dynamic_base() + DecodeConfig::INFO_OFFSET + word * F32_BYTES
}

/// Quotient and remainder. The quotient is mostly 0, which a division takes a hundred cycles to find.
///
/// # Safety
/// `by` is not 0.
#[inline(always)]
pub unsafe fn divide(value: u32, by: u32) -> (u32, u32) {
    if value < by {
        return (0, value);
    }
    core::hint::assert_unchecked(by != 0);
    (value / by, value % by)
}

/// Address of the first key of page 0 of a head.
#[inline(always)]
fn head_address(operand: &TensorArg, head_kv: u32, kv_bytes: u32) -> u64 {
    let offset = head_kv as i64 * operand.head_stride * kv_bytes as i64;
    operand.address.wrapping_add_signed(offset)
}

/// Writes the word and the one behind it.
///
/// # Safety
/// As [`put`].
#[inline(always)]
unsafe fn put_address(word: Word, address: u64) {
    put(word, address as u32);
    shared::store_bits(info(word as u32 + 1), (address >> 32) as u32);
}

/// # Safety
/// The word is written and visible.
#[inline(always)]
unsafe fn get(word: Word) -> u32 {
    // The base is hidden: the address would else be that of a store which one thread makes, computed on both ways around it, and
    // what is loaded would not be known to be the same for the whole block.
    let base = black_box(shared::dynamic_base());
    shared::load_bits(base + DecodeConfig::INFO_OFFSET + word as u32 * F32_BYTES)
}

/// # Safety
/// Nobody else accesses the word before a barrier.
#[inline(always)]
pub unsafe fn put(word: Word, value: u32) {
    shared::store_bits(black_box(info(word as u32)), value);
}

/// The keys of a sequence whose rows of k and v may be used in part, by the launch's lengths.
///
/// # Safety
/// They are live, and `batch` is below the launch's.
#[inline(always)]
unsafe fn used_keys(attention: &AttentionParams, batch: u32) -> u32 {
    let not_packed = LengthsParams {
        total_q: 0,
        ..attention.lengths
    };
    let attention = AttentionParams {
        lengths: not_packed,
        ..*attention
    };
    let load = |address| global::load_u32(address) as i32;
    SequenceRows::read(&attention, batch, load).seq_kv
}

/// A sequence of the launch.
#[derive(Clone, Copy)]
struct Sequence {
    /// Its first row of q and o, where they are packed.
    q_begin: u32,
    seq_q: u32,
    keys: CachedKeys,
    chunks: Chunks,
    /// Tiles of a kernel's rows that the queries of one head of k and v take.
    row_tiles: u32,
    heads_kv: u32,
}

impl Sequence {
    /// Items of a node: heads, and tiles of rows.
    #[inline(always)]
    fn items_of_node(&self) -> u32 {
        self.heads_kv * self.row_tiles
    }

    /// Items, if they are nodes of `level`; none without queries.
    #[inline(always)]
    fn items(&self, level: u32) -> u32 {
        self.chunks.nodes(level) * self.items_of_node()
    }
}

/// A block's way through the items, which are numbered sequence by sequence, heads and row tiles innermost.
pub struct Work<'a> {
    params: &'a DecodeParams,
    config: DecodeConfig,
}

impl<'a> Work<'a> {
    /// # Safety
    /// As [`decode`](super::decode); the whole block calls it.
    #[inline(always)]
    pub unsafe fn new(params: &'a DecodeParams, config: DecodeConfig) -> Self {
        let work = Self { params, config };
        let sequences = params.forward.attention.batch;
        // Not by the warp that reads the first lengths.
        if thread_idx_x() == DecodeConfig::THREADS - 1 {
            work.describe_launch();
        }
        let mut items = [0; 3];
        let mut batch = thread_idx_x();
        while batch < sequences {
            let sequence = work.sequence(batch);
            for level in 0..3 {
                items[level] += sequence.items(level as u32);
            }
            // Of supers there are as few as the host has seen.
            items[0] = items[0].min(MANY);
            items[1] = items[1].min(MANY);
            batch += DecodeConfig::THREADS;
        }
        for level in 0..3 {
            items[level] = reduce_add(items[level]);
        }
        if any(sequences > WARP_SIZE) {
            items = sums_of_warps(items);
        }
        // The first warp has seen them all.
        if thread_idx_x() == 0 {
            let level = params.fewest_items.level(items);
            let of_level = match level {
                0 => items[0],
                1 => items[1],
                _ => items[2],
            };
            put(Word::ItemLevel, level);
            put(Word::Items, of_level);
            put(Word::Batch, 0);
            put(Word::Before, 0);
        }
        work
    }

    /// The number of items.
    ///
    /// # Safety
    /// All 32 lanes reach the same call, after an item is found.
    #[inline(always)]
    pub unsafe fn items(&self) -> u32 {
        uniform(get(Word::Items))
    }

    /// A sequence.
    ///
    /// # Safety
    /// `batch` is below the launch's.
    #[inline(always)]
    unsafe fn sequence(&self, batch: u32) -> Sequence {
        let params = reload(self.params);
        let attention = &params.forward.attention;
        let length = match params.kv_lens {
            Some(lens) => global::load_u32(lens.get() + batch as u64 * F32_BYTES as u64),
            None => used_keys(attention, batch),
        };
        let load = |address| global::load_u32(address) as i32;
        let (q_begin, mut seq_q) = q_rows(attention, batch, load);
        if seq_q > params.most_queries {
            seq_q = 0;
        }
        let keys = CachedKeys::of_length(attention, seq_q, length);
        Sequence {
            q_begin,
            seq_q,
            chunks: Chunks::of_keys(keys.seen, self.config.tree()),
            keys,
            row_tiles: (seq_q * params.group).div_ceil(self.config.rows),
            heads_kv: attention.heads_kv,
        }
    }

    /// Describes item number `index`, which is above those asked for before, in shared memory, if there is one.
    ///
    /// # Safety
    /// The whole block calls it, and nobody reads the words of the item before.
    #[inline(always)]
    pub unsafe fn find(&self, index: u32) {
        if uniform(warp_id()) == 0 {
            // What one thread has written before the first item.
            sync_warp();
            if index < self.items() {
                self.search(index);
                self.tell_drafts();
            }
        }
        sync_threads();
    }

    /// Goes from the sequence of the item before to that of item number `index`, 32 sequences at a time.
    ///
    /// # Safety
    /// As [`find`](Self::find); one warp calls it.
    #[inline(always)]
    unsafe fn search(&self, index: u32) {
        let lane = black_box(lane_id());
        let level = get(Word::ItemLevel);
        let (mut base, mut before) = (get(Word::Batch), get(Word::Before));
        // All lanes have read what one of them writes.
        sync_warp();
        loop {
            // Lanes behind the last sequence have that one, without items.
            let batch = base + lane;
            let last = reload(self.params).forward.attention.batch - 1;
            let sequence = self.sequence(batch.min(last));
            let count = if batch <= last {
                sequence.items(level)
            } else {
                0
            };
            // The sum over this lane and those before it.
            let mut end = before + count;
            let mut by = 1;
            while by < 32 {
                let other = shuffle(end, lane.wrapping_sub(by) % 32) - before;
                end += if lane >= by { other } else { 0 };
                by *= 2;
            }
            if index < end && index >= end - count {
                self.describe(&sequence, batch, end - count, index);
            }
            let end = uniform(shuffle(end, 31));
            if index < end {
                return;
            }
            base += 32;
            before = end;
        }
    }

    /// Writes which drafts the positions of the item see, if there is a tree.
    ///
    /// # Safety
    /// As [`search`](Self::search), after it.
    #[inline(always)]
    unsafe fn tell_drafts(&self) {
        let params = reload(self.params);
        let Some(words) = params.tree_mask else {
            return;
        };
        sync_warp();
        let group = params.group;
        let lane = black_box(lane_id());
        let position = divide(get(Word::RowBegin), group).0 + lane;
        if lane < DecodeConfig::MOST_ROWS && position < get(Word::SeqQ) {
            let index = get(Word::Batch) as u64 * params.tree_stride as u64 + position as u64;
            let from = words.get() + index * size_of::<u64>() as u64;
            let to = info(drafts_of(position));
            shared::store_bits(to, global::load_u32(from));
            shared::store_bits(to + F32_BYTES, global::load_u32(from + F32_BYTES as u64));
        }
    }

    /// Writes the words that are the same for all items.
    ///
    /// # Safety
    /// One thread calls it, before the first item is found.
    #[inline(always)]
    unsafe fn describe_launch(&self) {
        let attention = &self.params.forward.attention;
        let mode = |operand, dims| CopyMode::of(operand, dims, &self.config) as u32;
        put(Word::Group, self.params.group);
        put(Word::KMode, mode(&attention.k, attention.head_dim));
        put(Word::VMode, mode(&attention.v, attention.head_dim_v));
        // By which shift makes no difference to these.
        let transform = ScoreTransform::of_rows(&attention.score, 0.0);
        put(Word::IsPlain, transform.is_plain as u32);
        put(Word::ScaleLog2, transform.scale_log2.to_bits());
    }

    /// Writes the words of item number `index`, of `sequence` number `batch`, before which there are `before`.
    ///
    /// # Safety
    /// As [`find`](Self::find); one thread calls it. There is an item, so that there are heads and rows.
    #[inline(always)]
    unsafe fn describe(&self, sequence: &Sequence, batch: u32, before: u32, index: u32) {
        let params = reload(self.params);
        let attention = &params.forward.attention;
        let Sequence {
            keys,
            chunks,
            row_tiles,
            ..
        } = *sequence;
        let stride = sequence.items_of_node();
        let (node, rest) = divide(index - before, stride);
        let level = get(Word::ItemLevel);
        put(Word::Before, before);
        put(Word::Batch, batch);
        put(Word::KvLen, keys.kv_len);
        put(Word::IsBad, keys.is_bad as u32);
        put(Word::Lower, keys.band.lower as u32);
        put(Word::Upper, keys.band.upper as u32);
        put(Word::SeenBegin, keys.seen.0);
        put(Word::SeenEnd, keys.seen.1);
        put(Word::CopyBegin, keys.seen.0);
        put(Word::CopyEnd, keys.seen.1);
        put(Word::IsPoisoned, 0);
        put(Word::Level, level);
        put(Word::Node, chunks.first(level) + node);
        put(Word::SeqQ, sequence.seq_q);
        put(Word::QBegin, sequence.q_begin);
        let group = params.group;
        let (head_kv, row_tile) = match row_tiles {
            1 => (rest, 0),
            _ => divide(rest, row_tiles),
        };
        let row_begin = row_tile * self.config.rows;
        let row_end = (sequence.seq_q * group).min(row_begin + self.config.rows);
        put(Word::HeadKv, head_kv);
        put(Word::RowBegin, row_begin);
        put(Word::RowEnd, row_end);
        let band = keys.band;
        let visible = |row: u32| visible_keys(divide(row, group).0 as i32, band, keys.kv_len);
        put(Word::FullFirst, visible(row_end - 1).0 as u32);
        let first_draft = match params.tree_mask {
            None => i32::MAX,
            // Below 0 where there are more queries than keys.
            Some(_) => keys.kv_len as i32 - sequence.seq_q as i32,
        };
        put(Word::FirstDraft, first_draft as u32);
        put(Word::Position, ALL_POSITIONS);
        // Of drafts each row sees its own.
        put(
            Word::FullLast,
            visible(row_begin).1.min(first_draft - 1) as u32,
        );
        let kv_bytes = self.config.kv_bytes();
        put_address(Word::KBase, head_address(&attention.k, head_kv, kv_bytes));
        put_address(Word::VBase, head_address(&attention.v, head_kv, kv_bytes));
        put(Word::FirstSlot, before + rest);
        put(Word::Stride, stride);
    }

    /// Whether there are more items than blocks, which begin with one each.
    ///
    /// # Safety
    /// As [`items`](Self::items).
    #[inline(always)]
    pub unsafe fn is_drawn(&self) -> bool {
        are_drawn(self.items())
    }

    /// The number of the next item, which [`draw`] has drawn.
    ///
    /// # Safety
    /// The whole block calls it.
    #[inline(always)]
    pub unsafe fn next(&self) -> u32 {
        sync_threads();
        // Behind those that blocks begin with.
        uniform(get(Word::Next)) + grid_dim_x()
    }
}

/// See [`Work::is_drawn`].
#[inline(always)]
fn are_drawn(items: u32) -> bool {
    items > grid_dim_x()
}

/// Draws the number of a further item, by one thread, if there may be one.
///
/// # Safety
/// A block draws once an item: the counter is then 0 again after the launch.
#[inline(always)]
pub unsafe fn draw(params: &DecodeParams) {
    if thread_idx_x() == 0 {
        let items = get(Word::Items);
        if are_drawn(items) {
            put(
                Word::Next,
                global::fetch_increment(params.workspace, items - 1),
            );
        }
    }
}

/// The workspace of the launch.
#[inline(always)]
pub fn workspace(params: &DecodeParams) -> DecodeWorkspace {
    DecodeWorkspace {
        slots: params.slots,
    }
}

/// Sums of the warps' numbers, by way of the first maxima.
///
/// # Safety
/// The whole block calls it, and nobody accesses the maxima.
#[inline(always)]
unsafe fn sums_of_warps(of_warp: [u32; 3]) -> [u32; 3] {
    if lane_id() == 0 {
        for index in 0..3 {
            let to = maximum(index as u32) + warp_id() * F32_BYTES;
            shared::store_bits(to, of_warp[index]);
        }
    }
    sync_threads();
    let mut sums = [0; 3];
    for index in 0..3 {
        let from = maximum(index as u32);
        let [a, b, c, d] = shared::load4_bits(from);
        let [e, f, g, h] = shared::load4_bits(from + 4 * F32_BYTES);
        sums[index] = ((a + b) + (c + d)) + ((e + f) + (g + h));
    }
    sums
}
