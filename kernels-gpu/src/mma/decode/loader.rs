//! From the cache's pages to the ring in shared memory.
//!
//! A warp copies the 8 keys of a step that it scores, in pieces of 16 bytes, whatever the size of pages: lanes `0..8` look up
//! where the keys lie, and give the others the addresses of rows. An entry of the block table is asked for a step before it
//! is used.

use cuda_std::cp_async::{commit_group, copy16_padded};
use cuda_std::warp::{any, lane_id, shuffle};
use cuda_std::{global, shared};

use super::tile::Tile;
use crate::abi::{AttentionParams, CacheFault, TensorArg};
use crate::config::decode::DecodeConfig;
use crate::layout::swizzle::{VEC16_BYTES, VEC16_ELEMS, offset, row_vec16s};
use crate::tile::black_box;
use crate::units::{F32_BYTES, HALF_BYTES};

/// A warp's pipeline of K and V.
pub struct KvLoader<'a> {
    tile: &'a Tile<'a>,
    /// Keys that are copied; others are 0.
    keys: (u32, u32),
    /// The step whose keys are located next, and one past the last.
    step: u32,
    end: u32,
    /// The table's entry for this lane's key of that step.
    entry: u32,
    /// Page and place of this lane's key of the step before; whether the key is copied.
    page: u32,
    place: u32,
    is_there: bool,
    /// Whether a page was bad.
    pub is_poisoned: bool,
}

impl<'a> KvLoader<'a> {
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn new(tile: &'a Tile<'a>, keys: (u32, u32), (step, end): (u32, u32)) -> Self {
        let mut loader = Self {
            tile,
            keys,
            step,
            end,
            entry: 0,
            page: 0,
            place: 0,
            is_there: false,
            is_poisoned: false,
        };
        loader.look_up();
        loader
    }

    /// This lane's key of the step that is located next.
    #[inline(always)]
    fn key(&self) -> u32 {
        let first = self.step * DecodeConfig::STEP_KEYS + self.tile.warp * DecodeConfig::WARP_KEYS;
        first + lane_id() % DecodeConfig::WARP_KEYS
    }

    #[inline(always)]
    fn is_seen(&self, key: u32) -> bool {
        key >= self.keys.0 && key < self.keys.1
    }

    /// Asks for the table's entry of the next step.
    #[inline(always)]
    unsafe fn look_up(&mut self) {
        let params = self.tile.params;
        let batch = self.tile.item.batch;
        self.entry = batch;
        let key = self.key();
        if let Some(table) = params.block_table
            && self.step < self.end
            && self.is_seen(key)
        {
            // SAFETY: a key is seen only where there are pages of one key at least.
            core::hint::assert_unchecked(params.page_size != 0);
            let column = key / params.page_size;
            let index = batch as u64 * params.table_stride + column as u64;
            self.entry = global::load_u32(table.get() + index * F32_BYTES as u64);
        }
    }

    /// Finds the keys of the next step, and asks for the entries of the one after it.
    #[inline(always)]
    unsafe fn locate(&mut self) {
        let params = self.tile.params;
        let key = self.key();
        let is_seen = self.is_seen(key);
        // A page below 0 is a large one.
        let is_page = self.entry < params.num_pages;
        self.is_poisoned |= is_seen && !is_page;
        self.is_there = is_seen && is_page;
        self.page = self.entry;
        self.place = key;
        if params.block_table.is_some() && is_seen {
            // SAFETY: as in `look_up`.
            core::hint::assert_unchecked(params.page_size != 0);
            self.place = key % params.page_size;
        }
        self.step += 1;
        self.look_up();
    }

    /// Starts copying K of the next step, or nothing behind the last, as a group of its own.
    ///
    /// # Safety
    /// All 32 lanes reach the same call, and nobody accesses the slot until the group is waited for.
    #[inline(always)]
    pub unsafe fn copy_k(&mut self, slot: u32) {
        if self.step < self.end {
            self.locate();
            let AttentionParams { k, head_dim, .. } = &self.tile.params.forward.attention;
            self.copy(k, *head_dim, slot);
        } else {
            self.step = self.end + 1;
        }
        commit_group();
    }

    /// Starts copying V of the step that K was last copied of, or nothing, as a group of its own.
    ///
    /// # Safety
    /// As [`copy_k`](Self::copy_k).
    #[inline(always)]
    pub unsafe fn copy_v(&mut self, slot: u32) {
        if self.step <= self.end {
            let AttentionParams { v, head_dim_v, .. } = &self.tile.params.forward.attention;
            self.copy(v, *head_dim_v, slot);
        }
        commit_group();
    }

    #[inline(always)]
    unsafe fn copy(&self, operand: &TensorArg, dims: u32, slot: u32) {
        let head_dim = self.tile.config.head_dim;
        let row_pieces = row_vec16s(head_dim) as u32;
        let rows_at_once = 32 / row_pieces;
        let elements = self.page as i64 * operand.batch_stride
            + self.place as i64 * operand.seq_stride
            + self.tile.item.head_kv as i64 * operand.head_stride;
        let elements = if self.is_there { elements } else { 0 };
        let row_address = operand
            .address
            .wrapping_add_signed(elements * HALF_BYTES as i64);
        // What a lane copies of a row that is not there.
        let dims_there = if self.is_there { dims } else { 0 };
        let lane = lane_id();
        let dim = lane % row_pieces * VEC16_ELEMS as u32;
        let strides = operand.batch_stride | operand.seq_stride | operand.head_stride;
        let alignment = operand.address | (strides * HALF_BYTES as i64) as u64;
        let is_vec16 = operand.dim_stride == 1 && alignment.is_multiple_of(VEC16_BYTES as u64);
        let row_slot = self.tile.warp * DecodeConfig::WARP_KEYS;
        let mut row = lane / row_pieces;
        if is_vec16 {
            for _ in 0..DecodeConfig::WARP_KEYS / rows_at_once {
                let (address, dims) = of_lane(row_address, dims_there, row);
                let elements = dims.saturating_sub(dim).min(VEC16_ELEMS as u32);
                let from = if elements > 0 { dim * HALF_BYTES } else { 0 };
                let to = slot + offset(head_dim, row_slot + row, dim / VEC16_ELEMS as u32);
                copy16_padded(to, address + from as u64, elements * HALF_BYTES);
                row += rows_at_once;
            }
            return;
        }
        while row < black_box(DecodeConfig::WARP_KEYS) {
            let (address, dims) = of_lane(row_address, dims_there, row);
            let to = slot + offset(head_dim, row_slot + row, dim / VEC16_ELEMS as u32);
            shared::store4_bits(to, gather(address, operand.dim_stride, dim, dims));
            row += rows_at_once;
        }
    }

    /// Sets the status bit if a page was bad; returns whether one was for any lane of the warp.
    ///
    /// # Safety
    /// All 32 lanes reach the same call.
    #[inline(always)]
    pub unsafe fn report(&self) -> bool {
        let is_poisoned = any(self.is_poisoned);
        if is_poisoned && lane_id() == 0 {
            report(self.tile, CacheFault::BadPage);
        }
        is_poisoned
    }
}

/// Sets a bit of the launch's status.
///
/// # Safety
/// The status is live.
#[inline(always)]
pub unsafe fn report(tile: &Tile<'_>, fault: CacheFault) {
    if let Some(status) = tile.params.status {
        global::set_bits(status.get(), fault as u32);
    }
}

/// The address and dims that lane `lane` has.
#[inline(always)]
unsafe fn of_lane(address: u64, dims: u32, lane: u32) -> (u64, u32) {
    let low = shuffle(address as u32, lane);
    let high = shuffle((address >> 32) as u32, lane);
    ((high as u64) << 32 | low as u64, shuffle(dims, lane))
}

/// Elements `dim .. dim + 8` of a row of `dims`, zeros behind its end.
///
/// # Safety
/// The elements exist.
#[inline(always)]
pub unsafe fn gather(row: u64, dim_stride: i64, dim: u32, dims: u32) -> [u32; 4] {
    let mut words = [0; 4];
    for i in 0..VEC16_ELEMS as u32 {
        if dim + i < dims {
            let offset = (dim + i) as i64 * dim_stride * HALF_BYTES as i64;
            let element = global::load_u16(row.wrapping_add_signed(offset));
            words[i as usize / 2] |= (element as u32) << (i % 2 * 16);
        }
    }
    words
}
