//! Asynchronous copies from global to shared memory, tracked by groups.
//!
//! A thread starts copies, closes them into a group with [`commit_group`], and later waits until at most
//! `N` of its groups are unfinished. What it waited for is visible to other threads only after a barrier.
//! PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" (`cp.async`, sm_80).

use core::arch::asm;

/// Starts copying 16 bytes (`cp.async.cg.shared.global`, which bypasses L1).
///
/// # Safety
/// Both addresses are 16-byte aligned; the destination is inside the block's shared memory and nobody accesses it
/// until the copy is waited for; the source is inside an allocation.
#[inline(always)]
pub unsafe fn copy16(shared: u32, global: u64) {
    // SAFETY: the caller vouches for both addresses.
    unsafe {
        asm!("cp.async.cg.shared.global [{}], [{}], 16;",
            in(reg32) shared, in(reg64) global, options(nostack));
    }
}

/// Starts copying 16 bytes: the first `valid_bytes` from `global`, the rest zero
/// (`cp.async.cg.shared.global`, which bypasses L1).
///
/// # Safety
/// Both addresses are 16-byte aligned; `valid_bytes ≤ 16`; the destination is inside the block's shared
/// memory and nobody accesses it until the copy is waited for; `global` need only be readable for
/// `valid_bytes`.
#[inline(always)]
pub unsafe fn copy16_padded(shared: u32, global: u64, valid_bytes: u32) {
    // SAFETY: the caller vouches for both addresses.
    unsafe {
        asm!("cp.async.cg.shared.global [{}], [{}], 16, {};",
            in(reg32) shared, in(reg64) global, in(reg32) valid_bytes, options(nostack));
    }
}

/// Starts copying 4 bytes, or writing zeros where `valid_bytes` is 0 (`cp.async.ca.shared.global`).
///
/// # Safety
/// As [`copy16_padded`], for 4 bytes.
#[inline(always)]
pub unsafe fn copy4(shared: u32, global: u64, valid_bytes: u32) {
    // SAFETY: the caller vouches for both addresses.
    unsafe {
        asm!("cp.async.ca.shared.global [{}], [{}], 4, {};",
            in(reg32) shared, in(reg64) global, in(reg32) valid_bytes, options(nostack));
    }
}

/// Closes the copies this thread started since the last call into one group (`cp.async.commit_group`).
#[inline(always)]
pub fn commit_group() {
    // SAFETY: only closes a group.
    unsafe { asm!("cp.async.commit_group;", options(nostack)) }
}

/// Waits until at most `N` of this thread's groups are unfinished (`cp.async.wait_group`).
#[inline(always)]
pub fn wait_group<const N: usize>() {
    // SAFETY: only waits; the memory clobber keeps later loads below it.
    unsafe { asm!("cp.async.wait_group {};", const N, options(nostack)) }
}
