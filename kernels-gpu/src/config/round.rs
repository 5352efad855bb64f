//! The shape of the kernels that round dq: a warp takes 16 rows at a time.

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Rows that a block takes at a time.
pub const ROWS: u32 = THREADS / 32 * 16;

/// Blocks on a multiprocessor, at least: the rare repair of a row must not take the registers of warps that wait for memory.
pub const MIN_BLOCKS: u32 = 3;
