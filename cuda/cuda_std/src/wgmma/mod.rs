//! Warpgroup matrix multiplication: `wgmma.mma_async` (sm_90a).
//!
//! The four warps of a warpgroup multiply a 64 × k matrix A by a k × n matrix B into a 64 × n f32 accumulator D. B lies in
//! shared memory; A lies there too ([`GemmSs`]) or in registers ([`GemmRs`]), as in CUTLASS's `GMMA::…_SS` and `_RS`. PTX
//! ISA, "Asynchronous Warpgroup Level Matrix Instructions".
//!
//! **Accumulator and A fragments** ("Register Fragments"). Warp `w` of the group holds rows `16w..16w + 16`.
//! With `quad = lane / 4` and `pair = 2 · (lane % 4)`, accumulator register `4j + 2h + c` is row
//! `quad + 8h`, column `8j + pair + c`. A's registers hold two elements each; register `4t + r` of k-step
//! `t` is row `quad + 8 · (r % 2)`, columns `16t + 8 · (r / 2) + pair` and the next. So an accumulator of a
//! first GEMM, rounded and packed in pairs in its own order, is the A operand of a second.
//!
//! **Matrices in shared memory** are described by a [`Descriptor`], whose type says along which dimension they lie.
//!
//! A multiplication runs behind the warpgroup's back. Until [`InFlight::wait`] the accumulator and the A
//! registers must not be touched and the shared matrices must stay. ptxas obeys only if it can follow the
//! registers: if it prints C7512, C7514, C7515 or C7517 it has serialised every multiplication.

mod descriptor;

pub use descriptor::{Descriptor, KMajor, KMajorOf, Major, MnMajor};

use cuda_std_macros::wgmma_gemms;

use crate::half::{Bf16, F16};

/// `D = A · B` and `D += A · B` with A (64 × k) in registers and B (k × n) in shared memory, whose major dimension is
/// `MajorB`; `ACC = n / 2` and `A = k / 4` are the registers that a thread holds of D and of A.
///
/// Implemented for the element types, and the shapes listed in this file.
pub trait GemmRs<MajorB: Major, const ACC: usize, const A: usize> {
    /// Starts `D = A · B` and closes it into a group.
    ///
    /// # PTX
    /// `wgmma.fence.sync.aligned`; for each 16 of k
    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T d, a, b-desc, scale-d, 1, 1, imm-trans-b`, with `T` bf16 or f16,
    /// `scale-d` false in the first and `imm-trans-b` 1 where B is MN-major; `wgmma.commit_group.sync.aligned`. PTX ISA,
    /// "wgmma.mma_async".
    ///
    /// # Safety
    /// All threads of the warpgroup reach the same call with the same descriptor, whose matrix is in
    /// shared memory and visible to the async proxy; `acc` and `a` are not touched until waited for.
    unsafe fn multiply(acc: &mut [f32; ACC], a: &[u32; A], b: Descriptor<MajorB>);

    /// Starts `D += A · B` and closes it into a group.
    ///
    /// # PTX
    /// As [`GemmRs::multiply`], with `scale-d` true in the first instruction, too.
    ///
    /// # Safety
    /// As [`GemmRs::multiply`].
    unsafe fn multiply_add(acc: &mut [f32; ACC], a: &[u32; A], b: Descriptor<MajorB>);
}

/// `D = A · B` and `D += A · B` with A (64 × `K`) and B (`K` × n) in shared memory, whose major dimensions are `MajorA`
/// and `MajorB`; `ACC = n / 2` are the registers that a thread holds of D.
///
/// Implemented for the element types, and the shapes listed in this file.
pub trait GemmSs<MajorA: Major, MajorB: Major, const ACC: usize, const K: usize> {
    /// Starts `D = A · B` and closes it into a group.
    ///
    /// # PTX
    /// As [`GemmRs::multiply`], with `a-desc` in place of `a` and `imm-trans-a`, which is 1 where A is MN-major, before
    /// `imm-trans-b`.
    ///
    /// # Safety
    /// As [`GemmRs::multiply`], of both matrices.
    unsafe fn multiply(acc: &mut [f32; ACC], a: Descriptor<MajorA>, b: Descriptor<MajorB>);

    /// Starts `D += A · B` and closes it into a group.
    ///
    /// # PTX
    /// As [`GemmSs::multiply`], with `scale-d` true in the first instruction, too.
    ///
    /// # Safety
    /// As [`GemmSs::multiply`].
    unsafe fn multiply_add(acc: &mut [f32; ACC], a: Descriptor<MajorA>, b: Descriptor<MajorB>);
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

    /// Takes `self`, which another accumulator's [`wait`](Self::wait) has waited for, too: no instruction, but no use moves above it.
    ///
    /// # Safety
    /// That wait was for the group that writes `self`.
    unsafe fn waited(&mut self);
}

// The shapes that kernels use. To support another one, add it to this list.
wgmma_gemms! {
    rs(k): (64, 64), (64, 128), (128, 96), (128, 128);
    ss(k, k): (64, 64), (64, 128), (64, 192), (64, 256), (128, 64), (128, 128), (112, 192), (80, 256);
    ss(mn, mn): (64, 64), (192, 64), (256, 64);
    rs(mn): (64, 64), (64, 128), (96, 128), (128, 64), (128, 112), (128, 128), (192, 64), (192, 112), (256, 64), (256, 80);
}
