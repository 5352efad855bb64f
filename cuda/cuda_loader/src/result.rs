//! Result codes of driver functions.

use crate::symbols::{cuGetErrorName, cuGetErrorString};
use std::ffi::{CStr, c_char, c_uint};
use std::fmt;
use std::ptr;

/// The result code of a driver function.
///
/// An integer, where `cust_raw` has an enum: drivers return codes that are younger than any list.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a driver call may have failed"]
pub struct CuResult(pub c_uint);

impl CuResult {
    pub const SUCCESS: Self = Self(0);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const NO_DEVICE: Self = Self(100);
    pub const NOT_FOUND: Self = Self(500);

    /// `Err` for anything but success.
    pub fn ok(self) -> Result<(), DriverError> {
        match self {
            Self::SUCCESS => Ok(()),
            code => Err(DriverError { code }),
        }
    }
}

/// A driver call that failed. Displays as `CUDA_ERROR_OUT_OF_MEMORY (2): out of memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverError {
    pub code: CuResult,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CuResult(code) = self.code;
        let name = driver_text(code, cuGetErrorName).unwrap_or("CUDA error");
        match driver_text(code, cuGetErrorString) {
            Some(text) => write!(f, "{name} ({code}): {text}"),
            None => write!(f, "{name} ({code})"),
        }
    }
}

impl std::error::Error for DriverError {}

type TextFunction = unsafe extern "C" fn(c_uint, *mut *const c_char) -> CuResult;

/// The driver's text for a result code, if it knows the code.
fn driver_text(code: c_uint, text_of: TextFunction) -> Option<&'static str> {
    let mut text = ptr::null();
    // SAFETY: `text` is writable; before a driver is loaded the fallback answers.
    let result = unsafe { text_of(code, &mut text) };
    if result != CuResult::SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver points `text` to a NUL-terminated constant.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}
