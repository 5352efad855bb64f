//! Launches that begin before the one before them in the stream has ended: programmatic dependent launch.

use core::arch::asm;

/// Waits until the launch before this one has ended and its memory accesses are visible, where this one was allowed to begin
/// earlier; otherwise returns at once (`griddepcontrol.wait`, PTX ISA, "Parallel Synchronization and Communication Instructions:
/// griddepcontrol").
///
/// # Safety
/// The kernel runs on a GPU of compute capability 9.0 or later.
#[inline(always)]
pub unsafe fn wait_for_launch_before() {
    // SAFETY: the caller vouches for the GPU. That it may touch memory keeps accesses behind it.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) }
}
