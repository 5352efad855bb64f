//! Warpgroup matrix multiplication: `wgmma.mma_async` (sm_90a).
//!
//! The four warps of a warpgroup multiply a 64 × k matrix A by a k × n matrix B from shared memory into a
//! 64 × n f32 accumulator. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//!
//! **Accumulator and A fragments** ("Register Fragments"). Warp `w` of the group holds rows `16w..16w + 16`.
//! With `quad = lane / 4` and `pair = 2 · (lane % 4)`, accumulator register `4j + 2h + c` is row
//! `quad + 8h`, column `8j + pair + c`. A's registers hold two elements each; register `4t + r` of k-step
//! `t` is row `quad + 8 · (r % 2)`, columns `16t + 8 · (r / 2) + pair` and the next. So an accumulator of a
//! first GEMM, rounded and packed in pairs in its own order, is the A operand of a second.
//!
//! **Matrices in shared memory** lie in panels of 64 elements (128 bytes) with the 128-byte swizzle, as TMA
//! writes them: `[panel][row][128 bytes]`, every panel 1024-byte aligned ("Strides", "Matrix Descriptor").
//!
//! A multiplication runs behind the warpgroup's back. Until [`InFlight::wait`] the accumulator and the A
//! registers must not be touched and the shared matrices must stay. ptxas obeys only if it can follow the
//! registers: if it prints C7512, C7514, C7515 or C7517 it has serialised every multiplication.

use cuda_std_macros::wgmma_gemms;

use crate::half::{Bf16, F16};

/// A matrix in shared memory ("Matrix Descriptor Format"): address, strides and swizzle.
#[derive(Clone, Copy)]
pub struct Descriptor(u64);

/// Bytes of a panel's row, and of the unit in which a descriptor counts.
const ROW_BYTES: u32 = 128;
const UNIT: u32 = 16;
/// Shared-memory addresses a descriptor can name.
const ADDRESS_MASK: u32 = 0x3_ffff;
/// Distance of groups of eight rows, the height of a core matrix.
const STRIDE_OFFSET: u64 = ((8 * ROW_BYTES / UNIT) as u64) << 32;
/// The 128-byte swizzle.
const SWIZZLE_128B: u64 = 1 << 62;

impl Descriptor {
    /// A matrix whose rows run along K (K-major). The leading offset is unused with this swizzle.
    #[inline(always)]
    pub fn k_major(address: u32) -> Self {
        Self::new(address, UNIT)
    }

    /// A matrix whose rows run along M or N (MN-major), with `panel_bytes` from a panel to the next.
    #[inline(always)]
    pub fn mn_major(address: u32, panel_bytes: u32) -> Self {
        Self::new(address, panel_bytes)
    }

    #[inline(always)]
    fn new(address: u32, leading_bytes: u32) -> Self {
        let address = ((address & ADDRESS_MASK) / UNIT) as u64;
        let leading = ((leading_bytes / UNIT) as u64) << 16;
        Self(address | leading | STRIDE_OFFSET | SWIZZLE_128B)
    }

    /// The shared-memory address the matrix begins at, in the block that `base`, any of its addresses, belongs to: a
    /// descriptor lacks the bits that tell the blocks of a cluster apart.
    #[inline(always)]
    pub fn address(self, base: u32) -> u32 {
        base & !ADDRESS_MASK | self.0 as u32 * UNIT & ADDRESS_MASK
    }

    /// The same matrix `bytes` further on, a multiple of 1024.
    #[inline(always)]
    pub fn offset(self, bytes: u32) -> Self {
        Self(self.0 + (bytes / UNIT) as u64)
    }
}

/// `D = A · Bᵀ`: A (64 × k) in registers, B (n × k) K-major in shared memory; `ACC = n / 2`, `A = k / 4`.
pub trait ScoresFromRegisters<const ACC: usize, const A: usize> {
    /// Starts the multiplication and closes it into a group.
    ///
    /// # PTX
    /// `wgmma.fence`, `wgmma.mma_async.m64nNk16` for each 16 of k, `wgmma.commit_group`.
    ///
    /// # Safety
    /// All threads of the warpgroup reach the same call with the same descriptor, whose matrix is in
    /// shared memory and visible to the async proxy; `acc` and `a` are not touched until waited for.
    unsafe fn multiply(acc: &mut [f32; ACC], a: &[u32; A], b: Descriptor);
}

/// `D = A · Bᵀ`: A (64 × `K`) and B (n × `K`) K-major in shared memory; `ACC = n / 2`.
pub trait ScoresFromShared<const ACC: usize, const K: usize> {
    /// Starts the multiplication and closes it into a group.
    ///
    /// # PTX
    /// As [`ScoresFromRegisters::multiply`].
    ///
    /// # Safety
    /// As [`ScoresFromRegisters::multiply`].
    unsafe fn multiply(acc: &mut [f32; ACC], a: Descriptor, b: Descriptor);
}

/// `D = A · B + D`: A (64 × k) in registers, B (k × n) MN-major in shared memory; `ACC = n / 2`,
/// `A = k / 4`.
pub trait OutputFromRegisters<const ACC: usize, const A: usize> {
    /// Starts the multiplication and closes it into a group. Where `accumulate` is 0, `acc` is overwritten.
    ///
    /// # PTX
    /// As [`ScoresFromRegisters::multiply`], the first step with a run-time `scale-d`.
    ///
    /// # Safety
    /// As [`ScoresFromRegisters::multiply`].
    unsafe fn multiply_add(acc: &mut [f32; ACC], a: &[u32; A], b: Descriptor, accumulate: u32);
}

/// The accumulator of a multiplication that may still run.
pub trait InFlight {
    /// Waits until at most the latest `PENDING` groups of this warpgroup run; `self` is written by an older
    /// one.
    ///
    /// # PTX
    /// `wgmma.wait_group`.
    ///
    /// # Safety
    /// All threads of the warpgroup reach the same call.
    unsafe fn wait<const PENDING: u32>(&mut self);
}

wgmma_gemms! {
    scores_from_registers: (128, 96), (128, 128);
    scores_from_shared: (128, 64), (112, 192), (80, 256);
    output_from_registers: (64, 128), (96, 128), (128, 112), (128, 128), (192, 112), (256, 80);
}
