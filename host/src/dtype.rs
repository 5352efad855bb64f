use std::fmt;
use std::str::FromStr;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Error;

/// Element type of q, k, v and o. The log-sum-exp is always [`DType::F32`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: binary32's exponent, 8 significant bits.
    Bf16,
}

impl DType {
    /// Every element type.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Size of one element, in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Calls `visitor` with the Rust type of this dtype.
    pub(crate) fn visit<V: VisitElement>(self, visitor: V) -> V::Output {
        match self {
            Self::F32 => visitor.visit::<f32>(),
            Self::F16 => visitor.visit::<f16>(),
            Self::Bf16 => visitor.visit::<bf16>(),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        found.ok_or_else(|| {
            Error::argument(
                "dtype",
                format!("unknown dtype `{text}`"),
                "f32, f16 or bf16",
            )
        })
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
