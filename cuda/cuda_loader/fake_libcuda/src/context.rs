//! One primary context, and each thread's stack of current contexts.

use crate::code;
use crate::log;
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};

/// The handle of the only context.
const PRIMARY: usize = 0xC0;

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Fails like the driver where no context is current to the calling thread.
pub fn require() -> Result<(), u32> {
    match STACK.with_borrow(|stack| stack.last().copied()) {
        Some(PRIMARY) => Ok(()),
        _ => Err(code::INVALID_CONTEXT),
    }
}

/// The result code of a function that needs a current context.
pub fn within(body: impl FnOnce() -> Result<(), u32>) -> u32 {
    require()
        .and_then(|()| body())
        .err()
        .unwrap_or(code::SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    if device != 0 {
        return code::INVALID_DEVICE;
    }
    log::push("cuDevicePrimaryCtxRetain");
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *context = PRIMARY };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> u32 {
    log::push("cuDevicePrimaryCtxRelease");
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: *mut usize) -> u32 {
    let current = STACK.with_borrow(|stack| stack.last().copied());
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *context = current.unwrap_or(0) };
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: usize) -> u32 {
    STACK.with_borrow_mut(|stack| stack.push(context));
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> u32 {
    let Some(top) = STACK.with_borrow_mut(Vec::pop) else {
        return code::INVALID_CONTEXT;
    };
    if !context.is_null() {
        // SAFETY: not null, hence writable.
        unsafe { *context = top };
    }
    code::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(
    stream: *mut usize,
    _flags: c_uint,
    _priority: c_int,
) -> u32 {
    within(|| {
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *stream = 0x57 };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(_stream: usize) -> u32 {
    within(|| {
        log::push("cuStreamDestroy");
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    within(|| {
        log::push(&format!("cuStreamSynchronize {stream:#x}"));
        Ok(())
    })
}

/// The stream that is being captured, active (1) whenever somebody asks; no other is.
const CAPTURED: usize = 0xCA97;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: usize, status: *mut c_uint) -> u32 {
    within(|| {
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *status = (stream == CAPTURED).into() };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> u32 {
    within(|| {
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *event = 0xE0 };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(_event: usize, stream: usize) -> u32 {
    within(|| {
        log::push(&format!("cuEventRecord {stream:#x}"));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(_event: usize) -> u32 {
    within(|| {
        log::push("cuEventSynchronize");
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, _start: usize, _end: usize) -> u32 {
    within(|| {
        // SAFETY: the caller passes a writable pointer, as to the driver.
        unsafe { *milliseconds = 1.5 };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(_event: usize) -> u32 {
    within(|| Ok(()))
}
