//! Blocks of a cluster: their rank, their common barrier, and stores into each other's shared memory.
//!
//! PTX ISA, "Special Registers: %cluster_ctarank" and "barrier.cluster", "mapa". A kernel launched without
//! clusters is a cluster of one.

use core::arch::asm;

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.cluster.ctarank"]
    fn cluster_ctarank() -> u32;
    #[link_name = "llvm.nvvm.barrier.cluster.arrive.aligned"]
    fn barrier_cluster_arrive();
    #[link_name = "llvm.nvvm.barrier.cluster.wait.aligned"]
    fn barrier_cluster_wait();
}

/// Rank of this block in its cluster (`%cluster_ctarank`).
#[inline(always)]
pub fn rank() -> u32 {
    // SAFETY: reads a special register.
    unsafe { cluster_ctarank() }
}

/// Waits for all threads of all blocks of the cluster and orders their memory accesses
/// (`barrier.cluster.arrive`, `barrier.cluster.wait`).
///
/// # Safety
/// Every thread of the cluster must reach the same call.
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: the caller vouches that the cluster arrives.
    unsafe {
        barrier_cluster_arrive();
        barrier_cluster_wait();
    }
}

/// Stores four words at `address` in block `rank` (`mapa`, `st.shared::cluster.v4.b32`).
///
/// # Safety
/// `address` is 16-byte aligned shared memory of that block, which has not exited and whose threads read it
/// after an arrival like [`crate::mbarrier::arrive_publish`].
#[inline(always)]
pub unsafe fn store4(address: u32, rank: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("{{ .reg .b32 to; mapa.shared::cluster.u32 to, {}, {}; st.shared::cluster.v4.b32 [to], {{{}, {}, {}, {}}}; }}",
            in(reg32) address, in(reg32) rank, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
            options(nostack));
    }
}
