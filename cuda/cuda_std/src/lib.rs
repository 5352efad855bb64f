//! Device-side standard library for Rust GPU kernels.
#![no_std]
pub use cuda_std_macros::{kernel, launch_bounds};
