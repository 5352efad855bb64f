//! A copy: reads and writes every byte once, 16 at a time.

use cuda_std::global::{load4_bits, store4_bits};
use cuda_std::thread::{block_idx_x, grid_dim_x, thread_idx_x};

use super::at;
use super::params::ProbeParams;
use crate::config::probe::{COPY_CHUNK_WORDS, COPY_WORDS, THREADS};

/// # Safety
/// `params` describes live allocations that do not overlap.
#[inline(always)]
pub unsafe fn copy(params: &ProbeParams) {
    let mut chunk = block_idx_x() as u64 * COPY_CHUNK_WORDS as u64;
    while chunk < params.count {
        let first = chunk + thread_idx_x() as u64;
        let word = |index: usize| first + index as u64 * THREADS as u64;
        let mut words = [[0; 4]; COPY_WORDS as usize];
        for index in 0..COPY_WORDS as usize {
            if word(index) < params.count {
                // SAFETY: the word exists.
                words[index] = unsafe { load4_bits(at::<[u32; 4]>(params.a, word(index))) };
            }
        }
        for index in 0..COPY_WORDS as usize {
            if word(index) < params.count {
                // SAFETY: the word exists and is this thread's.
                unsafe { store4_bits(at::<[u32; 4]>(params.out, word(index)), words[index]) };
            }
        }
        chunk += grid_dim_x() as u64 * COPY_CHUNK_WORDS as u64;
    }
}
