//! libcuda resolved at run time, so that one binary runs with or without an NVIDIA driver.
//!
//! `cust` links against libcuda, which only a machine with a driver or a CUDA toolkit has. This crate
//! defines those functions instead: each is a jump through a slot, and [`load`] opens `libcuda.so.1`
//! and fills the slots. Until then, and where there is no driver, every call returns an error. A binary
//! that uses `cust` needs nothing but a reference to this crate, and `CUDA_LIBRARY_PATH` naming `stub/`
//! when it is built (the workspace's `.cargo/config.toml` sets it).
//!
//! ```
//! match cuda_loader::load() {
//!     Ok(driver) => println!("CUDA {:?}", driver.cuda_version()),
//!     Err(error) => println!("{error}"), // no NVIDIA driver: libcuda.so.1: cannot open …
//! }
//! ```
//!
//! [`sys`] has typed access to the functions that this workspace calls, among them those younger than
//! `cust`, such as [`sys::cuTensorMapEncodeTiled`].

#[macro_use]
mod trampoline;
mod fallback;
mod load;
mod result;
mod symbols;
mod types;

pub use load::{Driver, LIBRARY_VARIABLE, LoadError, load};
pub use result::{CuResult, DriverError};

/// Driver functions and the types of their arguments, under the names of `cuda.h`.
pub mod sys {
    pub use crate::symbols::*;
    pub use crate::types::*;
    pub use cust_raw::{
        CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule,
        CUstream,
    };
}
