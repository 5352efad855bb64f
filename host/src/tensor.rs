use std::sync::Arc;

use crate::spec::TensorSpec;
use crate::{Error, HostTensor, Memory};

/// A strided view of a buffer in a backend's memory.
///
/// Views share their buffer; every element a view can reach lies inside it.
pub struct Tensor<M: Memory> {
    spec: TensorSpec,
    /// Place of element `[0, 0, 0, 0]` in the buffer, in elements.
    origin: usize,
    buffer: Arc<M::Buffer>,
}

impl<M: Memory> Clone for Tensor<M> {
    fn clone(&self) -> Self {
        Self {
            spec: self.spec,
            origin: self.origin,
            buffer: Arc::clone(&self.buffer),
        }
    }
}

impl<M: Memory> Tensor<M> {
    /// A view of `buffer` whose element `[0, 0, 0, 0]` is its element number `origin`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `tensor` if the view reaches outside the buffer.
    pub fn new(
        memory: &M,
        buffer: Arc<M::Buffer>,
        origin: usize,
        spec: TensorSpec,
    ) -> Result<Self, Error> {
        check_inside(&spec, origin, memory.size_bytes(&buffer))?;
        Ok(Self {
            spec,
            origin,
            buffer,
        })
    }

    /// Another view of the same buffer; `origin` counts from the buffer's start, in elements.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn view(&self, memory: &M, origin: usize, spec: TensorSpec) -> Result<Self, Error> {
        Self::new(memory, Arc::clone(&self.buffer), origin, spec)
    }

    /// Dtype, shape and strides.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Place of element `[0, 0, 0, 0]` in the buffer, in elements.
    pub fn origin(&self) -> usize {
        self.origin
    }

    /// The buffer this is a view of.
    pub fn buffer(&self) -> &Arc<M::Buffer> {
        &self.buffer
    }

    /// Whether no other view of the buffer exists.
    pub(crate) fn owns_buffer(&mut self) -> bool {
        Arc::get_mut(&mut self.buffer).is_some()
    }

    /// Address of element `[0, 0, 0, 0]`.
    pub fn address(&self, memory: &M) -> u64 {
        memory.address(&self.buffer) + (self.origin * self.spec.dtype.bytes()) as u64
    }

    /// Copies the whole buffer to the host, waiting for the work that produces it.
    ///
    /// # Errors
    /// [`Error::Device`], which may report the failure of an earlier launch.
    pub fn download(&self, memory: &mut M) -> Result<HostTensor, Error> {
        let mut bytes = vec![0; memory.size_bytes(&self.buffer)];
        memory.read(&self.buffer, &mut bytes)?;
        HostTensor::new(self.spec, self.origin, bytes)
    }
}

/// Checks that every element of a view lies in a buffer of `size_bytes`.
pub(crate) fn check_inside(
    spec: &TensorSpec,
    origin: usize,
    size_bytes: usize,
) -> Result<(), Error> {
    let reach = spec.reach("tensor")?;
    let elements = (size_bytes / spec.dtype.bytes()) as i128;
    let first = origin as i128 + i128::from(reach.lowest);
    let last = origin as i128 + i128::from(reach.highest);
    if first < 0 || last >= elements || origin as i128 > elements {
        return Err(Error::argument(
            "tensor",
            format!("its elements lie at {first} to {last} of its buffer"),
            format!("the buffer holds {elements} elements, counted from 0"),
        ));
    }
    Ok(())
}
