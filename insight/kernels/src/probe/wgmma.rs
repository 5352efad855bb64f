//! `wgmma` with A from registers and B from shared memory: every warpgroup adds A · B to each of its D, once a step.

use cuda_std::global::{load_u32, load4_bits, store};
use cuda_std::half::Bf16;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::wgmma::{Descriptor, GemmRs, InFlight};
use cuda_std::{shared, tma};

use super::at;
use super::params::ProbeParams;
use crate::config::probe::{
    ATOM_COLS, ATOM_COLUMN_BYTES, THREADS, WGMMA_ACCUMULATORS, WGMMA_K, WGMMA_M, WGMMA_N,
    WGMMA_WARPGROUPS,
};
use kernels_gpu::layout::fragment::TILE_K;
use kernels_gpu::layout::swizzle::VEC16_BYTES;
use kernels_gpu::layout::swizzle_mode::{LINE_BYTES, SwizzleMode};
use kernels_gpu::layout::wgmma::{self, accumulator, operand_a};

/// Registers that a thread holds of D, and of A.
const D: usize = WGMMA_N as usize / 2;
const A: usize = WGMMA_K as usize / 4;
/// Elements of a vec16.
const VEC16_ELEMS: u32 = VEC16_BYTES / 2;

/// # Safety
/// `params` describes live allocations; the launch has the instance's block size and shared memory.
#[inline(always)]
pub unsafe fn multiply(params: &ProbeParams) {
    let thread = thread_idx_x() % wgmma::THREADS;
    let mut a = [0; A];
    for register in 0..A {
        let (row, column) = operand_a(thread, register as u32 % 4, 0);
        let index = row * WGMMA_K + register as u32 / 4 * TILE_K as u32 + column;
        // SAFETY: the pair of elements exists.
        a[register] = unsafe { load_u32(at::<u16>(params.a, index as u64)) };
    }
    // SAFETY: the caller vouches for B and for the block's shared memory.
    unsafe { store_b(params.b) };
    tma::fence_shared();
    // SAFETY: the whole block is here.
    unsafe { sync_threads() };
    let b = Descriptor::mn_major(shared::dynamic_base(), ATOM_COLUMN_BYTES);

    let (mut first, mut second) = ([0.0; D], [0.0; D]);
    let mut step = 0;
    while step < params.count {
        // SAFETY: all threads of the warpgroup take as many steps; B is visible and stays; each D is waited for.
        unsafe {
            Bf16::multiply_add(&mut first, &a, b);
            Bf16::multiply_add(&mut second, &a, b);
            first.wait::<1>();
            second.wait::<0>();
        }
        step += 1;
    }
    // SAFETY: the caller vouches for `out`; each D has been waited for.
    unsafe {
        store_d(params.out, 0, &first);
        store_d(params.out, 1, &second);
    }
}

/// Copies B to shared memory, in atom columns of 64 columns with the 128-byte swizzle, the block together.
///
/// # Safety
/// `b` is the address of B, and the block has the instance's shared memory.
#[inline(always)]
unsafe fn store_b(b: u64) {
    let row_vec16s = WGMMA_N / VEC16_ELEMS;
    let mut vec16 = thread_idx_x();
    while vec16 < WGMMA_K * row_vec16s {
        let (row, column) = (vec16 / row_vec16s, vec16 % row_vec16s * VEC16_ELEMS);
        let atom_column = column / ATOM_COLS * ATOM_COLUMN_BYTES;
        let offset = row * LINE_BYTES + column % ATOM_COLS / VEC16_ELEMS * VEC16_BYTES;
        // SAFETY: the vec16 exists in B, and is this thread's in shared memory.
        unsafe {
            let words = load4_bits(at::<[u32; 4]>(b, vec16 as u64));
            let place = shared::dynamic_base() + atom_column + SwizzleMode::B128.apply(offset);
            shared::store4_bits(place, words);
        }
        vec16 += THREADS;
    }
}

/// Stores accumulator `number` of this warpgroup.
///
/// # Safety
/// `out` is the address of the launch's result.
#[inline(always)]
unsafe fn store_d(out: u64, number: u32, d: &[f32; D]) {
    let thread = thread_idx_x() % wgmma::THREADS;
    let warpgroup = block_idx_x() * WGMMA_WARPGROUPS + thread_idx_x() / wgmma::THREADS;
    let matrix = (warpgroup * WGMMA_ACCUMULATORS + number) as u64;
    for register in 0..D {
        let (row, column) = accumulator(thread, register as u32);
        let index = (matrix * WGMMA_M as u64 + row as u64) * WGMMA_N as u64 + column as u64;
        // SAFETY: the element exists and is this thread's.
        unsafe { store(at::<f32>(out, index), d[register]) };
    }
}
