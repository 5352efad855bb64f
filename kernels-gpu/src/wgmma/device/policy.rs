//! What distinguishes one instance of the kernel from another, as zero-sized types.

use core::marker::PhantomData;
use cuda_std::half::Half;
use cuda_std::ldmatrix;
use cuda_std::mma_sync::MmaSync;
use cuda_std::wgmma::{Descriptor, GemmRs, GemmSs, KMajor, MnMajor};

use super::lanes::Lanes;
use crate::config::wgmma::{PANEL_COLS, PANEL_ROW_BYTES, WARPGROUP_ROWS, WgmmaTile};

/// One instance: `S`, `P` and `O` are the registers a thread holds of the scores, of the packed
/// probabilities and of the output.
pub trait Policy<const S: usize, const P: usize, const O: usize>: Maps {
    const TILE: WgmmaTile;
    type Element: Half + MmaSync + GemmRs<MnMajor, O, P>;
    type Query: Query<S>;
}

/// Where the launch put the kernel's tensor maps.
pub trait Maps {
    /// The address of tensor map number `PARAMETER` of the kernel ([`parameter`]).
    ///
    /// [`parameter`]: crate::wgmma::tensor_map::parameter
    fn address<const PARAMETER: u32>() -> u64;
}

/// A warpgroup's Q as the left operand of S = Q Kᵀ.
pub trait Query<const S: usize>: Copy {
    /// Takes up Q, which is in shared memory at `q_smem`.
    ///
    /// # Safety
    /// All lanes of the warpgroup reach the same call.
    unsafe fn load(q_smem: u32, lanes: Lanes) -> Self;

    /// Starts S = Q Kᵀ.
    ///
    /// # Safety
    /// As [`GemmRs::multiply`].
    unsafe fn scores(&self, acc_s: &mut [f32; S], k: Descriptor<KMajor>);

    /// The A fragment of the warp's rows for 16 columns, number `step`; `base` is an address of the block's shared memory.
    ///
    /// # Safety
    /// All lanes of the warp reach the same call; Q is still where it was taken up.
    unsafe fn fragment(&self, step: u32, base: u32, lanes: Lanes) -> [u32; 4];
}

/// Rows, and columns, that four 8 × 8 matrices cover, two of them side by side.
pub(super) const STEP: u32 = 16;

/// Loads the A fragment of a warp's rows for 16 columns of the warpgroup's Q at `q_smem`.
///
/// # Safety
/// All lanes of the warp reach the same call; Q is in shared memory.
#[inline(always)]
unsafe fn load_fragment(q_smem: u32, step: u32, lanes: Lanes) -> [u32; 4] {
    let panel = step * STEP / PANEL_COLS * WARPGROUP_ROWS * PANEL_ROW_BYTES;
    let chunk = step * STEP % PANEL_COLS / 8;
    // SAFETY: forwarded to the caller; inside the warpgroup's Q.
    unsafe { ldmatrix::load_x4(q_smem + panel + lanes.matrix_row(chunk)) }
}

/// Q in `Q = head_dim / 4` registers.
#[derive(Clone, Copy)]
pub struct RegisterQuery<E, const Q: usize> {
    fragment: [u32; Q],
    element: PhantomData<E>,
}

impl<E: Half + GemmRs<KMajor, S, Q>, const S: usize, const Q: usize> Query<S>
    for RegisterQuery<E, Q>
{
    #[inline(always)]
    unsafe fn load(q_smem: u32, lanes: Lanes) -> Self {
        let lanes = lanes.anew();
        let mut fragment = [0; Q];
        let mut step = 0;
        while step < Q / 4 {
            // SAFETY: forwarded to the caller.
            let four = unsafe { load_fragment(q_smem, step as u32, lanes) };
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
    unsafe fn scores(&self, acc_s: &mut [f32; S], k: Descriptor<KMajor>) {
        // SAFETY: forwarded to the caller.
        unsafe { E::multiply(acc_s, &self.fragment, k) }
    }

    #[inline(always)]
    unsafe fn fragment(&self, step: u32, _base: u32, _lanes: Lanes) -> [u32; 4] {
        let first = 4 * step as usize;
        [first, first + 1, first + 2, first + 3].map(|register| self.fragment[register])
    }
}

/// Q left in shared memory.
#[derive(Clone, Copy)]
pub struct SharedQuery<E, const HEAD_DIM: usize> {
    q_smem: Descriptor<KMajor>,
    element: PhantomData<E>,
}

impl<E: Half + GemmSs<KMajor, KMajor, S, HEAD_DIM>, const S: usize, const HEAD_DIM: usize> Query<S>
    for SharedQuery<E, HEAD_DIM>
{
    #[inline(always)]
    unsafe fn load(q_smem: u32, _lanes: Lanes) -> Self {
        Self {
            q_smem: Descriptor::k_major(q_smem),
            element: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn scores(&self, acc_s: &mut [f32; S], k: Descriptor<KMajor>) {
        // SAFETY: forwarded to the caller.
        unsafe { E::multiply(acc_s, self.q_smem, k) }
    }

    #[inline(always)]
    unsafe fn fragment(&self, step: u32, base: u32, lanes: Lanes) -> [u32; 4] {
        // SAFETY: forwarded to the caller.
        unsafe { load_fragment(self.q_smem.address(base), step, lanes) }
    }
}
