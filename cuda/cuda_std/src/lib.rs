//! Device-side standard library for GPU kernels written in Rust.
//!
//! Keeps Rust-CUDA's public names (`#[kernel]`, `thread::*`, `warp::*`) on rustc's own NVPTX backend, and
//! adds the instructions that attention kernels need. Each wrapper's documentation names the PTX it stands
//! for; section names are those of the PTX ISA manual.
//!
//! Two rules shape this crate:
//!
//! * Instructions whose meaning depends on which threads run them together (barriers, shuffles, votes) are
//!   LLVM intrinsics marked `convergent`, because `asm!` is not and LLVM may duplicate it into a branch.
//! * Loads and stores take 32-bit shared-memory addresses or global addresses as integers and name their
//!   state space, as a Rust pointer carries none and would compile to slower generic accesses.
//!
//! Off the GPU the device modules are absent and the crate is almost empty.
#![no_std]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_unadjusted,
        asm_experimental_arch,
        link_llvm_intrinsics,
        stdarch_nvptx
    )
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features, improper_ctypes))]

pub use cuda_std_macros::{append_name, kernel, launch_bounds};

#[cfg(target_arch = "nvptx64")]
pub mod bytes;
#[cfg(target_arch = "nvptx64")]
pub mod cp_async;
#[cfg(target_arch = "nvptx64")]
pub mod global;
#[cfg(target_arch = "nvptx64")]
pub mod half;
#[cfg(target_arch = "nvptx64")]
pub mod ldmatrix;
#[cfg(target_arch = "nvptx64")]
pub mod math;
#[cfg(target_arch = "nvptx64")]
pub mod mma_sync;
#[cfg(target_arch = "nvptx64")]
pub mod shared;
#[cfg(target_arch = "nvptx64")]
pub mod thread;
#[cfg(target_arch = "nvptx64")]
pub mod warp;

#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod cluster;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod grid;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod mbarrier;
#[cfg(target_arch = "nvptx64")]
pub mod named_barrier;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod stmatrix;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod tma;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod warpgroup;
#[cfg(all(target_arch = "nvptx64", gpu_arch = "sm_90a"))]
pub mod wgmma;
