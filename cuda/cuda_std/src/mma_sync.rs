//! Matrix multiply-accumulate by a warp on 16-bit and tf32 operands with f32 accumulators.
//!
//! D = A·B + C with A 16×16 (row-major), B 16×8 (column-major), C and D 16×8. Lane `l`, with `g = l / 4` and
//! `t = l mod 4`, holds (each register two elements, the lower column or row in the lower half):
//!
//! | fragment | registers |
//! |---|---|
//! | A | rows `g, g+8, g, g+8`; columns `2t..2t+2` of the left half for the first two, of the right half for the others |
//! | B | rows `2t..2t+2`, then `2t+8..2t+10`; column `g` |
//! | C, D | row `g`, columns `2t, 2t+1`; then row `g+8` |
//!
//! For tf32, a register an element, A is 16×8 and B 8×8:
//!
//! | fragment | registers |
//! |---|---|
//! | A | rows `g, g+8, g, g+8`; column `t` for the first two, `t+4` for the others |
//! | B | rows `t`, then `t+4`; column `g` |
//! | C, D | as above |
//!
//! PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "Matrix Fragments for mma.m16n8k8" (sm_80).

use core::arch::asm;

use crate::half::{Bf16, F16};

/// Element types that a warp multiplies.
pub trait MmaSync {
    /// `a · b + c`.
    ///
    /// # PTX
    /// `mma.sync.aligned.m16n8k16.row.col.f32.*.*.f32`.
    ///
    /// # Safety
    /// All 32 lanes must reach the same call.
    unsafe fn multiply_add(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4];
}

impl MmaSync for Bf16 {
    #[inline(always)]
    unsafe fn multiply_add(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        // SAFETY: the caller vouches that the whole warp arrives.
        let d =
            unsafe { nvvm_mma_bf16(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
        [d.0, d.1, d.2, d.3]
    }
}

impl MmaSync for F16 {
    #[inline(always)]
    unsafe fn multiply_add(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        let [mut d0, mut d1, mut d2, mut d3] = c;
        // SAFETY: the caller vouches that the whole warp arrives. rustc has no way to declare LLVM's intrinsic, which takes
        // vectors of f16; not `pure`, so that it stays where it is.
        unsafe {
            asm!("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 \
                  {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}}, {{{0}, {1}, {2}, {3}}};",
                inout(reg32) d0, inout(reg32) d1, inout(reg32) d2, inout(reg32) d3,
                in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3],
                in(reg32) b[0], in(reg32) b[1], options(nomem, nostack));
        }
        [d0, d1, d2, d3]
    }
}

/// `a · b + c` of tf32 numbers: of each register of `a` and `b` the tensor core reads the upper 19 bits.
///
/// # PTX
/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`.
///
/// # Safety
/// All 32 lanes must reach the same call.
#[inline(always)]
pub unsafe fn multiply_add_tf32(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    // SAFETY: the caller vouches that the whole warp arrives.
    let d = unsafe { nvvm_mma_tf32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [d.0, d.1, d.2, d.3]
}

#[repr(C)]
struct Accumulator(f32, f32, f32, f32);

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.mma.m16n8k16.row.col.bf16"]
    fn nvvm_mma_bf16(
        a0: u32,
        a1: u32,
        a2: u32,
        a3: u32,
        b0: u32,
        b1: u32,
        c0: f32,
        c1: f32,
        c2: f32,
        c3: f32,
    ) -> Accumulator;

    #[link_name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"]
    fn nvvm_mma_tf32(
        a0: u32,
        a1: u32,
        a2: u32,
        a3: u32,
        b0: u32,
        b1: u32,
        c0: f32,
        c1: f32,
        c2: f32,
        c3: f32,
    ) -> Accumulator;
}
