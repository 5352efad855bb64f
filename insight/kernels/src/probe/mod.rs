//! Kernels that measure a GPU's rates, for the roof of `ferroflash roofline --device measured`. Each stores a result
//! that the host computes too. [`crate::instances::PROBES`] lists them; no problem is ever given to them.
//!
//! | kernel | measures | leaves, f32 unless said |
//! |---|---|---|
//! | `copy` | bandwidth of device memory | the words it read |
//! | `scalar`: `fma` | rate of f32 arithmetic | `[block][thread][chain]`, x ← x · factor + term |
//! | `scalar`: `exp2` | rate of `ex2.approx` | `[block][thread][chain]`, x ← 2^(x · factor + term) |
//! | `mma` | rate of `mma.sync` | `[block][warp][64][32]`, D ← A · B + D |
//! | `wgmma` | rate of `wgmma` | `[block][warpgroup][accumulator][64][128]`, D ← A · B + D |
//!
//! A is row-major `[m][k]` and B row-major `[k][n]`, both bf16, the same in every warp.

pub mod params;

#[cfg(target_arch = "nvptx64")]
pub mod copy;
#[cfg(target_arch = "nvptx64")]
pub mod mma;
#[cfg(target_arch = "nvptx64")]
pub mod scalar;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod wgmma;

/// Address of element `index` of an array of `T`.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
const fn at<T>(base: u64, index: u64) -> u64 {
    base + index * size_of::<T>() as u64
}
