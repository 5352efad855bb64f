//! The shape of the kernels in which a warp takes a row at a time, or a tile: append, delta, merge, keep masks.

/// Threads of a block.
pub const THREADS: u32 = 128;

/// Rows that a block takes at a time.
pub const ROWS: u32 = THREADS / 32;

/// Blocks of the kernel that makes keep masks that fit an SM at once: warps enough to hide what the generator's products wait for.
pub const KEEP_MASK_BLOCKS: u32 = 8;

/// Lanes that share a row of o in the kernel that computes delta, and rows of a warp there: a chunk, of which the largest |d_o|
/// is kept.
pub const DELTA_LANES: u32 = 8;
pub const DELTA_WARP_ROWS: u64 = (32 / DELTA_LANES) as u64;

/// Blocks of a launch, at most: each takes further rows.
const MAX_GRID: u64 = 1 << 20;

/// Blocks of a launch for so many rows; 0 for none.
pub const fn grid(rows: u64) -> u32 {
    let blocks = rows.div_ceil(ROWS as u64);
    if blocks < MAX_GRID {
        blocks as u32
    } else {
        MAX_GRID as u32
    }
}
