//! From the cache's pages to the ring in shared memory.
//!
//! A warp copies the keys of a step that it scores, in pieces of 16 bytes, whatever the size of pages: its first lanes look up
//! where the keys lie, and give the others the addresses of rows. An entry of the block table is asked for a step before it
//! is used.

use cuda_std::cp_async::{commit_group, copy16, copy16_padded};
use cuda_std::warp::{any, lane_id, shuffle, uniform};
use cuda_std::{global, shared};

use super::codes::KeyScales;
use super::tile::{ALL_POSITIONS, Tile};
use super::work::{Word, info};
use crate::abi::{AttentionParams, CacheFault, TensorArg};
use crate::config::decode::DecodeConfig;
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_bytes, row_vec16s};
use crate::tile::black_box;
use crate::units::{F32_BYTES, HALF_BYTES};

/// No page.
const NOWHERE: u32 = u32::MAX;

/// A warp's pipeline of K and V.
pub struct KvLoader<'a> {
    tile: &'a Tile<'a>,
    /// The step whose keys are located next, and one past the last.
    step: u32,
    end: u32,
    /// The table's entry for this lane's key of that step, and the key's place in its page.
    entry: u32,
    entry_place: u32,
    /// Page and place of this lane's key of the step before; [`NOWHERE`] if it is not copied.
    page: u32,
    place: u32,
    /// Whether the warp's keys of that step are all copied in whole pieces, and follow each other in a page: of K, and of V. Or in two:
    /// `page` and `place` are then as if all followed the first.
    is_run: [bool; 2],
    /// How much further the second half of them lies than it would if all followed each other, bytes of K and of V.
    to_second: i64,
    /// Scales of this lane's keys, of the last step that was located and of those before.
    scales: [KeyScales; DecodeConfig::MOST_AHEAD + 1],
}

impl<'a> KvLoader<'a> {
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn new(tile: &'a Tile<'a>, (step, end): (u32, u32)) -> Self {
        let mut loader = Self {
            tile,
            step,
            end,
            entry: 0,
            entry_place: 0,
            page: NOWHERE,
            place: 0,
            is_run: [false; 2],
            to_second: 0,
            scales: [KeyScales::NONE; DecodeConfig::MOST_AHEAD + 1],
        };

        loader.look_up();
        loader
    }

    /// This lane's key of the step that is located next.
    #[inline(always)]
    fn key(&self) -> u32 {
        let first = self.step * self.tile.config.step_keys() + self.tile.warp_key();
        first + lane_id() % self.tile.config.warp_keys()
    }

    #[inline(always)]
    fn is_seen(&self, key: u32) -> bool {
        let is_before_end = key < self.tile.get(Word::CopyEnd) || self.is_seen_draft(key);
        key >= self.tile.get(Word::CopyBegin) && is_before_end
    }

    /// Whether rows of one position are computed, which see the key, a draft. Keys that are copied end before a tree's drafts then.
    #[inline(always)]
    fn is_seen_draft(&self, key: u32) -> bool {
        let position = self.tile.get(Word::Position);
        if position == ALL_POSITIONS {
            return false;
        }
        // A key that is visible, and behind those, is a draft.
        let is_draft = key as i32 <= self.tile.visible(position).1;
        let draft = key.wrapping_sub(self.tile.get(Word::FirstDraft));
        is_draft && self.tile.drafts(position).wrapping_shr(draft) & 1 != 0
    }

    /// Asks for the table's entry of the next step.
    #[inline(always)]
    unsafe fn look_up(&mut self) {
        let params = self.tile.params();
        let key = self.key();
        self.entry_place = key;
        let Some(table) = params.block_table else {
            self.entry = self.tile.get(Word::Batch);
            return;
        };
        self.entry = NOWHERE;
        if self.step < self.end && self.is_seen(key) {
            let page_size = params.page_size;
            // SAFETY: a key is seen only where there are pages of one key at least.
            core::hint::assert_unchecked(page_size != 0);
            let column = if page_size.is_power_of_two() {
                key >> page_size.trailing_zeros()
            } else {
                key / page_size
            };
            self.entry_place = key - column * page_size;
            let batch = self.tile.get(Word::Batch);
            let index = batch as u64 * params.table_stride + column as u64;
            self.entry = global::load_u32(table.get() + index * F32_BYTES as u64);
        }
    }

    /// Finds the keys of the next step, and asks for the entries of the one after it.
    #[inline(always)]
    unsafe fn locate(&mut self) {
        let is_seen = self.is_seen(self.key());
        // A page below 0 is a large one.
        let is_page = self.entry < self.tile.params().num_pages;
        if is_seen && !is_page {
            report(self.tile, CacheFault::BadPage);
            shared::atomic_or(info(Word::IsPoisoned as u32), 1);
        }
        self.page = if is_seen && is_page {
            self.entry
        } else {
            NOWHERE
        };
        self.place = self.entry_place;
        let index = lane_id() % self.tile.config.warp_keys();
        // By all lanes. Keys of different pages have other places than keys that follow each other.
        let first = shuffle(self.place, 0);
        let is_next = self.place == first.wrapping_add(index);
        let modes = [Word::KMode, Word::VMode].map(|mode| self.tile.get(mode));
        for i in 0..2 {
            let is_whole = modes[i] == CopyMode::Whole as u32;
            self.is_run[i] = !any(self.page == NOWHERE || !is_next || !is_whole);
        }
        self.step += 1;
        self.look_up();
    }

    /// Takes the keys of two pages of 16 for one run, where they are copied in whole pieces and K lies as V does, so that they need no
    /// address each.
    ///
    /// # Safety
    /// All 32 lanes reach the same call, behind [`Self::locate`].
    #[inline(always)]
    unsafe fn join_runs(&mut self) {
        let config = self.tile.config;
        self.to_second = 0;
        if self.step > self.end || self.is_run[0] && self.is_run[1] {
            return;
        }
        let (index, half) = (lane_id() % config.warp_keys(), config.warp_keys() / 2);
        let begin = shuffle(self.place, index - index % half);
        let is_next = self.place == begin.wrapping_add(index % half);
        let modes = [Word::KMode, Word::VMode].map(|mode| self.tile.get(mode));
        let are_whole = modes.map(|mode| mode == CopyMode::Whole as u32) == [true; 2];
        let AttentionParams { k, v, .. } = self.tile.params().forward.attention;
        let lie_alike = (k.batch_stride, k.seq_stride) == (v.batch_stride, v.seq_stride);
        if any(!are_whole || !lie_alike || self.page == NOWHERE || !is_next) {
            return;
        }
        let [first, second] = [0, half].map(|lane| shuffle(self.place, lane));
        let [page, second_page] = [0, half].map(|lane| shuffle(self.page, lane));
        let pages = second_page as i64 - page as i64;
        let places = second as i64 - first as i64 - half as i64;
        let elements = pages * k.batch_stride + places * k.seq_stride;
        self.to_second = elements * config.kv_bytes() as i64;
        (self.page, self.place) = (page, first.wrapping_add(index));
        self.is_run = [true; 2];
    }

    /// Starts copying part `index` of a step, those of K first, or nothing behind the last step, as a group of its own. Part 0
    /// is of the next step, others of the same.
    ///
    /// # Safety
    /// All 32 lanes reach the same call, and nobody accesses the warp's part of the slot until the group is waited for.
    #[inline(always)]
    pub unsafe fn copy_part(&mut self, index: usize, slot: u32) {
        let config = self.tile.config;
        if index == 0 {
            let is_step = self.step < self.end;
            if is_step {
                self.locate();
            } else {
                self.step = self.end + 1;
            }
            if config.is_e4m3 {
                self.ask_for_scales(is_step);
                self.join_runs();
            }
        }
        if self.step <= self.end {
            let attention = self.tile.params().forward.attention;
            if index < config.parts() {
                let AttentionParams { k, head_dim, .. } = attention;
                let words = (Word::KBase, Word::KMode);
                if self.is_run[0] {
                    self.copy_run(&k, Word::KBase, index, slot);
                } else {
                    self.copy(&k, head_dim, words, index, slot);
                }
            } else {
                let AttentionParams { v, head_dim_v, .. } = attention;
                let part = index - config.parts();
                let words = (Word::VBase, Word::VMode);
                if self.is_run[1] {
                    self.copy_run(&v, Word::VBase, part, slot);
                } else {
                    self.copy(&v, head_dim_v, words, part, slot);
                }
            }
        }
        commit_group();
    }

    /// Scales of this lane's key of the step whose scores are complete, and whose parts of K are being copied over.
    #[inline(always)]
    pub fn scales(&self) -> KeyScales {
        // By numbers that are known wherever this is compiled, as an index would keep all of the loader out of registers.
        let [_, one, two, three] = self.scales;
        match self.tile.config.steps_ahead() {
            1 => one,
            2 => two,
            _ => three,
        }
    }

    /// Asks for the scales of this lane's key of the step that is located, `is_step`, or none; those of steps before are further back.
    #[inline(always)]
    unsafe fn ask_for_scales(&mut self, is_step: bool) {
        let scales = self.tile.scales;
        if scales.k.of_keys().is_none() && scales.v.of_keys().is_none() {
            return;
        }
        let mut located = KeyScales::NONE;
        if is_step && self.page != NOWHERE {
            located = KeyScales::load(self.tile, self.page, self.place);
        }
        let [one, two, three, _] = self.scales;
        self.scales = [located, one, two, three];
    }

    /// Starts copying part `part` of this warp's rows of an operand, which follow each other.
    #[inline(always)]
    unsafe fn copy_run(&self, operand: &TensorArg, base: Word, part: usize, slot: u32) {
        let config = self.tile.config;
        let units = config.row_units();
        let row_pieces = row_vec16s(units) as u32;
        let rows_at_once = 32 / row_pieces;
        let lane = black_box(lane_id());
        let (row, vec16) = (lane / row_pieces, lane % row_pieces);
        // From this lane's key to that of the row that it copies.
        let place = self.place - lane % self.tile.config.warp_keys() + row;
        let elements = self.page as i64 * operand.batch_stride + place as i64 * operand.seq_stride;
        let dim_bytes = part as u32 * row_bytes(units) + vec16 * VEC16_BYTES;
        let mut from = self
            .tile
            .get_address(base)
            .wrapping_add_signed(elements * config.kv_bytes() as i64)
            .wrapping_add(dim_bytes as u64);
        let slot = self.tile.slot_address(slot) + self.tile.warp() * config.warp_bytes();
        let first = slot + offset(units, row, vec16);
        let stride = rows_at_once as i64 * operand.seq_stride * config.kv_bytes() as i64;
        for step in 0..self.tile.config.warp_keys() / rows_at_once {
            // The swizzle's xor splits: further rows differ in bits that are 0 in the first.
            let rows = step * rows_at_once;
            if config.is_e4m3 && rows == config.warp_keys() / 2 {
                from = from.wrapping_add_signed(self.to_second);
            }
            let moved = offset(units, rows, 0) - rows * row_bytes(units);
            copy16((first ^ moved) + rows * row_bytes(units), from);
            from = from.wrapping_add_signed(stride);
        }
    }

    /// Starts copying part `part` of this warp's rows of an operand of `dims` components.
    #[inline(always)]
    unsafe fn copy(
        &self,
        operand: &TensorArg,
        dims: u32,
        (base, mode): (Word, Word),
        part: usize,
        slot: u32,
    ) {
        let config = self.tile.config;
        let units = config.row_units();
        let row_pieces = row_vec16s(units) as u32;
        let rows_at_once = 32 / row_pieces;
        let elements =
            self.page as i64 * operand.batch_stride + self.place as i64 * operand.seq_stride;
        // Rows that are not there have no address.
        let row_address = if self.page != NOWHERE {
            self.tile
                .get_address(base)
                .wrapping_add_signed(elements * config.kv_bytes() as i64)
        } else {
            0
        };
        let lane = black_box(lane_id());
        let vec16 = lane % row_pieces;
        let mut row = lane / row_pieces;
        let slot = self.tile.slot_address(slot) + self.tile.warp() * config.warp_bytes();
        let mode = uniform(self.tile.get(mode));
        let vec16_elems = VEC16_BYTES / config.kv_bytes();
        let dim = (part * config.part_dims()) as u32 + vec16 * vec16_elems;
        // All lanes take as many rows: counted by a number that is the same in all of them. It is not known when this is compiled:
        // so the loop stays rolled, and the code of a step short.
        let turns = self.tile.config.warp_keys() / rows_at_once + mode / CopyMode::COUNT;
        let mut turn = 0;
        while turn < turns {
            let address = of_lane(row_address, row);
            let dims = if address != 0 { dims } else { 0 };
            let to = slot + offset(units, row, vec16);
            if mode != CopyMode::Elements as u32 {
                let elements = dims.saturating_sub(dim).min(vec16_elems);
                let from = if elements > 0 {
                    address + (dim * config.kv_bytes()) as u64
                } else {
                    operand.address
                };
                copy16_padded(to, from, elements * config.kv_bytes());
            } else {
                let words = if config.is_e4m3 {
                    gather_codes(address, operand.dim_stride, dim, dims)
                } else {
                    gather(address, operand.dim_stride, dim, dims)
                };
                shared::store4_bits(to, words);
            }
            row += rows_at_once;
            turn += 1;
        }
    }
}

/// How rows of an operand are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum CopyMode {
    /// Element by element.
    Elements,
    /// In pieces of 16 bytes, the last of which may be cut short.
    Vec16,
    /// In whole pieces, as many as a slot has.
    Whole,
}

impl CopyMode {
    const COUNT: u32 = 3;

    /// Of an operand with rows of `dims` elements, to slots of `config`.
    #[inline(always)]
    pub fn of(operand: &TensorArg, dims: u32, config: &DecodeConfig) -> Self {
        let strides = operand.batch_stride | operand.seq_stride | operand.head_stride;
        let alignment = operand.address | (strides * config.kv_bytes() as i64) as u64;
        if operand.dim_stride != 1 || !alignment.is_multiple_of(VEC16_BYTES as u64) {
            Self::Elements
        } else if dims as usize == config.head_dim {
            Self::Whole
        } else {
            Self::Vec16
        }
    }
}

/// Sets a bit of the launch's status.
///
/// # Safety
/// The status is live.
#[inline(always)]
pub unsafe fn report(tile: &Tile<'_>, fault: CacheFault) {
    if let Some(status) = tile.params().status {
        global::set_bits(status.get(), fault as u32);
    }
}

/// The address that lane `lane` has.
#[inline(always)]
unsafe fn of_lane(address: u64, lane: u32) -> u64 {
    let low = shuffle(address as u32, lane);
    let high = shuffle((address >> 32) as u32, lane);
    (high as u64) << 32 | low as u64
}

/// Elements `dim .. dim + 8` of a row of `dims`, zeros behind its end.
///
/// # Safety
/// The elements exist.
#[inline(always)]
pub unsafe fn gather(row: u64, dim_stride: i64, dim: u32, dims: u32) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = [0; 4];
    // Rolled, so that it takes few registers; and so no array, which would be indexed by a variable.
    let mut i = 0;
    while i < black_box(VEC16_ELEMS as u32) {
        if dim + i < dims {
            let offset = (dim + i) as i64 * dim_stride * HALF_BYTES as i64;
            let element = global::load_u16(row.wrapping_add_signed(offset));
            let bits = (element as u32) << (i % 2 * 16);
            a |= if i / 2 == 0 { bits } else { 0 };
            b |= if i / 2 == 1 { bits } else { 0 };
            c |= if i / 2 == 2 { bits } else { 0 };
            d |= if i / 2 == 3 { bits } else { 0 };
        }
        i += 1;
    }
    [a, b, c, d]
}

/// As [`gather`], of 16 codes of a byte.
///
/// # Safety
/// The elements exist.
#[inline(always)]
unsafe fn gather_codes(row: u64, dim_stride: i64, dim: u32, dims: u32) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = [0; 4];
    let mut i = 0;
    while i < black_box(VEC16_BYTES) {
        if dim + i < dims {
            let offset = (dim + i) as i64 * dim_stride;
            let code = global::load_u8(row.wrapping_add_signed(offset));
            let bits = (code as u32) << (i % 4 * 8);
            a |= if i / 4 == 0 { bits } else { 0 };
            b |= if i / 4 == 1 { bits } else { 0 };
            c |= if i / 4 == 2 { bits } else { 0 };
            d |= if i / 4 == 3 { bits } else { 0 };
        }
        i += 1;
    }
    [a, b, c, d]
}
