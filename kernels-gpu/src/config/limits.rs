//! A block's limits on each GPU, every number once (CUDA C++ Programming Guide, "Technical Specifications").

/// Registers of an SM.
pub const SM_REGISTERS: u32 = 64 * 1024;
/// Shared memory of a block on sm_80.
pub const SM80_SHARED_BYTES: u32 = 163 * 1024;
/// Shared memory of a block on the tightest GPUs that run sm_80 PTX, compute capability 8.6, 8.9 and 12.0.
pub const SM86_SHARED_BYTES: u32 = 99 * 1024;
/// Shared memory of a block on sm_90.
pub const SM90_SHARED_BYTES: u32 = 227 * 1024;
