//! The shape of the kernel that lists the tiles of a varlen launch ([`crate::wgmma::scheduler::tile_list`]).

/// Threads of its only block. With more, most of what an SM issues would be what every warp works out for itself.
pub const THREADS: u32 = 512;
/// Lengths that it tells apart: with a longest sequence of 2¹⁷ keys, 64 keys apart, fewer than any kernel's block.
pub const BUCKETS: u32 = 2048;
/// Buckets that a thread reads or writes at once, 16 bytes.
pub const BUCKETS_AT_ONCE: u32 = 4;

/// Warps of the block.
pub const WARPS: u32 = THREADS / 32;

/// Words of shared memory: the buckets, two sums a warp and two of the block.
const SHARED_WORDS: u32 = BUCKETS + 2 * WARPS + 2;

/// Dynamic shared memory of a launch.
pub const SHARED_BYTES: u32 = SHARED_WORDS * size_of::<u32>() as u32;

const _: () = {
    assert!(THREADS.is_power_of_two() && BUCKETS.is_multiple_of(THREADS * BUCKETS_AT_ONCE));
    assert!(BUCKETS.is_power_of_two());
    assert!(WARPS <= 32, "a warp adds up what the warps have");
};
