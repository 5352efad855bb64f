//! Tile shapes: one row per kernel instance, with the measured reason beside it; one file per family.

pub mod ladder;
pub mod mma;
pub mod probe;
pub mod simt;
pub mod tile_list;
pub mod wgmma;

/// Shared memory a block may use on sm_80 (CUDA C++ Programming Guide, "Technical Specifications").
pub const SM80_SHARED_BYTES: u32 = 163 * 1024;
/// Shared memory a block may use on the tightest GPUs that run sm_80 PTX, compute capability 8.6, 8.9 and 12.0 (same
/// table).
pub const SM86_SHARED_BYTES: u32 = 99 * 1024;
