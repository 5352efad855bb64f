//! The operations that the algorithm needs of the threads that run it.

use super::{ListHeader, ListedTile};
use crate::config::tile_list::BUCKETS_AT_ONCE;

/// A team of threads that list the tiles of a launch, as seen by one of its members: a thread block.
///
/// All members run the same program. Writes of one member, buckets included, are visible to the others after the next
/// barrier.
pub trait Team {
    /// This member's number.
    fn rank(&self) -> u32;

    /// Number of members: a power of two, at most [`THREADS`](crate::config::tile_list::THREADS).
    fn size(&self) -> u32;

    /// Waits for all members.
    ///
    /// # Safety
    /// All members reach the same call.
    unsafe fn barrier(&self);

    /// Whether `condition` holds for any member; the same result for all. A barrier.
    ///
    /// # Safety
    /// As [`Team::barrier`].
    unsafe fn any(&self, condition: bool) -> bool;

    /// The sums of all members' `values`, saturated at `u32::MAX`. A barrier.
    ///
    /// # Safety
    /// As [`Team::barrier`]; a barrier separates two calls of this. There are two values at most.
    unsafe fn sums<const N: usize>(&self, values: [u32; N]) -> [u32; N];

    /// The sum of the `value` of all members before this one. A barrier.
    ///
    /// # Safety
    /// As [`Team::barrier`]; a barrier separates two calls of this.
    unsafe fn sum_before(&self, value: u32) -> u32;

    /// Counts in the buckets from number `index` on, which is a multiple of [`BUCKETS_AT_ONCE`].
    fn buckets(&self, index: u32) -> [u32; BUCKETS_AT_ONCE as usize];

    /// Sets buckets from number `index` on, which no other member accesses.
    fn set_buckets(&self, index: u32, values: [u32; BUCKETS_AT_ONCE as usize]);

    /// Adds to bucket `index` atomically; returns its old value.
    fn add_to_bucket(&self, index: u32, value: u32) -> u32;

    /// The i32 at a device address in an array of lengths.
    fn length(&self, address: u64) -> i32;

    /// The word stored for a sequence.
    fn note(&self, sequence: u32) -> u32;

    /// Stores the word of a sequence, which no other member accesses.
    fn set_note(&self, sequence: u32, value: u32);

    /// Writes the list's header.
    fn put_header(&self, header: ListHeader);

    /// Writes entry `index`, which is below the list's capacity.
    fn put_entry(&self, index: u32, entry: ListedTile);
}
