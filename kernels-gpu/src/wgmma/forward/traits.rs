//! One instance of the kernel, and its Q operand, as types.

use core::marker::PhantomData;
use cuda_std::half::Half;
use cuda_std::ldmatrix;
use cuda_std::mma_sync::MmaSync;
use cuda_std::wgmma::{Descriptor, GemmRs, GemmSs, KMajor, MnMajor};

use super::lanes::{Lanes, VEC16_ELEMS};
use crate::config::wgmma::{ATOM_COLS, ATOM_ROW_BYTES, WARPGROUP_ROWS, WgmmaConfig};
use crate::modifiers::Modifiers;

/// One instance: `S_REGS`, `P_REGS` and `O_REGS` are the registers a thread holds of the scores, of the probabilities
/// as an operand and of the output.
pub trait ForwardKernel<const S_REGS: usize, const P_REGS: usize, const O_REGS: usize>:
    TensorMapParams
{
    const CONFIG: WgmmaConfig;
    type Element: Half + MmaSync + GemmRs<MnMajor, O_REGS, P_REGS>;
    type QkOperand: QkOperand<S_REGS>;
    /// What the kernel can do to single pairs.
    type Modifiers: Modifiers;
}

/// Where the launch put the kernel's tensor maps.
pub trait TensorMapParams {
    /// The address of tensor map number `PARAMETER` of the kernel ([`parameter`]).
    ///
    /// [`parameter`]: crate::wgmma::tensor_map::parameter
    fn address<const PARAMETER: u32>() -> u64;
}

/// A warpgroup's Q as the left operand of S = Q Kᵀ: in registers ([`QkRs`]) or in shared memory ([`QkSs`]), as in CUTLASS's
/// `GMMA::…_RS` and `_SS`.
pub trait QkOperand<const S_REGS: usize>: Copy {
    /// Takes Q from shared memory at `q_smem`.
    ///
    /// # Safety
    /// All lanes of the warpgroup reach the same call.
    unsafe fn load(q_smem: u32, lanes: Lanes) -> Self;

    /// Starts S = Q Kᵀ.
    ///
    /// # Safety
    /// As [`GemmRs::multiply`].
    unsafe fn issue_qk(&self, acc_s: &mut [f32; S_REGS], k: Descriptor<KMajor>);

    /// The A fragment of the warp's rows for 16 columns, number `step`; `base` is an address of the block's shared memory.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call; Q is still where [`load`](Self::load) found it.
    unsafe fn fragment(&self, step: u32, base: u32, lanes: Lanes) -> [u32; 4];
}

/// Rows, and columns, that the four 8 × 8 matrices of an `ldmatrix.x4` cover, two of them side by side.
pub(super) const STEP: u32 = 16;

/// Loads the A fragment of a warp's rows for 16 columns of the warpgroup's Q at `q_smem`.
///
/// # Safety
/// All lanes of the warp reach the same call; Q is in shared memory.
#[inline(always)]
unsafe fn load_fragment(q_smem: u32, step: u32, lanes: Lanes) -> [u32; 4] {
    let atom_column = step * STEP / ATOM_COLS * WARPGROUP_ROWS * ATOM_ROW_BYTES;
    let vec16 = step * STEP % ATOM_COLS / VEC16_ELEMS;
    // SAFETY: inside the warpgroup's Q.
    unsafe { ldmatrix::load_x4(q_smem + atom_column + lanes.matrix_row(vec16)) }
}

/// Q in `Q = head_dim / 4` registers.
#[derive(Clone, Copy)]
pub struct QkRs<E, const Q: usize> {
    fragment: [u32; Q],
    element: PhantomData<E>,
}

impl<E: Half + GemmRs<KMajor, S_REGS, Q>, const S_REGS: usize, const Q: usize> QkOperand<S_REGS>
    for QkRs<E, Q>
{
    #[inline(always)]
    unsafe fn load(q_smem: u32, lanes: Lanes) -> Self {
        let lanes = lanes.reload();
        let mut fragment = [0; Q];
        let mut step = 0;
        while step < Q / 4 {
            let four = load_fragment(q_smem, step as u32, lanes);
            fragment[4 * step] = four[0];
            fragment[4 * step + 1] = four[1];
            fragment[4 * step + 2] = four[2];
            fragment[4 * step + 3] = four[3];
            step += 1;
        }
        Self {
            fragment,
            element: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn issue_qk(&self, acc_s: &mut [f32; S_REGS], k: Descriptor<KMajor>) {
        E::multiply(acc_s, &self.fragment, k)
    }

    #[inline(always)]
    unsafe fn fragment(&self, step: u32, _base: u32, _lanes: Lanes) -> [u32; 4] {
        let first = 4 * step as usize;
        [first, first + 1, first + 2, first + 3].map(|register| self.fragment[register])
    }
}

/// Q left in shared memory.
#[derive(Clone, Copy)]
pub struct QkSs<E, const HEAD_DIM: usize> {
    q_smem: Descriptor<KMajor>,
    element: PhantomData<E>,
}

impl<E: Half + GemmSs<KMajor, KMajor, S_REGS, HEAD_DIM>, const S_REGS: usize, const HEAD_DIM: usize>
    QkOperand<S_REGS> for QkSs<E, HEAD_DIM>
{
    #[inline(always)]
    unsafe fn load(q_smem: u32, _lanes: Lanes) -> Self {
        Self {
            q_smem: Descriptor::k_major(q_smem),
            element: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn issue_qk(&self, acc_s: &mut [f32; S_REGS], k: Descriptor<KMajor>) {
        E::multiply(acc_s, self.q_smem, k)
    }

    #[inline(always)]
    unsafe fn fragment(&self, step: u32, base: u32, lanes: Lanes) -> [u32; 4] {
        load_fragment(self.q_smem.address(base), step, lanes)
    }
}
