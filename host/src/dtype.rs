//! The element types as Rust types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::DType;

/// Calls `visitor` with the Rust type of `dtype`.
pub(crate) fn visit<V: VisitElement>(dtype: DType, visitor: V) -> V::Output {
    match dtype {
        DType::F32 => visitor.visit::<f32>(),
        DType::F16 => visitor.visit::<f16>(),
        DType::Bf16 => visitor.visit::<bf16>(),
    }
}

/// A Rust type that stores one element.
pub(crate) trait Element: bytemuck::Pod + Send + Sync {
    /// Exact: every element type is a subset of f32.
    fn to_f32(self) -> f32;
    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;
    /// [`to_f32`](Self::to_f32) on as many elements as `out` has.
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
    // One look at the processor's features a row instead of one an element.
    fn widen(row: &[Self], out: &mut [f32]) {
        row.convert_to_f32_slice(out);
    }
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for bf16 {
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// A computation that is generic over the element type.
pub(crate) trait VisitElement {
    type Output;
    fn visit<T: Element>(self) -> Self::Output;
}
