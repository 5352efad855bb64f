//! Compiles a Rust kernel crate to PTX with rustc's own NVPTX backend.
//!
//! ```no_run
//! let build = cuda_builder::CudaBuilder::new("kernels-gpu")
//!     .arch("sm_80")
//!     .copy_to("target/ptx")
//!     .build()?;
//! for kernel in &build.kernels {
//!     println!("{} -> {}", kernel.entry, kernel.ptx.display());
//! }
//! # Ok::<(), cuda_builder::Error>(())
//! ```
//!
//! Nothing here installs anything, but for the module `install`, which the feature of that name adds and no build script
//! asks for.
//!
//! Keeps the names of Rust-CUDA's `cuda_builder`. The steps, one module each: find a compiler that can build `core` for
//! the GPU ([`compiler`]); run cargo with it (`cargo`); take what is for debuggers out of the
//! text ([`ptx::lines`]); write the directives rustc cannot emit ([`ptx::finish`]); cut
//! the text into one module per kernel ([`ptx::split`]); describe them in [`manifest`]. A crate that carries PTX calls
//! [`build_script::embed`] from its build script. To check PTX, [`tool`] finds NVIDIA's programs, [`ptxas`] assembles
//! and reads the report, [`nvdisasm`] disassembles the result.

pub mod build_script;
mod builder;
mod cargo;
pub mod compiler;
mod embed;
mod error;
#[cfg(feature = "install")]
pub mod install;
pub mod manifest;
pub mod nvdisasm;
pub mod ptx;
pub mod ptxas;
mod run;
pub mod tool;

pub use builder::{CudaBuilder, LINES_EXTENSION};
pub use compiler::Compiler;
pub use error::Error;
pub use manifest::{Build, Kernel};
pub use ptx_pack::Compression;
pub use tool::Tool;
