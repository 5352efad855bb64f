//! Barriers in shared memory that count arrivals and the bytes of asynchronous copies.
//!
//! A barrier is 8 bytes, 8-byte aligned. Its phases alternate between parity 0, which it starts in, and 1; a
//! phase completes when all arrivals and all announced bytes have come. PTX ISA, "Parallel Synchronization
//! and Communication Instructions: mbarrier".
//!
//! The `_if` forms predicate the instruction instead of branching around it: a divergent branch in a loop of
//! `wgmma` makes ptxas treat the whole loop as divergent.

use core::arch::asm;

/// Bytes of a barrier.
pub const BYTES: u32 = 8;

/// Makes a barrier of `arrivals` a phase (`mbarrier.init`).
///
/// # Safety
/// `barrier` is 8-byte aligned shared memory that no thread uses yet.
#[inline(always)]
pub unsafe fn init(barrier: u32, arrivals: u32) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) barrier, in(reg32) arrivals,
            options(nostack));
    }
}

/// Makes this thread's initialisations visible to the cluster and to the async proxy
/// (`fence.mbarrier_init.release.cluster`); a barrier of the block or cluster must follow.
#[inline(always)]
pub fn fence_init() {
    // SAFETY: only orders memory.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}

/// Waits until the phase of this parity has completed (a loop on `mbarrier.try_wait.parity`).
///
/// # Safety
/// `barrier` is initialised.
#[inline(always)]
pub unsafe fn wait(barrier: u32, parity: u32) {
    // SAFETY: the caller vouches for the barrier. The label is local to the block.
    unsafe {
        asm!("{{ .reg .pred done; WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [{}], {}; @!done bra WAIT; }}",
            in(reg32) barrier, in(reg32) parity, options(nostack));
    }
}

/// Arrives (`mbarrier.arrive`).
///
/// # Safety
/// `barrier` is initialised and expects the arrival.
#[inline(always)]
pub unsafe fn arrive(barrier: u32) {
    // SAFETY: the caller vouches for the barrier.
    unsafe {
        asm!("mbarrier.arrive.shared::cta.b64 _, [{}];", in(reg32) barrier, options(nostack));
    }
}

/// Arrives once all copies that this thread has started so far (`cp.async`) have landed, which is one of the arrivals that the phase
/// expects (`cp.async.mbarrier.arrive.noinc`). PTX ISA, "cp.async.mbarrier.arrive".
///
/// # Safety
/// As [`arrive`].
#[inline(always)]
pub unsafe fn arrive_after_copies(barrier: u32) {
    // SAFETY: the caller vouches for the barrier.
    unsafe {
        asm!("cp.async.mbarrier.arrive.noinc.shared.b64 [{}];", in(reg32) barrier, options(nostack));
    }
}

/// Arrives where `condition` holds.
///
/// # Safety
/// As [`arrive`].
#[inline(always)]
pub unsafe fn arrive_if(condition: bool, barrier: u32) {
    // SAFETY: the caller vouches for the barrier.
    unsafe {
        asm!("{{ .reg .pred p; setp.ne.b32 p, {}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{}]; }}",
            in(reg32) condition as u32, in(reg32) barrier, options(nostack));
    }
}

/// Arrives, where `condition` holds, at the barrier of the same address in block `rank` of the cluster
/// (`mapa`, `mbarrier.arrive.shared::cluster`).
///
/// # Safety
/// As [`arrive_if`], for the barrier of block `rank`, which has not exited.
#[inline(always)]
pub unsafe fn arrive_at_if(condition: bool, barrier: u32, rank: u32) {
    // SAFETY: the caller vouches for the barrier.
    unsafe {
        asm!("{{ .reg .pred p; .reg .b32 remote; setp.ne.b32 p, {}, 0; mapa.shared::cluster.u32 remote, {}, {}; @p mbarrier.arrive.shared::cluster.b64 _, [remote]; }}",
            in(reg32) condition as u32, in(reg32) barrier, in(reg32) rank, options(nostack));
    }
}

/// As [`wait`]; then writes of other blocks of the cluster before their [`arrive_publish`] are visible
/// (`.acquire.cluster`).
///
/// # Safety
/// As [`wait`].
#[inline(always)]
pub unsafe fn wait_published(barrier: u32, parity: u32) {
    // SAFETY: the caller vouches for the barrier. The label is local to the block.
    unsafe {
        asm!("{{ .reg .pred done; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [{}], {}; @!done bra WAIT; }}",
            in(reg32) barrier, in(reg32) parity, options(nostack));
    }
}

/// Arrives at the barrier of the same address in block `rank`, which makes this thread's writes visible there
/// (`mbarrier.arrive.release.cluster`; costs a fence, which [`arrive_at_if`] does not).
///
/// # Safety
/// As [`arrive_at_if`].
#[inline(always)]
pub unsafe fn arrive_publish(barrier: u32, rank: u32) {
    // SAFETY: the caller vouches for the barrier.
    unsafe {
        asm!("{{ .reg .b32 remote; mapa.shared::cluster.u32 remote, {}, {}; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }}",
            in(reg32) barrier, in(reg32) rank, options(nostack));
    }
}

/// Arrives and announces `bytes` of asynchronous copies (`mbarrier.arrive.expect_tx`).
///
/// # Safety
/// `barrier` is initialised and expects the arrival; the copies are issued.
#[inline(always)]
pub unsafe fn arrive_expect(barrier: u32, bytes: u32) {
    // SAFETY: the caller vouches for the barrier.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};", in(reg32) barrier,
            in(reg32) bytes, options(nostack));
    }
}
