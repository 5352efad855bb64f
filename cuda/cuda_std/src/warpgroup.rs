//! Warpgroups: four consecutive warps that multiply matrices together and trade registers.

use crate::thread::thread_idx_x;
use crate::warp::uniform;

/// Threads in a warpgroup.
pub const THREADS: u32 = 128;

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.setmaxnreg.inc.sync.aligned.u32"]
    fn setmaxnreg_inc(registers: u32);
    #[link_name = "llvm.nvvm.setmaxnreg.dec.sync.aligned.u32"]
    fn setmaxnreg_dec(registers: u32);
}

/// Index of this thread's warpgroup in the block, in a uniform register.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn index() -> u32 {
    // SAFETY: the caller vouches that all lanes are here; the index is the same in all of them.
    unsafe { uniform(thread_idx_x() / THREADS) }
}

/// Gives registers back to the block's pool, keeping `REGISTERS` a thread (`setmaxnreg.dec`).
///
/// The pool is what the block was launched with: registers at entry times threads.
///
/// # Safety
/// All warps of the warpgroup execute it; `REGISTERS` is a multiple of 8 in 24..=256, not above what they
/// have.
#[inline(always)]
pub unsafe fn release_registers<const REGISTERS: u32>() {
    // SAFETY: the caller vouches for the warps and for `REGISTERS`.
    unsafe { setmaxnreg_dec(REGISTERS) }
}

/// Waits until the pool has the registers, and takes `REGISTERS` a thread (`setmaxnreg.inc`).
///
/// # Safety
/// As [`release_registers`], with `REGISTERS` not below what they have; others must release enough.
#[inline(always)]
pub unsafe fn acquire_registers<const REGISTERS: u32>() {
    // SAFETY: the caller vouches for the warps, for `REGISTERS` and for what others release.
    unsafe { setmaxnreg_inc(REGISTERS) }
}
