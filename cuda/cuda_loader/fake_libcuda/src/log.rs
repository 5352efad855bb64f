//! The calls made so far, one line each.

use std::ffi::{CString, c_char};
use std::sync::{Mutex, PoisonError};

static CALLS: Mutex<String> = Mutex::new(String::new());

/// Appends one call.
pub fn push(line: &str) {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    calls.push_str(line);
    calls.push('\n');
}

/// The calls since this was last asked, as lines; the test keeps the string.
#[unsafe(no_mangle)]
pub extern "C" fn fake_take_log() -> *mut c_char {
    let calls = std::mem::take(&mut *CALLS.lock().unwrap_or_else(PoisonError::into_inner));
    match CString::new(calls) {
        Ok(calls) => calls.into_raw(),
        Err(_) => std::ptr::null_mut(),
    }
}
