//! Shapes of the kernels that measure what a GPU can do.

use kernels_gpu::layout::fragment::{TILE_K, TILE_M, TILE_N};
use kernels_gpu::layout::swizzle_mode::LINE_BYTES;
use kernels_gpu::layout::wgmma::{self, TILE_ROWS};
use kernels_gpu::units::HALF_BYTES;

/// Threads of a block of every probe.
pub const THREADS: u32 = 256;
/// Warps of a block.
pub const WARPS: u32 = THREADS / 32;

/// 16-byte words a thread of the copy loads before it stores them: enough bytes in flight to hide the latency of memory.
pub const COPY_WORDS: u32 = 4;
/// 16-byte words a block copies at a time.
pub const COPY_CHUNK_WORDS: u32 = THREADS * COPY_WORDS;

/// Independent chains a thread of a scalar probe follows, so that no instruction waits for the one before.
pub const CHAINS: u32 = 8;
/// Links of each chain a step adds.
pub const LINKS: u32 = 16;
/// Blocks of a scalar probe an SM holds: all the threads it has on most GPUs, 1536 at least.
pub const SCALAR_BLOCKS_PER_SM: u32 = 6;

/// D of a warp under `mma.sync`, as in a matrix multiplication from registers: each fragment is used several times.
pub const MMA_M: u32 = 4 * TILE_M as u32;
pub const MMA_N: u32 = 4 * TILE_N as u32;
/// Contraction of a step.
pub const MMA_K: u32 = TILE_K as u32;
pub const MMA_BLOCKS_PER_SM: u32 = 2;

/// D of a warpgroup under `wgmma`; the contraction of a step.
pub const WGMMA_M: u32 = TILE_ROWS;
pub const WGMMA_N: u32 = 128;
pub const WGMMA_K: u32 = 128;
pub const WGMMA_WARPGROUPS: u32 = THREADS / wgmma::THREADS;
/// Accumulators of a warpgroup, of which one multiplies while the other is waited for.
pub const WGMMA_ACCUMULATORS: u32 = 2;
pub const WGMMA_BLOCKS_PER_SM: u32 = 1;

/// Columns of a swizzle atom of B in shared memory.
pub const ATOM_COLS: u32 = LINE_BYTES / HALF_BYTES;
/// Bytes of an atom column: all rows of B, 64 columns.
pub const ATOM_COLUMN_BYTES: u32 = WGMMA_K * LINE_BYTES;
/// Dynamic shared memory: B.
pub const WGMMA_SHARED_BYTES: u32 = WGMMA_N / ATOM_COLS * ATOM_COLUMN_BYTES;
