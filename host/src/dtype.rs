//! The element types as Rust types.

use half::{bf16, f16};
use kernels_gpu::e4m3;

use crate::DType;

/// Calls `visitor` with the Rust type of `dtype`.
#[inline(always)]
pub(crate) fn visit<V: VisitElement>(dtype: DType, visitor: V) -> V::Output {
    match dtype {
        DType::F32 => visitor.visit::<f32>(),
        DType::F16 => visitor.visit::<f16>(),
        DType::Bf16 => visitor.visit::<bf16>(),
        DType::E4m3 => visitor.visit::<E4m3>(),
    }
}

/// A Rust type that stores one element.
pub(crate) trait Element: bytemuck::Pod + Send + Sync {
    /// Exact: every element type is a subset of f32.
    fn to_f32(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;
    /// [`to_f32`](Self::to_f32) on as many elements as `out` has.
    #[inline(always)]
    fn widen(row: &[Self], out: &mut [f32]) {
        for (out, value) in out.iter_mut().zip(row) {
            *out = value.to_f32();
        }
    }
}

impl Element for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(row: &[Self], out: &mut [f32]) {
        for (out, value) in out.iter_mut().zip(row) {
            *out = widened_f16(value.to_bits());
        }
    }
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// The f16 of these bits, without a branch, so that loops of it become vectors on any processor.
#[inline(always)]
fn widened_f16(bits: u16) -> f32 {
    /// Bits by which an f32's mantissa is longer.
    const MANTISSA_SHIFT: u32 = 23 - 10;
    /// 2 to the difference of the exponent biases, 127 − 15.
    const REBIAS: f32 = f32::from_bits((127 + 127 - 15) << 23);
    /// The product for an infinite f16, 2¹⁶; larger products come from NaNs.
    const INFINITE: f32 = 65536.0;
    let bits = u32::from(bits);
    let magnitude = f32::from_bits((bits & 0x7fff) << MANTISSA_SHIFT) * REBIAS;
    // Infinities and NaNs keep their mantissa under the largest exponent.
    let special = if magnitude >= INFINITE { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

impl Element for bf16 {
    // The upper half of an f32. `half` also sets the quiet bit of NaNs, by a branch that keeps the loop from vectors.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// A code of e4m3.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub(crate) struct E4m3(u8);

impl Element for E4m3 {
    fn to_f32(self) -> f32 {
        e4m3::to_f32(self.0)
    }
    /// Beyond the largest number it is that.
    fn from_f32(value: f32) -> Self {
        Self(e4m3::of_f32(value))
    }
}

/// A computation that is generic over the element type.
pub(crate) trait VisitElement {
    type Output;
    fn visit<T: Element>(self) -> Self::Output;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widened<T: Element>(of_bits: impl Fn(u16) -> T, exact: impl Fn(T) -> f32) {
        let all: Vec<T> = (0..=u16::MAX).map(of_bits).collect();
        let mut wide = vec![0.0; all.len()];
        T::widen(&all, &mut wide);
        for (&narrow, wide) in all.iter().zip(wide) {
            for wide in [wide, narrow.to_f32()] {
                let exact = exact(narrow);
                let is_same = wide.to_bits() == exact.to_bits() || wide.is_nan() && exact.is_nan();
                assert!(is_same, "{exact} became {wide}");
            }
        }
    }

    #[test]
    fn every_element_is_widened_exactly() {
        widened(f16::from_bits, f16::to_f32);
        widened(bf16::from_bits, bf16::to_f32);
    }
}
