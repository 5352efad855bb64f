//! The parts of attention that do not depend on how a kernel multiplies: which keys a tile of queries
//! sees, which tile a block works on, and the running softmax.

pub mod block_range;
pub mod schedule;
#[cfg(target_arch = "nvptx64")]
pub mod score;
#[cfg(target_arch = "nvptx64")]
pub mod softmax;
