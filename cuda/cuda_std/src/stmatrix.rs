//! Storing 8×8 matrices of 16-bit elements from tensor-core fragments to shared memory.
//!
//! Lane `i` gives the address of row `i % 8` of matrix `i / 8`, 16 bytes, 16-byte aligned. Of each matrix a
//! lane holds row `lane / 4`, columns `2 · (lane % 4)` and the next, as after [`crate::ldmatrix`].
//! PTX ISA, "Warp Level Matrix Instructions: stmatrix".

use core::arch::asm;

/// Stores four matrices (`stmatrix.x4`).
///
/// # Safety
/// All 32 lanes must reach the same call, each with the address of a row; no other thread accesses the rows
/// without a barrier in between.
#[inline(always)]
pub unsafe fn store4(row: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{}], {{{}, {}, {}, {}}};",
            in(reg32) row, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}
