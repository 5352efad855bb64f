use ferroflash::DType;
use half::{bf16, f16};
use kernels_gpu::e4m3;

/// `value` as `dtype` holds it: to nearest, ties to even, ∞ beyond its range.
pub fn round(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F32 => value,
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        DType::E4m3 => e4m3::to_f32(e4m3::of_f32(value)),
    }
}
