//! Running a kernel: clusters in parallel, the warps of a cluster interleaved on one CPU thread.

mod access;
mod alu;
mod atomics;
mod barrier;
mod bits;
mod bulk;
mod cluster;
mod cluster_barrier;
mod config;
mod converge;
mod convert;
mod copies;
mod diagnose;
mod exchange;
mod float;
mod integer;
mod launch;
mod mbarrier;
mod order;
mod place;
mod registers;
mod regs;
mod rmw;
mod rng;
mod shape;
mod step;
mod stream;
mod tensor;
mod vector;
mod warp;
mod work;

pub(crate) use cluster::State;
pub use config::{Checks, LaunchConfig, Report};
pub use launch::launch;
pub(crate) use mbarrier::Key as MbarrierKey;
pub(crate) use place::Memory;
pub(crate) use regs::{LANES, lanes};
pub use stream::Stream;
pub(crate) use warp::{PendingCopy, Warp, WarpId};

/// Most shared memory of a CTA on sm_90 (CUDA programming guide, technical specifications).
pub(crate) const MAX_SHARED_BYTES: u64 = 227 * 1024;

/// Most threads of a CTA.
pub(crate) const MAX_THREADS: u64 = 1024;

/// Windows of the generic address space. As on hardware, every shared address names a CTA of the cluster by its
/// rank, `address >> RANK_SHIFT`, those a CTA has of its own variables too.
pub(crate) mod window {
    pub(crate) const SHARED: u64 = 1 << 32;
    pub(crate) const LOCAL: u64 = 2 << 32;
    pub(crate) const PARAM: u64 = 3 << 32;
    /// First address above the windows.
    pub(crate) const END: u64 = 4 << 32;
    pub(crate) const RANK_SHIFT: u32 = 24;

    /// Where the shared memory of CTA `rank` begins in the shared window.
    pub(crate) fn of_rank(rank: u32) -> u64 {
        u64::from(rank) << RANK_SHIFT
    }
}
