//! Functions that the trampolines jump to until a driver is loaded.

use crate::{CuResult, load, symbols};
use std::ffi::{c_char, c_int, c_uint};

/// Any function that needs a driver.
pub(crate) extern "C" fn not_initialized() -> CuResult {
    CuResult::NOT_INITIALIZED
}

/// A function that the loaded driver is too old to have.
pub(crate) extern "C" fn not_found() -> CuResult {
    CuResult::NOT_FOUND
}

/// `cuInit`: loads the driver, then initialises it.
pub(crate) extern "C" fn init(flags: c_uint) -> CuResult {
    match load() {
        // SAFETY: the slot now holds the driver's own function, which takes any flags.
        Ok(_) => unsafe { symbols::cuInit(flags) },
        Err(_) => CuResult::NO_DEVICE,
    }
}

/// `cuDriverGetVersion`, which programs may call before `cuInit`.
pub(crate) extern "C" fn driver_version(version: *mut c_int) -> CuResult {
    match load() {
        // SAFETY: the slot now holds the driver's own function, and the caller vouches for `version`.
        Ok(_) => unsafe { symbols::cuDriverGetVersion(version) },
        Err(_) => CuResult::NO_DEVICE,
    }
}

/// `cuGetErrorName` and `cuGetErrorString`: `cust` panics while it formats an error if these fail.
pub(crate) extern "C" fn error_text(_code: c_uint, text: *mut *const c_char) -> CuResult {
    // SAFETY: the caller passes a writable pointer, as for the driver's own function.
    unsafe { *text = c"no NVIDIA driver is loaded".as_ptr() };
    CuResult::SUCCESS
}
