use half::{bf16, f16};
use kernels_gpu::e4m3;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;
use rayon::prelude::*;

use ferroflash::{DType, Error, HostTensor};
use ferroflash::{Layout, Shape, TensorSpec};

/// A dense tensor of N(0, 1) values, made on all cores.
///
/// # Errors
/// [`Error::Argument`] if its size in bytes does not fit an i64.
pub fn normal(dtype: DType, shape: Shape, layout: Layout, seed: u64) -> Result<HostTensor, Error> {
    let spec = TensorSpec::contiguous(dtype, shape, layout)?;
    let elements = shape.element_count().unwrap_or(0);
    let mut bytes = vec![0; elements * dtype.bytes()];
    let chunks = bytes.par_chunks_mut(CHUNK * dtype.bytes());
    chunks.enumerate().for_each(|(chunk, bytes)| {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(mix(seed, chunk as u64));
        for element in bytes.chunks_exact_mut(dtype.bytes()) {
            write(dtype, rng.sample(StandardNormal), element);
        }
    });
    HostTensor::new(spec, 0, bytes)
}

/// Elements that one generator makes; the values do not depend on the number of threads.
const CHUNK: usize = 1 << 16;

/// Stores `value`, rounded to nearest, in the bytes of one element.
fn write(dtype: DType, value: f32, element: &mut [u8]) {
    match dtype {
        DType::F32 => element.copy_from_slice(&value.to_ne_bytes()),
        DType::F16 => element.copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
        DType::Bf16 => element.copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
        DType::E4m3 => element[0] = e4m3::of_f32(value),
    }
}

/// The seed for part `part` of the inputs made from `seed`.
pub(super) fn mix(seed: u64, part: u64) -> u64 {
    // An odd multiplier is a bijection: parts of one seed never collide.
    seed ^ (part + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_normal_and_not_repeated() {
        let shape = Shape {
            batch: 1,
            heads: 2,
            seq: 1 << 12,
            dim: 1 << 5,
        };
        let tensor = normal(DType::F32, shape, Layout::Bshd, 7).unwrap();
        let values = tensor.to_f32(Layout::Bshd);
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01);
        assert_ne!(values[..CHUNK], values[CHUNK..2 * CHUNK]);
    }
}
