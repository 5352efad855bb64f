//! Modules and their kernels.

use crate::context::within;
use crate::{code, log};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

/// Dynamic shared memory that a kernel may use until an attribute allows it more.
const DEFAULT_SHARED_BYTES: c_int = 48 << 10;

/// The object that a `CUmodule` points to.
pub struct Module {
    ptx: String,
}

/// The object that a `CUfunction` points to.
pub struct Function {
    pub name: String,
    pub max_dynamic_shared_bytes: c_int,
    required_cluster_width: c_int,
}

/// `CUjit_option` numbers of cuda.h.
const ERROR_LOG_BUFFER: c_uint = 5;
const ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;

/// `CUfunction_attribute` numbers of cuda.h.
const MAX_DYNAMIC_SHARED_SIZE_BYTES: c_uint = 8;
const REQUIRED_CLUSTER_WIDTH: c_uint = 11;

/// Writes the compiler's error message to the buffer that the options name.
///
/// # Safety
/// The two arrays hold `count` options as `cuModuleLoadDataEx` takes them.
unsafe fn write_error_log(count: c_uint, options: *const c_uint, values: *const *mut u8) {
    let mut buffer = ptr::null_mut();
    let mut capacity = 0;
    for index in 0..count as usize {
        // SAFETY: `index` is below `count`.
        let (option, value) = unsafe { (*options.add(index), *values.add(index)) };
        match option {
            ERROR_LOG_BUFFER => buffer = value,
            // A size that fits in a pointer is passed in the pointer's place.
            ERROR_LOG_BUFFER_SIZE_BYTES => capacity = value as usize,
            _ => {}
        }
    }
    let text =
        c"ptxas application ptx input, line 7; fatal   : unknown instruction 'bad_instruction'";
    let text = text.to_bytes_with_nul();
    if !buffer.is_null() && text.len() <= capacity {
        // SAFETY: the buffer has room for `capacity` bytes.
        unsafe { buffer.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadDataEx(
    module: *mut *mut Module,
    image: *const c_char,
    option_count: c_uint,
    options: *const c_uint,
    option_values: *const *mut u8,
) -> u32 {
    within(|| {
        // SAFETY: the caller passes NUL-terminated PTX.
        let ptx = unsafe { CStr::from_ptr(image) }
            .to_string_lossy()
            .into_owned();
        if ptx.contains("bad_instruction") {
            // SAFETY: the arrays are as the caller passed them.
            unsafe { write_error_log(option_count, options, option_values) };
            return Err(code::INVALID_PTX);
        }
        if ptx.contains(".version 99") {
            return Err(code::UNSUPPORTED_PTX_VERSION);
        }
        log::push("cuModuleLoadDataEx");
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *module = Box::into_raw(Box::new(Module { ptx })) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: *mut Module) -> u32 {
    within(|| {
        log::push("cuModuleUnload");
        // SAFETY: made by `cuModuleLoadDataEx`; the caller uses it no more.
        drop(unsafe { Box::from_raw(module) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(
    function: *mut *mut Function,
    module: *const Module,
    name: *const c_char,
) -> u32 {
    within(|| {
        // SAFETY: the caller passes a live module and a NUL-terminated name.
        let (module, name) = unsafe { (&*module, CStr::from_ptr(name)) };
        let name = name.to_string_lossy().into_owned();
        if !module.ptx.contains(&format!(".entry {name}(")) {
            return Err(code::NOT_FOUND);
        }
        let made = Function {
            name,
            max_dynamic_shared_bytes: DEFAULT_SHARED_BYTES,
            required_cluster_width: cluster_width(&module.ptx),
        };
        // Leaked: a function lives as long as its module, and a test ends soon.
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *function = Box::into_raw(Box::new(made)) };
        Ok(())
    })
}

/// The first number after `.reqnctapercluster`, 0 without.
fn cluster_width(ptx: &str) -> c_int {
    let after = ptx.split_once(".reqnctapercluster").map(|(_, after)| after);
    let first = after.and_then(|after| after.split(',').next());
    first
        .and_then(|width| width.trim().parse().ok())
        .unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    function: *const Function,
) -> u32 {
    within(|| {
        // SAFETY: the caller passes a live function.
        let function = unsafe { &*function };
        let answer = match attribute {
            MAX_DYNAMIC_SHARED_SIZE_BYTES => function.max_dynamic_shared_bytes,
            REQUIRED_CLUSTER_WIDTH => function.required_cluster_width,
            _ => return Err(code::INVALID_VALUE),
        };
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *value = answer };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(
    function: *mut Function,
    attribute: c_uint,
    value: c_int,
) -> u32 {
    within(|| {
        if attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value > 227 << 10 {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a live function.
        let function = unsafe { &mut *function };
        log::push(&format!("cuFuncSetAttribute {} {value}", function.name));
        function.max_dynamic_shared_bytes = value;
        Ok(())
    })
}
