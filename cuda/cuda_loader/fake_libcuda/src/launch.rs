//! Launches.

use crate::context::within;
use crate::memory::resolve;
use crate::module::Function;
use crate::{code, log};
use std::ffi::{c_int, c_uint};
use std::{ptr, slice};

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: *const Function,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: usize,
    params: *const *const u8,
    extra: *const *const u8,
) -> u32 {
    let config = LaunchConfig {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
        stream,
        attributes: ptr::null(),
        attribute_count: 0,
    };
    launch("cuLaunchKernel", function, &config, params, extra)
}

/// `CUlaunchConfig` of `cuda.h`.
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: *const Attribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute` of `cuda.h`.
#[repr(C, align(8))]
pub struct Attribute {
    id: c_uint,
    padding: c_uint,
    value: [c_uint; 16],
}

/// Launches with one attribute, programmatic dependent launch, and no others.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: *const Function,
    params: *const *const u8,
    extra: *const *const u8,
) -> u32 {
    const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
    // SAFETY: the caller passes a live config, with as many attributes as it says.
    let (config, attributes) = unsafe {
        let config = &*config;
        let count = config.attribute_count as usize;
        (config, slice::from_raw_parts(config.attributes, count))
    };
    match attributes {
        [only] if (only.id, only.value[0]) == (PROGRAMMATIC_STREAM_SERIALIZATION, 1) => {
            launch("cuLaunchKernelEx", function, config, params, extra)
        }
        _ => code::INVALID_VALUE,
    }
}

/// A launch by the driver's function `call`.
fn launch(
    call: &str,
    function: *const Function,
    config: &LaunchConfig,
    params: *const *const u8,
    extra: *const *const u8,
) -> u32 {
    let &LaunchConfig {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
        stream,
        ..
    } = config;
    within(|| {
        // SAFETY: the caller passes a live function.
        let function = unsafe { &*function };
        let name = &function.name;
        log::push(&format!(
            "{call} {name} grid {grid_x}x{grid_y}x{grid_z} \
             block {block_x}x{block_y}x{block_z} shared {shared_bytes} stream {stream:#x}"
        ));
        let threads = block_x * block_y * block_z;
        if grid_x * grid_y * grid_z == 0 || threads == 0 || threads > 1024 || !extra.is_null() {
            return Err(code::INVALID_VALUE);
        }
        if shared_bytes as c_int > function.max_dynamic_shared_bytes {
            return Err(code::INVALID_VALUE);
        }
        match name.as_str() {
            // SAFETY: the caller passes this kernel's four parameters.
            "vector_add" => unsafe { vector_add(params) },
            _ => Ok(()),
        }
    })
}

/// `c[i] = a[i] + b[i]` for i in 0..n.
///
/// # Safety
/// `params` points to four pointers: to three device addresses and to a u32.
unsafe fn vector_add(params: *const *const u8) -> Result<(), u32> {
    // SAFETY: the caller vouches for the four parameters; a blob need not be aligned.
    let address = |index: usize| unsafe { (*params.add(index)).cast::<u64>().read_unaligned() };
    // SAFETY: as above.
    let n = unsafe { (*params.add(3)).cast::<u32>().read_unaligned() } as usize;
    let [a, b, c] = [address(0), address(1), address(2)].map(|address| resolve(address, 4 * n));
    let (a, b, c) = (a?.cast::<f32>(), b?.cast::<f32>(), c?.cast::<f32>());
    for i in 0..n {
        // SAFETY: each range holds n floats.
        unsafe {
            let sum = a.add(i).read_unaligned() + b.add(i).read_unaligned();
            c.add(i).write_unaligned(sum);
        }
    }
    Ok(())
}
