//! Kernels for teaching and measuring: the steps that lead to ferroflash's own ([`ladder`]), and probes of a GPU's
//! rates ([`probe`]). They are a crate of their own, so that no user of ferroflash carries them.
//!
//! Compiled twice, as `kernels-gpu` is: to PTX, with the kernels; and for the host, without them.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod config;
pub mod instances;
pub mod ladder;
pub mod probe;
