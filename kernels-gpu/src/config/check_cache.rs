//! The shape of the kernel that checks a cache (`wgmma/check_cache.rs`).

/// Threads of a block, which looks at the pages of a sequence.
pub const THREADS: u32 = 256;
