//! The sixteen hardware barriers of a block, for parts of it.
//!
//! PTX ISA, "Parallel Synchronization and Communication Instructions: barrier". A barrier completes when
//! `threads` (a multiple of 32) have arrived or synced; barrier 0 is [`crate::thread::sync_threads`].

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    fn barrier_sync(id: u32, threads: u32);
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    fn barrier_arrive(id: u32, threads: u32);
}

/// Arrives at barrier `id` and waits for it (`barrier.cta.sync.aligned`).
///
/// # Safety
/// The whole warp reaches the same call, and the barrier gets exactly `threads` arrivals.
#[inline(always)]
pub unsafe fn sync(id: u32, threads: u32) {
    // SAFETY: the caller vouches that the whole warp is here, and for the number of arrivals.
    unsafe { barrier_sync(id, threads) }
}

/// Arrives at barrier `id` without waiting (`barrier.cta.arrive.aligned`).
///
/// # Safety
/// As [`sync`].
#[inline(always)]
pub unsafe fn arrive(id: u32, threads: u32) {
    // SAFETY: the caller vouches that the whole warp is here, and for the number of arrivals.
    unsafe { barrier_arrive(id, threads) }
}
