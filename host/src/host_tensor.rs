use std::ops::Range;
use std::sync::Arc;

use crate::dtype::{Element, VisitElement, visit};
use crate::spec::{Layout, Shape, TensorSpec};
use crate::tensor::check_inside;
use crate::{DType, Error, Memory, Tensor};

/// A strided view of bytes on the host: where inputs come from and results go to.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    spec: TensorSpec,
    /// Place of element `[0, 0, 0, 0]`, in elements.
    origin: usize,
    /// Elements in little-endian order, whatever their alignment.
    bytes: Vec<u8>,
}

impl HostTensor {
    /// A view of `bytes` whose element `[0, 0, 0, 0]` is element number `origin`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `tensor` if the view reaches outside the bytes.
    pub fn new(spec: TensorSpec, origin: usize, bytes: Vec<u8>) -> Result<Self, Error> {
        check_inside(&spec, origin, bytes.len())?;
        Ok(Self {
            spec,
            origin,
            bytes,
        })
    }

    /// A dense f32 tensor; `values` come in the axis order of `layout`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `tensor` if there are not exactly as many values as elements.
    pub fn from_f32(values: &[f32], shape: Shape, layout: Layout) -> Result<Self, Error> {
        let spec = TensorSpec::contiguous(DType::F32, shape, layout)?;
        if shape.element_count() != Some(values.len()) {
            return Err(Error::argument(
                "tensor",
                format!("{} values were given for {shape:?}", values.len()),
                "one value for each element",
            ));
        }
        Self::new(spec, 0, bytemuck::cast_slice(values).to_vec())
    }

    /// Dtype, shape and strides.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Every byte of the buffer this is a view of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies the buffer into a backend's memory, under the same view.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::Device`].
    pub fn upload<M: Memory>(&self, memory: &mut M) -> Result<Tensor<M>, Error> {
        let mut buffer = memory.alloc(self.bytes.len())?;
        memory.write(&mut buffer, &self.bytes)?;
        Tensor::new(memory, Arc::new(buffer), self.origin, self.spec)
    }

    /// One element, widened to f32, which is exact.
    ///
    /// # Panics
    /// If an index is not below the size of its axis.
    pub fn get(&self, batch: usize, head: usize, seq: usize, dim: usize) -> f32 {
        let shape = self.spec.shape;
        assert!(batch < shape.batch && head < shape.heads && seq < shape.seq && dim < shape.dim);
        visit(
            self.spec.dtype,
            ReadOne {
                bytes: &self.bytes,
                index: self.index(batch, head, seq, dim),
            },
        )
    }

    /// Some rows of one head, `[seq][dim]`, widened to f64.
    pub fn head(&self, batch: usize, head: usize, rows: Range<usize>) -> Vec<f64> {
        visit(
            self.spec.dtype,
            ReadHead {
                tensor: self,
                batch,
                head,
                rows,
            },
        )
    }

    /// Overwrites one element, rounding to the tensor's dtype.
    ///
    /// # Panics
    /// If an index is not below the size of its axis.
    pub fn set(&mut self, batch: usize, head: usize, seq: usize, dim: usize, value: f32) {
        let shape = self.spec.shape;
        assert!(batch < shape.batch && head < shape.heads && seq < shape.seq && dim < shape.dim);
        let index = self.index(batch, head, seq, dim);
        visit(
            self.spec.dtype,
            WriteOne {
                bytes: &mut self.bytes,
                index,
                value,
            },
        );
    }

    /// Overwrites a row with `value` of each component, rounding to the tensor's dtype.
    ///
    /// # Panics
    /// If an index is not below the size of its axis.
    pub fn set_row(
        &mut self,
        batch: usize,
        head: usize,
        seq: usize,
        value: impl FnMut(usize) -> f32,
    ) {
        let shape = self.spec.shape;
        assert!(batch < shape.batch && head < shape.heads && seq < shape.seq);
        if shape.dim == 0 {
            return;
        }
        let first = self.index(batch, head, seq, 0);
        visit(
            self.spec.dtype,
            WriteRow {
                bytes: &mut self.bytes,
                first,
                stride: self.spec.strides.dim,
                dims: shape.dim,
                value,
            },
        );
    }

    /// Overwrites every element, in the axis order batch, head, seq, dim.
    pub fn fill(&mut self, mut value: impl FnMut() -> f32) {
        let shape = self.spec.shape;
        for batch in 0..shape.batch {
            for head in 0..shape.heads {
                for seq in 0..shape.seq {
                    self.set_row(batch, head, seq, |_| value());
                }
            }
        }
    }

    /// All elements as f32, in the axis order of `layout`.
    ///
    /// # Panics
    /// If there is no memory for them: a view with strides of 0 may have far more elements than bytes.
    pub fn to_f32(&self, layout: Layout) -> Vec<f32> {
        self.try_to_f32(layout).expect("memory for every element")
    }

    /// As [`to_f32`](Self::to_f32).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn try_to_f32(&self, layout: Layout) -> Result<Vec<f32>, Error> {
        let shape = self.spec.shape;
        let [_, outer, inner, _] = layout.dims(shape);
        let mut values = Vec::new();
        let count = shape.element_count().unwrap_or(usize::MAX);
        values
            .try_reserve_exact(count)
            .map_err(|_| host_out_of_memory(count.saturating_mul(size_of::<f32>())))?;
        for batch in 0..shape.batch {
            for x in 0..outer {
                for y in 0..inner {
                    let (head, seq) = match layout {
                        Layout::Bshd => (y, x),
                        Layout::Bhsd => (x, y),
                    };
                    values.extend((0..shape.dim).map(|dim| self.get(batch, head, seq, dim)));
                }
            }
        }
        Ok(values)
    }

    /// A dense copy in another dtype, rounding to nearest.
    ///
    /// # Errors
    /// [`Error::Argument`] if the copy's size in bytes does not fit an i64, [`Error::OutOfMemory`] if the host has no room.
    pub fn convert(&self, dtype: DType, layout: Layout) -> Result<Self, Error> {
        let spec = TensorSpec::contiguous(dtype, self.spec.shape, layout)?;
        let bytes = visit(dtype, Narrow(&self.try_to_f32(layout)?));
        Self::new(spec, 0, bytes)
    }

    fn index(&self, batch: usize, head: usize, seq: usize, dim: usize) -> usize {
        (self.origin as i64 + self.spec.offset(batch, head, seq, dim)) as usize
    }
}

/// So many bytes of 0.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub(crate) fn host_zeros(bytes: usize) -> Result<Vec<u8>, Error> {
    let mut zeros = Vec::new();
    let reserved = zeros.try_reserve_exact(bytes);
    reserved.map_err(|_| host_out_of_memory(bytes))?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

/// The host has no room for `bytes` more.
fn host_out_of_memory(bytes: usize) -> Error {
    Error::OutOfMemory {
        device: "host".into(),
        requested_bytes: bytes as u64,
        free: "a size that the host's memory holds is needed".into(),
    }
}

struct ReadOne<'a> {
    bytes: &'a [u8],
    index: usize,
}

impl VisitElement for ReadOne<'_> {
    type Output = f32;
    fn visit<T: Element>(self) -> f32 {
        let start = self.index * size_of::<T>();
        bytemuck::pod_read_unaligned::<T>(&self.bytes[start..start + size_of::<T>()]).to_f32()
    }
}

struct ReadHead<'a> {
    tensor: &'a HostTensor,
    batch: usize,
    head: usize,
    rows: Range<usize>,
}

impl VisitElement for ReadHead<'_> {
    type Output = Vec<f64>;
    fn visit<T: Element>(self) -> Vec<f64> {
        let dim = self.tensor.spec.shape.dim;
        let stride = self.tensor.spec.strides.dim;
        let mut values = Vec::with_capacity(self.rows.len() * dim);
        for position in self.rows {
            let row = self.tensor.index(self.batch, self.head, position, 0) as i64;
            values.extend((0..dim as i64).map(|d| {
                let start = (row + d * stride) as usize * size_of::<T>();
                let bytes = &self.tensor.bytes[start..start + size_of::<T>()];
                f64::from(bytemuck::pod_read_unaligned::<T>(bytes).to_f32())
            }));
        }
        values
    }
}

struct WriteOne<'a> {
    bytes: &'a mut [u8],
    index: usize,
    value: f32,
}

impl VisitElement for WriteOne<'_> {
    type Output = ();
    fn visit<T: Element>(self) {
        let start = self.index * size_of::<T>();
        let value = T::from_f32(self.value);
        self.bytes[start..start + size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
    }
}

struct WriteRow<'a, F> {
    bytes: &'a mut [u8],
    /// Index of component 0, and from one to the next, in elements.
    first: usize,
    stride: i64,
    dims: usize,
    value: F,
}

impl<F: FnMut(usize) -> f32> VisitElement for WriteRow<'_, F> {
    type Output = ();
    fn visit<T: Element>(mut self) {
        for dim in 0..self.dims {
            let index = self.first as i64 + dim as i64 * self.stride;
            let start = index as usize * size_of::<T>();
            let value = T::from_f32((self.value)(dim));
            self.bytes[start..start + size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&value));
        }
    }
}

/// Rounds f32 values to another dtype, as bytes.
pub(crate) struct Narrow<'a>(pub &'a [f32]);

impl VisitElement for Narrow<'_> {
    type Output = Vec<u8>;
    fn visit<T: Element>(self) -> Vec<u8> {
        let narrow: Vec<T> = self.0.iter().map(|&value| T::from_f32(value)).collect();
        bytemuck::cast_slice(&narrow).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strides;

    #[test]
    fn copies_that_no_memory_holds_are_refused() {
        let shape = Shape {
            batch: 1 << 30,
            heads: 1 << 15,
            seq: 1 << 15,
            dim: 1,
        };
        let strides = Strides {
            batch: 0,
            head: 0,
            seq: 0,
            dim: 0,
        };
        let spec = TensorSpec {
            dtype: DType::F32,
            shape,
            strides,
        };
        let one = HostTensor::new(spec, 0, vec![0; 4]).unwrap();
        let copy = one.convert(DType::F16, Layout::Bshd);
        assert!(matches!(copy, Err(Error::OutOfMemory { .. })));
    }
}
