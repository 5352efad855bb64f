//! The rows and keys of an item.

use cuda_std::global;
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{WARP_SIZE, lane_id, uniform};

use super::State;
use super::work::Item;
use crate::abi::DecodeParams;
use crate::config::decode::DecodeConfig;
use crate::layout::fragment::ROW_STEP;
use crate::mma::Element;
use crate::score::{ScoreTransform, alibi};
use crate::tile::block_range::visible_keys;
use crate::tile::kv_tree::Chunks;

/// Stands for the rows of all positions.
pub const ALL_POSITIONS: u32 = u32::MAX;

/// An item, with what follows from it. Row `r` of those of a head of K and V is query `r / group` of head `r % group` of its
/// group.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub params: &'a DecodeParams,
    pub config: DecodeConfig,
    pub item: Item,
    /// Query heads to a head of K and V.
    pub group: u32,
    /// Rows of the tile: the first, and one past the last.
    pub row_begin: u32,
    pub row_end: u32,
    /// Index of this warp.
    pub warp: u32,
}

impl<'a> Tile<'a> {
    /// # Safety
    /// As [`decode`](super::decode); the whole block calls it with the same item.
    #[inline(always)]
    pub unsafe fn new(params: &'a DecodeParams, config: DecodeConfig, item: &Item) -> Self {
        let attention = &params.forward.attention;
        // SAFETY: heads_kv divides heads_q, and neither is 0 where there is an item.
        core::hint::assert_unchecked(attention.heads_kv != 0);
        let group = attention.heads_q / attention.heads_kv;
        // SAFETY: as above.
        core::hint::assert_unchecked(group != 0);
        let row_begin = item.row_tile * DecodeConfig::ROWS;
        let rows = attention.seq_q * group;
        Self {
            params,
            config,
            item: *item,
            group,
            row_begin,
            row_end: rows.min(row_begin + DecodeConfig::ROWS),
            warp: uniform(thread_idx_x() / WARP_SIZE),
        }
    }

    /// Row `i`, of two, of this lane; one of the tile's, also where it has less than 16.
    #[inline(always)]
    pub fn row(&self, i: usize) -> u32 {
        let row = self.row_begin + lane_id() / 4 + i as u32 * ROW_STEP;
        row.min(self.row_end - 1)
    }

    /// Whether there is a row `i` of this lane, and it belongs to a query at `position`.
    #[inline(always)]
    pub fn has_row(&self, i: usize, position: u32) -> bool {
        let row = self.row_begin + lane_id() / 4 + i as u32 * ROW_STEP;
        row < self.row_end && (position == ALL_POSITIONS || row / self.group == position)
    }

    /// Query of a row.
    #[inline(always)]
    pub fn query(&self, row: u32) -> u32 {
        row / self.group
    }

    /// Query head of a row.
    #[inline(always)]
    pub fn head(&self, row: u32) -> u32 {
        self.item.head_kv * self.group + row % self.group
    }

    /// Queries of the tile: the first and the last.
    #[inline(always)]
    pub fn first_position(&self) -> u32 {
        self.row_begin / self.group
    }

    #[inline(always)]
    pub fn last_position(&self) -> u32 {
        (self.row_end - 1) / self.group
    }

    /// Keys that the query at a position sees: the first and the last.
    #[inline(always)]
    fn visible(&self, position: u32) -> (i32, i32) {
        visible_keys(position as i32, self.item.keys.band, self.item.keys.kv_len)
    }

    /// Whether some rows of the tile see keys that others do not.
    #[inline(always)]
    pub fn positions_differ(&self) -> bool {
        let (first, last) = (
            self.visible(self.first_position()),
            self.visible(self.last_position()),
        );
        first.0 != last.0 || first.1 != last.1
    }

    /// Keys that every row of the tile sees: the first and the last.
    #[inline(always)]
    pub fn seen_by_all(&self) -> (i32, i32) {
        let (_, last) = self.visible(self.first_position());
        let (first, _) = self.visible(self.last_position());
        (first, last)
    }

    /// Keys of K and V that are not taken for zeros: those that some query of the sequence sees, or the one at `position`;
    /// the first, and one past the last.
    #[inline(always)]
    pub fn keys(&self, position: u32) -> (u32, u32) {
        if position == ALL_POSITIONS {
            return self.item.keys.seen;
        }
        let (first, last) = self.visible(position);
        (first as u32, (last + 1) as u32)
    }

    /// The item's steps: the first, and one past the last.
    #[inline(always)]
    pub fn steps(&self) -> (u32, u32) {
        let Item {
            chunks,
            level,
            node,
            keys,
            ..
        } = &self.item;
        let Chunks { begin, end } = chunks.of_node(*level, *node);
        let (first, last) = keys.seen;
        let begin = first.max(begin * self.config.chunk_keys());
        let end = last.min(end * self.config.chunk_keys());
        if begin >= end {
            return (0, 0);
        }
        let step_keys = DecodeConfig::STEP_KEYS;
        (begin / step_keys, end.div_ceil(step_keys))
    }

    /// Whether the item is all of its sequence.
    #[inline(always)]
    pub fn is_row(&self) -> bool {
        self.item.chunks.nodes(self.item.level) == 1
    }

    /// How scores of this lane's rows are transformed, and their slopes.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn transform<E: Element>(&self) -> (ScoreTransform, [f32; 2]) {
        let score = &self.params.forward.attention.score;
        let slope = |i: usize| alibi::slope(score, self.item.batch, self.head(self.row(i)));
        let transform = ScoreTransform::of_rows(score, E::SHIFT);
        (transform, [slope(0), slope(1)])
    }

    /// The sink of a row in nats, if there are sinks.
    ///
    /// # Safety
    /// As [`Tile::new`].
    #[inline(always)]
    pub unsafe fn sink(&self, row: u32) -> Option<f32> {
        let address = self.params.sinks?.get() + self.head(row) as u64 * size_of::<f32>() as u64;
        Some(f32::from_bits(global::load_u32(address)))
    }

    /// Whether an element of one of the tile's rows has left f32's range, or is NaN.
    #[inline(always)]
    pub fn has_overflowed<const O_COLS: usize>(&self, state: &State<O_COLS>) -> bool {
        let mut overflowed = false;
        for i in 0..2 {
            let mut zero = 0.0;
            for col in 0..O_COLS {
                zero = crate::math::fma(state.acc_o[i][col], 0.0, zero);
            }
            overflowed |= zero != 0.0 && self.has_row(i, ALL_POSITIONS);
        }
        overflowed
    }
}
