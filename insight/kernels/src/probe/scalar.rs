//! Chains of one scalar instruction.

use cuda_std::global::store;
use cuda_std::math;
use cuda_std::thread::{block_idx_x, thread_idx_x};

use super::at;
use super::params::ProbeParams;
use crate::config::probe::{CHAINS, LINKS, THREADS};

/// Chains of `x · factor + term`.
///
/// # Safety
/// `params` describes live allocations.
#[inline(always)]
pub unsafe fn fma(params: &ProbeParams) {
    // SAFETY: the caller's contract is this function's.
    unsafe { chains(params, |x| math::fma(x, params.factor, params.term)) }
}

/// Chains of 2^(x · factor + term): an exponential after each FMA, as in a softmax; the FMA is by far the faster of the
/// two.
///
/// # Safety
/// As [`fma`].
#[inline(always)]
pub unsafe fn exp2(params: &ProbeParams) {
    // SAFETY: the caller's contract is this function's.
    unsafe {
        chains(params, |x| {
            math::exp2(math::fma(x, params.factor, params.term))
        })
    }
}

/// Follows chains from [`start`], `LINKS` links a step, and stores their ends.
///
/// # Safety
/// `params.out` holds an f32 for each chain of the launch.
#[inline(always)]
unsafe fn chains(params: &ProbeParams, link: impl Fn(f32) -> f32) {
    let mut ends: [f32; CHAINS as usize] = [0.0; CHAINS as usize];
    for chain in 0..CHAINS as usize {
        ends[chain] = super::params::start(thread_idx_x() * CHAINS + chain as u32);
    }
    let mut step = 0;
    while step < params.count {
        for _ in 0..LINKS {
            for chain in 0..CHAINS as usize {
                ends[chain] = link(ends[chain]);
            }
        }
        step += 1;
    }
    let thread = block_idx_x() as u64 * THREADS as u64 + thread_idx_x() as u64;
    for chain in 0..CHAINS as usize {
        let index = thread * CHAINS as u64 + chain as u64;
        // SAFETY: the element exists and is this thread's.
        unsafe { store(at::<f32>(params.out, index), ends[chain]) };
    }
}
