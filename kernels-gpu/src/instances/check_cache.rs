//! The kernel that checks a cache: in a table of its own, as no problem is given to it alone.

use super::{Instance, Operation};
use crate::config::check_cache::THREADS;

/// Checks lengths and pages of a cache for a Hopper kernel, which follows it in the same stream. Launched with a block for each
/// sequence.
///
/// # Safety
/// The arrays of `params` are live.
#[cfg(all(feature = "entries", target_arch = "nvptx64", gpu_arch = "sm_80"))]
#[cuda_std::launch_bounds(THREADS)]
#[cuda_std::kernel]
pub unsafe fn fa_check_cache_wgmma_sm80(params: crate::abi::CheckCacheParams) {
    // SAFETY: forwarded to the launch.
    unsafe { crate::wgmma::check_cache::check_cache(&params) }
}

/// The row of the kernel that checks the caches of every Hopper kernel. It takes
/// [`CheckCacheParams`](crate::abi::CheckCacheParams) and touches no elements.
pub const CHECK_CACHE: Instance = Instance::before_wgmma(
    "fa_check_cache_wgmma_sm80",
    Operation::CheckCache,
    THREADS,
    0,
);
