//! The one device.

use crate::{MEMORY_BYTES, code};
use std::ffi::{CStr, c_char, c_int, c_uint};

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *count = 1 };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    if ordinal != 0 {
        return code::INVALID_DEVICE;
    }
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *device = ordinal };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) -> u32 {
    answer_text(c"Fake H1", name, len)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, _device: c_int) -> u32 {
    answer_text(c"0000:1b:00.0", text, len)
}

/// Writes `answer` to the `len` bytes at `text`, which the caller of a driver function passes.
fn answer_text(answer: &CStr, text: *mut c_char, len: c_int) -> u32 {
    let answer = answer.to_bytes_with_nul();
    if (len as usize) < answer.len() {
        return code::INVALID_VALUE;
    }
    // SAFETY: the caller passes `len` writable bytes, and `answer` fits in them.
    unsafe { text.copy_from_nonoverlapping(answer.as_ptr().cast(), answer.len()) };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> u32 {
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *bytes = MEMORY_BYTES };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    _device: c_int,
) -> u32 {
    // The numbers are `CUdevice_attribute` of cuda.h.
    let answer = match attribute {
        16 => 132,       // MULTIPROCESSOR_COUNT
        38 => 50 << 20,  // L2_CACHE_SIZE
        75 => 9,         // COMPUTE_CAPABILITY_MAJOR
        76 => 0,         // COMPUTE_CAPABILITY_MINOR
        97 => 227 << 10, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        115 => 1,        // MEMORY_POOLS_SUPPORTED
        _ => return code::INVALID_VALUE,
    };
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *value = answer };
    code::SUCCESS
}
