//! Four score modifications. Each is a struct of numbers, what it makes of a score or which pairs it hides, and one line that
//! compiles it into the attention kernels.
//!
//! Compiled twice: to PTX, with the kernels; and for the host, where the CPU backend and the tests call the same functions.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

mod block_holes;
mod distance_bias;
mod document_causal;
mod sliding_window;

pub use block_holes::BlockHoles;
pub use distance_bias::DistanceBias;
pub use document_causal::DocumentCausal;
pub use sliding_window::SlidingWindow;

kernels_gpu::score_mod!(DistanceBias as distance_bias for f32 64, bf16 64, f16 64);
kernels_gpu::score_mod!(DocumentCausal as document_causal for f32 64, bf16 64);
kernels_gpu::score_mod!(BlockHoles as block_holes for f32 64, bf16 64);
kernels_gpu::score_mod!(SlidingWindow as sliding_window for bf16 128);
