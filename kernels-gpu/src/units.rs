//! Sizes and powers that kernels, their tables and the host share.

/// Bytes of an f32.
pub const F32_BYTES: u32 = size_of::<f32>() as u32;
/// Bytes of an f16 or bf16: of an element of q, k, v and o in the kernels that multiply on tensor cores.
pub const HALF_BYTES: u32 = size_of::<u16>() as u32;

/// Lowest bit of an f32's exponent field, and the field's value for 2⁰.
pub const EXPONENT_SHIFT: u32 = f32::MANTISSA_DIGITS - 1;
pub const EXPONENT_BIAS: u32 = f32::MAX_EXP as u32 - 1;
/// Exponent of f32's smallest normal number; `exp2` of less is 0 on the GPU.
pub const SMALLEST_EXPONENT: i32 = f32::MIN_EXP - 1;

/// 2^`exponent`, a normal number.
#[inline(always)]
pub const fn pow2(exponent: i32) -> f32 {
    f32::from_bits(((EXPONENT_BIAS as i32 + exponent) as u32) << EXPONENT_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two() {
        assert_eq!(pow2(0), 1.0);
        assert_eq!(pow2(40), (1u64 << 40) as f32);
        assert_eq!(pow2(SMALLEST_EXPONENT), f32::MIN_POSITIVE);
        assert_eq!(pow2(f32::MAX_EXP - 1) * (2.0 - f32::EPSILON), f32::MAX);
    }
}
