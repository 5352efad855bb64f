//! The list of a varlen launch's tiles, made on the device from lengths that the host need not know.
//!
//! Cluster m-blocks counted from the longest sequence would mostly be empty, and sequences differ in length as tiles of one
//! do. So a kernel of one block runs before the attention kernel and lists the tiles of one pack that have rows, in the
//! order in which they are best taken ([`Order`]): a counting sort, by how many keys a tile sees. A tile's number then
//! stands for an entry and a pack of heads ([`Schedule::get_listed`](super::schedule::Schedule::get_listed)).
//!
//! | file | holds |
//! |---|---|
//! | `entry.rs` | the format of the list |
//! | `workspace.rs` | the list's place in memory, and its largest size |
//! | `params.rs` | the kernel's parameters |
//! | `order.rs` | the two orders |
//! | `sequence.rs` | one sequence: its tiles, and how many keys they see |
//! | `build.rs` | the algorithm, for any team of threads |
//! | `team.rs` | the operations that it needs of a team |
//! | `block.rs` | a thread block as a team |

mod build;
mod entry;
mod order;
mod params;
mod sequence;
mod team;
mod workspace;

#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
mod block;
#[cfg(test)]
mod tests;

pub use build::build;
pub use entry::{ListHeader, ListedCoord, ListedTile};
pub use order::Order;
pub use params::TileListParams;
pub use sequence::ListedSequence;
pub use team::Team;
pub use workspace::{Workspace, capacity};

#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_80"))]
pub(crate) use block::list_tiles;
