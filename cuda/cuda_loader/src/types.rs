//! Types of driver functions that are younger than `cust_raw` (CUDA 11.4). Layouts and values are those
//! of `cuda.h`.
#![allow(non_camel_case_types, clippy::upper_case_acronyms)]

use cust_raw::CUstream;
use std::ffi::c_uint;

/// The 128-byte descriptor of a tensor for TMA; opaque, made by `cuTensorMapEncodeTiled`.
///
/// The driver wants it aligned to 64 bytes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUtensorMap {
    pub opaque: [u64; 16],
}

/// Element type of a tensor map.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CUtensorMapDataType {
    UINT8 = 0,
    UINT16 = 1,
    UINT32 = 2,
    INT32 = 3,
    UINT64 = 4,
    INT64 = 5,
    FLOAT16 = 6,
    FLOAT32 = 7,
    FLOAT64 = 8,
    BFLOAT16 = 9,
    FLOAT32_FTZ = 10,
    TFLOAT32 = 11,
    TFLOAT32_FTZ = 12,
}

/// Channel interleaving of a tensor map.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CUtensorMapInterleave {
    NONE = 0,
    BYTES_16 = 1,
    BYTES_32 = 2,
}

/// The span within which TMA permutes 16-byte chunks in shared memory.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CUtensorMapSwizzle {
    NONE = 0,
    BYTES_32 = 1,
    BYTES_64 = 2,
    BYTES_128 = 3,
}

/// The granularity to which TMA widens its L2 requests.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CUtensorMapL2Promotion {
    NONE = 0,
    BYTES_64 = 1,
    BYTES_128 = 2,
    BYTES_256 = 3,
}

/// Value that TMA writes for elements outside the tensor.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CUtensorMapFloatOobFill {
    ZERO = 0,
    NAN_REQUEST_ZERO_FMA = 1,
}

/// Geometry and attributes of `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    pub grid_x: c_uint,
    pub grid_y: c_uint,
    pub grid_z: c_uint,
    pub block_x: c_uint,
    pub block_y: c_uint,
    pub block_z: c_uint,
    pub shared_bytes: c_uint,
    pub stream: CUstream,
    pub attributes: *mut CUlaunchAttribute,
    pub attribute_count: c_uint,
}

/// One attribute of a launch: an identifier, and a value in a 64-byte union.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUlaunchAttribute {
    id: c_uint,
    value: LaunchValue,
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaunchValue([c_uint; 16]);

impl CUlaunchAttribute {
    const CLUSTER_DIMENSION: c_uint = 4;
    const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;

    /// Blocks per cluster along x, y and z.
    pub fn cluster(x: u32, y: u32, z: u32) -> Self {
        Self::new(Self::CLUSTER_DIMENSION, &[x, y, z])
    }

    /// Lets the kernel start before the one ahead of it in the stream has ended.
    pub fn programmatic_stream_serialization() -> Self {
        Self::new(Self::PROGRAMMATIC_STREAM_SERIALIZATION, &[1])
    }

    fn new(id: c_uint, words: &[c_uint]) -> Self {
        let mut value = [0; 16];
        value[..words.len()].copy_from_slice(words);
        Self {
            id,
            value: LaunchValue(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{align_of, offset_of, size_of};

    #[test]
    fn layouts_are_those_of_cuda_h() {
        assert_eq!(
            (size_of::<CUtensorMap>(), align_of::<CUtensorMap>()),
            (128, 64)
        );
        assert_eq!(size_of::<CUlaunchAttribute>(), 72);
        assert_eq!(offset_of!(CUlaunchAttribute, value), 8);
        assert_eq!(size_of::<CUlaunchConfig>(), 56);
        assert_eq!(offset_of!(CUlaunchConfig, stream), 32);
        assert_eq!(offset_of!(CUlaunchConfig, attributes), 40);
        assert_eq!(offset_of!(CUlaunchConfig, attribute_count), 48);
    }
}
