//! Moving four 8 × 8 matrices of 16-bit elements between a warp's registers and shared memory.
//!
//! Lane `i` gives the address of row `i % 8` of matrix `i / 8`, 16 bytes, 16-byte aligned. Of each matrix a
//! lane holds row `lane / 4`, columns `2 · (lane % 4)` and the next: the fragment of `mma` and `wgmma`.
//! PTX ISA, "Warp Level Matrix Instructions: ldmatrix, stmatrix".

use core::arch::asm;

/// Loads four matrices (`ldmatrix.x4`).
///
/// # Safety
/// All 32 lanes must reach the same call, each with the address of a row.
#[inline(always)]
pub unsafe fn load4(row: u32) -> [u32; 4] {
    let [a, b, c, d]: [u32; 4];
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) row, options(nostack));
    }
    [a, b, c, d]
}

/// Stores four matrices (`stmatrix.x4`).
///
/// # Safety
/// As [`load4`]; no other thread accesses the rows without a barrier in between.
#[inline(always)]
pub unsafe fn store4(row: u32, [a, b, c, d]: [u32; 4]) {
    // SAFETY: the caller vouches for the address.
    unsafe {
        asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{}], {{{}, {}, {}, {}}};",
            in(reg32) row, in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d, options(nostack));
    }
}
