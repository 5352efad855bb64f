//! A thread block as a team, and the kernel.
//!
//! ```text
//! shared memory   buckets    [BUCKETS]
//!                 partials   [2][warps]
//!                 totals     [2]
//! ```

use bytemuck::must_cast;
use cuda_std::thread::{sync_threads, sync_threads_or, thread_idx_x};
use cuda_std::warp::{WARP_SIZE, lane_id, shuffle, warp_id};
use cuda_std::{global, shared};

use super::build::build;
use super::team::Team;
use super::{ListHeader, ListedTile, TileListParams, Workspace};
use crate::config::tile_list::{BUCKETS, BUCKETS_AT_ONCE, THREADS, WARPS};

const WORD: u32 = size_of::<u32>() as u32;
const PARTIALS: u32 = BUCKETS * WORD;
const TOTALS: u32 = PARTIALS + 2 * WARPS * WORD;

/// Lists the tiles of a varlen launch.
///
/// # Safety
/// `params` describes a launch whose arrays of lengths and whose workspace are live; the launch has one block of the
/// instance's size and shared memory.
#[inline(always)]
pub unsafe fn list_tiles(params: &TileListParams) {
    let block = Block {
        workspace: params.workspace,
        notes: params.workspace + params.layout().notes,
        shared: shared::dynamic_base(),
    };
    // SAFETY: all threads of the block call it with the same parameters, and the caller vouches for the arrays of
    // lengths and for the workspace.
    unsafe {
        if thread_idx_x() == 0 {
            global::store_bits(params.workspace + Workspace::TILE_COUNT_SEMAPHORE, 0);
        }
        build(&block, params)
    }
}

/// A thread of the block; made by [`list_tiles`], whose caller vouches for the addresses.
struct Block {
    workspace: u64,
    notes: u64,
    shared: u32,
}

impl Block {
    #[inline(always)]
    fn bucket_address(&self, index: u32) -> u32 {
        self.shared + index * WORD
    }

    #[inline(always)]
    fn partial_address(&self, which: u32, warp: u32) -> u32 {
        self.shared + PARTIALS + (which * WARPS + warp) * WORD
    }

    #[inline(always)]
    fn note_address(&self, sequence: u32) -> u64 {
        self.notes + sequence as u64 * WORD as u64
    }

    /// The partial results of the block's warps, one per lane; 0 in lanes without a warp.
    ///
    /// # Safety
    /// They were written before the last barrier.
    #[inline(always)]
    unsafe fn partial(&self, which: u32) -> u32 {
        if lane_id() < WARPS {
            // SAFETY: the caller vouches for the word, which the warp of this lane's number wrote.
            unsafe { shared::load_bits(self.partial_address(which, lane_id())) }
        } else {
            0
        }
    }
}

impl Team for Block {
    #[inline(always)]
    fn rank(&self) -> u32 {
        thread_idx_x()
    }

    #[inline(always)]
    fn size(&self) -> u32 {
        THREADS
    }

    #[inline(always)]
    unsafe fn barrier(&self) {
        // SAFETY: the caller vouches that the whole block is here.
        unsafe { sync_threads() }
    }

    #[inline(always)]
    unsafe fn any(&self, condition: bool) -> bool {
        // SAFETY: the caller vouches that the whole block is here.
        unsafe { sync_threads_or(condition) }
    }

    #[inline(always)]
    unsafe fn sums<const N: usize>(&self, values: [u32; N]) -> [u32; N] {
        // SAFETY: the whole block is here, as the caller vouches. Until the barriers the words are the warp's own, and
        // the totals the first warp's, whose lanes all have the same sums and store them; only whole warps branch.
        unsafe {
            for which in 0..N {
                let sum = warp_sum(values[which]);
                shared::store_bits(self.partial_address(which as u32, warp_id()), sum);
            }
            sync_threads();
            let total = |which: usize| self.shared + TOTALS + which as u32 * WORD;
            if warp_id() == 0 {
                for which in 0..N {
                    let sum = warp_sum(self.partial(which as u32));
                    shared::store_bits(total(which), sum);
                }
            }
            sync_threads();
            let mut sums = [0; N];
            for which in 0..N {
                sums[which] = shared::load_bits(total(which));
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn sum_before(&self, value: u32) -> u32 {
        // SAFETY: the whole block is here, as the caller vouches. The word is the warp's own until the barrier.
        unsafe {
            let through = warp_sum_through(value);
            if lane_id() == WARP_SIZE - 1 {
                shared::store_bits(self.partial_address(0, warp_id()), through);
            }
            sync_threads();
            let through_warp = warp_sum_through(self.partial(0));
            let of_warp = shuffle(through_warp, warp_id().wrapping_sub(1) % WARP_SIZE);
            let before_warp = if warp_id() == 0 { 0 } else { of_warp };
            before_warp.wrapping_add(through).wrapping_sub(value)
        }
    }

    #[inline(always)]
    fn buckets(&self, index: u32) -> [u32; BUCKETS_AT_ONCE as usize] {
        // SAFETY: there are so many buckets, and a barrier separates this from writes.
        unsafe { shared::load4_bits(self.bucket_address(index)) }
    }

    #[inline(always)]
    fn set_buckets(&self, index: u32, values: [u32; BUCKETS_AT_ONCE as usize]) {
        // SAFETY: as above; nobody else accesses them.
        unsafe { shared::store4_bits(self.bucket_address(index), values) }
    }

    #[inline(always)]
    fn add_to_bucket(&self, index: u32, value: u32) -> u32 {
        // SAFETY: as above; others only add.
        unsafe { shared::fetch_add(self.bucket_address(index), value) }
    }

    #[inline(always)]
    fn length(&self, address: u64) -> i32 {
        // SAFETY: an element of an array of lengths, which nobody writes.
        unsafe { global::load_u32(address) as i32 }
    }

    #[inline(always)]
    fn note(&self, sequence: u32) -> u32 {
        // SAFETY: there is a word for each sequence, and a barrier separates this from writes.
        unsafe { global::load_bits(self.note_address(sequence)) }
    }

    #[inline(always)]
    fn set_note(&self, sequence: u32, value: u32) {
        // SAFETY: as above; nobody else accesses it.
        unsafe { global::store_bits(self.note_address(sequence), value) }
    }

    #[inline(always)]
    fn put_header(&self, header: ListHeader) {
        // SAFETY: the workspace has a place for it.
        unsafe { global::store4_bits(self.workspace + Workspace::HEADER, must_cast(header)) }
    }

    #[inline(always)]
    fn put_entry(&self, index: u32, entry: ListedTile) {
        let address =
            self.workspace + Workspace::ENTRIES + index as u64 * size_of::<ListedTile>() as u64;
        let ListedTile { coord, rows } = entry;
        // SAFETY: the index is below the list's capacity, and no other entry's.
        unsafe {
            global::store4_bits(address, must_cast(coord));
            global::store4_bits(address + size_of_val(&coord) as u64, must_cast(rows));
        }
    }
}

/// The sum over the warp, saturated at `u32::MAX`, in every lane.
///
/// # Safety
/// All 32 lanes reach the same call.
#[inline(always)]
unsafe fn warp_sum(mut value: u32) -> u32 {
    let mut distance = WARP_SIZE / 2;
    while distance > 0 {
        // SAFETY: all lanes are here, as the caller vouches, and run the same loop.
        let other = unsafe { shuffle(value, lane_id() ^ distance) };
        value = value.saturating_add(other);
        distance /= 2;
    }
    value
}

/// The sum over the lanes up to this one.
///
/// # Safety
/// All 32 lanes reach the same call.
#[inline(always)]
unsafe fn warp_sum_through(mut value: u32) -> u32 {
    let mut distance = 1;
    while distance < WARP_SIZE {
        // SAFETY: all lanes are here, as the caller vouches, and run the same loop.
        let before = unsafe { shuffle(value, lane_id().wrapping_sub(distance) % WARP_SIZE) };
        if lane_id() >= distance {
            value = value.wrapping_add(before);
        }
        distance *= 2;
    }
    value
}
