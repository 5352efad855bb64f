//! A libcuda without a GPU: it keeps device memory in host memory, runs one kernel, and logs calls.
//!
//! Tests load the cdylib through `FERROFLASH_LIBCUDA`. It is as strict as a driver about what callers get
//! wrong unnoticed: a call without a current context, an address that was never allocated, more dynamic
//! shared memory than the kernel was allowed. It has one device of compute capability 9.0 with
//! [`MEMORY_BYTES`] of memory. A module fails to compile if its PTX contains `bad_instruction` or is of
//! version 99. The one kernel it can run is `vector_add(a, b, c, n)` over f32; launches of others only
//! appear in the log.
//!
//! Of CUDA's functions it has those that `ferroflash` needs; `cuOccupancyMaxActiveClusters` is left
//! out, as in an old driver. The signatures are those of `cuda.h`.
#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

mod context;
mod device;
mod launch;
mod log;
mod memory;
mod module;
mod tensor_map;

use std::ffi::{c_char, c_uint};

/// Result codes of `cuda.h` that the fake returns.
mod code {
    pub const SUCCESS: u32 = 0;
    pub const INVALID_VALUE: u32 = 1;
    pub const OUT_OF_MEMORY: u32 = 2;
    pub const INVALID_DEVICE: u32 = 101;
    pub const INVALID_CONTEXT: u32 = 201;
    pub const INVALID_PTX: u32 = 218;
    pub const UNSUPPORTED_PTX_VERSION: u32 = 222;
    pub const NOT_FOUND: u32 = 500;
}

/// The size of the fake device's memory.
pub const MEMORY_BYTES: usize = 1 << 30;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> u32 {
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 {
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *version = 13_010 };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(value: c_uint, name: *mut *const c_char) -> u32 {
    let known = match value {
        code::INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        code::OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        code::INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        code::INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        code::INVALID_PTX => c"CUDA_ERROR_INVALID_PTX",
        code::UNSUPPORTED_PTX_VERSION => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        code::NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        _ => return code::INVALID_VALUE,
    };
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *name = known.as_ptr() };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(value: c_uint, text: *mut *const c_char) -> u32 {
    let known = match value {
        code::OUT_OF_MEMORY => c"out of memory",
        _ => return code::INVALID_VALUE,
    };
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *text = known.as_ptr() };
    code::SUCCESS
}
