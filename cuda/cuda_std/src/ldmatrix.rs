//! Loading 8×8 matrices of 16-bit elements from shared memory into tensor-core fragments.
//!
//! Lanes `8i .. 8i+8` give the addresses of the eight 16-byte rows of matrix `i`; register `i` of lane `l` then
//! holds columns `2(l mod 4) ..+2` of row `l / 4` of matrix `i`, or of its transpose.
//! PTX ISA, "Warp-level matrix load instruction: ldmatrix" (sm_75).

use core::arch::asm;

/// Loads four matrices.
///
/// # PTX
/// `ldmatrix.sync.aligned.m8n8.x4.shared.b16`.
///
/// # Safety
/// All 32 lanes must reach the same call, each with a 16-byte-aligned address in the block's shared memory.
#[inline(always)]
pub unsafe fn load_x4(address: u32) -> [u32; 4] {
    let [a, b, c, d]: [u32; 4];
    // SAFETY: the caller vouches for the addresses and the convergence. Not `pure`, so that it stays where it is.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack));
    }
    [a, b, c, d]
}

/// Loads the transposes of four matrices.
///
/// # PTX
/// `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`.
///
/// # Safety
/// As [`load_x4`].
#[inline(always)]
pub unsafe fn load_x4_transposed(address: u32) -> [u32; 4] {
    let [a, b, c, d]: [u32; 4];
    // SAFETY: as in `load_x4`.
    unsafe {
        asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];",
            out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d, in(reg32) address,
            options(readonly, nostack));
    }
    [a, b, c, d]
}
