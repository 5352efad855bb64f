//! Descriptors for TMA, encoded by the driver.

use std::ffi::c_void;

use cuda_loader::{
    DriverError,
    sys::{
        self, CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapFloatOobFill as OobFill,
        CUtensorMapInterleave as Interleave, CUtensorMapL2Promotion as L2Promotion,
        CUtensorMapSwizzle as Swizzle,
    },
};
use kernels_gpu::dtype::DType;
use kernels_gpu::wgmma::tensor_map::{MAX_RANK, TensorMap, TensorMapSpec};

/// Encodes a descriptor (CUDA driver API, `cuTensorMapEncodeTiled`). [`TensorMapSpec`] gives the arguments that are the
/// same for all operands.
pub(super) fn encode(dtype: DType, spec: &TensorMapSpec) -> Result<TensorMap, DriverError> {
    let mut map = CUtensorMap { opaque: [0; 16] };
    let dtype = match dtype {
        DType::F32 => DataType::FLOAT32,
        DType::F16 => DataType::FLOAT16,
        DType::Bf16 => DataType::BFLOAT16,
        DType::E4m3 => unreachable!("no kernel reads a cache by tensor maps"),
    };
    // SAFETY: `map` is writable and the arrays are as long as the largest rank asks for. The driver only
    // encodes the address.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            dtype,
            spec.rank as u32,
            spec.address as *mut c_void,
            spec.dims.as_ptr(),
            spec.strides.as_ptr(),
            spec.box_dims.as_ptr(),
            [1; MAX_RANK].as_ptr(),
            Interleave::NONE,
            Swizzle::BYTES_128,
            L2Promotion::BYTES_128,
            OobFill::ZERO,
        )
    }
    .ok()?;
    Ok(TensorMap(map.opaque))
}
