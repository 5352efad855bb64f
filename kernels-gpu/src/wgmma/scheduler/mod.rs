//! The tile scheduler: which tile a cluster computes next.
//!
//! | file | holds |
//! |---|---|
//! | `schedule.rs` | the order of tiles behind their numbers |
//! | `tile_list/` | the list of a varlen launch's tiles, made on the device before the attention kernel runs |
//! | `tile_pipe.rs` | how a cluster fetches a number and tells its warps (in a kernel) |

mod schedule;
pub mod tile_list;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub(crate) mod tile_pipe;

pub use schedule::{Schedule, TileCoord};
