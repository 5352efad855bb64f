//! Tensor maps, which nothing here reads.

use crate::context::within;
use crate::{code, log};
use std::ffi::c_uint;

/// Bytes that TMA wants addresses to be multiples of.
const ALIGN_BYTES: usize = 16;

/// Writes the address to the start of the map.
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeTiled(
    tensor_map: *mut [u64; 16],
    _dtype: c_uint,
    rank: c_uint,
    address: usize,
    _dims: *const u64,
    _strides_bytes: *const u64,
    _box_dims: *const u32,
    _element_strides: *const u32,
    _interleave: c_uint,
    _swizzle: c_uint,
    _l2_promotion: c_uint,
    _oob_fill: c_uint,
) -> u32 {
    within(|| {
        log::push(&format!("cuTensorMapEncodeTiled rank {rank}"));
        if !address.is_multiple_of(ALIGN_BYTES) || !(1..=5).contains(&rank) {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller passes a writable map.
        unsafe { *tensor_map = [0; 16] };
        // SAFETY: as above.
        unsafe { (*tensor_map)[0] = address as u64 };
        Ok(())
    })
}
