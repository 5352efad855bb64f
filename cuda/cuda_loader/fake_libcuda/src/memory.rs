//! Device memory: allocations of host memory, at most [`MEMORY_BYTES`] of them.

use crate::context::within;
use crate::{MEMORY_BYTES, code, log};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Live allocations by address.
static ALLOCATIONS: Mutex<BTreeMap<u64, Box<[u8]>>> = Mutex::new(BTreeMap::new());

/// The `bytes` bytes at `address`, if they lie inside one allocation.
pub fn resolve(address: u64, bytes: usize) -> Result<*mut u8, u32> {
    let mut allocations = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let (start, data) = allocations
        .range_mut(..=address)
        .next_back()
        .ok_or(code::INVALID_VALUE)?;
    let offset = (address - start) as usize;
    match data.get_mut(offset..offset.saturating_add(bytes)) {
        Some(range) => Ok(range.as_mut_ptr()),
        None => Err(code::INVALID_VALUE),
    }
}

fn allocate(address: *mut u64, bytes: usize) -> Result<(), u32> {
    let mut allocations = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let in_use: usize = allocations.values().map(|data| data.len()).sum();
    if bytes == 0 || bytes > MEMORY_BYTES {
        return Err(code::INVALID_VALUE);
    }
    if bytes > MEMORY_BYTES - in_use {
        return Err(code::OUT_OF_MEMORY);
    }
    let data = vec![0xA5; bytes].into_boxed_slice();
    // SAFETY: the caller passes a writable pointer, as to the driver.
    unsafe { *address = data.as_ptr() as u64 };
    allocations.insert(data.as_ptr() as u64, data);
    Ok(())
}

fn free(address: u64) -> Result<(), u32> {
    let mut allocations = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    allocations
        .remove(&address)
        .map(drop)
        .ok_or(code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    within(|| allocate(address, bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    within(|| free(address))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: usize) -> u32 {
    log::push(&format!("cuMemAllocAsync {bytes} {stream:#x}"));
    within(|| allocate(address, bytes))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: u64, stream: usize) -> u32 {
    log::push(&format!("cuMemFreeAsync {stream:#x}"));
    within(|| free(address))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    within(|| {
        let allocations = ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use: usize = allocations.values().map(|data| data.len()).sum();
        // SAFETY: the caller passes writable pointers, as to the driver.
        unsafe {
            *free = MEMORY_BYTES - in_use;
            *total = MEMORY_BYTES;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const u8,
    bytes: usize,
    _stream: usize,
) -> u32 {
    within(|| {
        let to = resolve(to, bytes)?;
        // SAFETY: `to` holds `bytes` bytes; the caller vouches for `from`.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut u8,
    from: u64,
    bytes: usize,
    _stream: usize,
) -> u32 {
    within(|| {
        let from = resolve(from, bytes)?;
        // SAFETY: `from` holds `bytes` bytes; the caller vouches for `to`.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        Ok(())
    })
}
