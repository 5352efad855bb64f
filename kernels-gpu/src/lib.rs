//! ferroflash's GPU kernels, and the numbers host and device agree on.
//!
//! Compiled twice: by `cuda_builder` to PTX, with the kernels; and as an ordinary library for the host,
//! without them, so that tile shapes, shared-memory sizes and kernel names are written once.
//!
//! Start reading at [`instances`], which lists every kernel, then the family's own module.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(test)]
extern crate std;

pub mod abi;
pub mod config;
pub mod dtype;
pub mod e4m3;
pub mod instances;
pub mod layout;
pub mod math;
pub mod modifiers;
pub mod score;
pub mod tile;
pub mod units;
pub mod wgmma;

#[cfg(target_arch = "nvptx64")]
mod append;
// Public for the kernels that `score_mod!` makes in crates of users'.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod backward;
#[cfg(target_arch = "nvptx64")]
mod merge;
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod mma;
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod simt;

#[doc(hidden)]
pub use cuda_std;

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
