use std::fmt;
use std::sync::Arc;

use crate::host_tensor::host_zeros;
use crate::memory::check_owned_operand;
use crate::spec::{Layout, Shape, TensorSpec};
use crate::{DType, Error, HostTensor, Memory};

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

impl<M: Memory> fmt::Debug for Tensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, origin, .. } = self;
        f.debug_struct("Tensor")
            .field("spec", spec)
            .field("origin", origin)
            .finish_non_exhaustive()
    }
}

impl<M: Memory> Tensor<M> {
    /// A view of `buffer` whose element `[0, 0, 0, 0]` is its element number `origin`.
    ///
    /// # Errors
    /// [`Error::Argument`] on `tensor` if the view reaches outside the buffer, or `memory` did not allocate it.
    pub fn new(
        memory: &M,
        buffer: Arc<M::Buffer>,
        origin: usize,
        spec: TensorSpec,
    ) -> Result<Self, Error> {
        check_owned_operand(memory, &buffer, "tensor")?;
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

    /// Whether an element of this view may be one of `other`'s; exact as
    /// [`TensorSpec::may_share_elements`] is.
    pub(crate) fn may_share_elements(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
            && self
                .spec
                .may_share_elements(self.origin, &other.spec, other.origin)
    }

    /// Refuses this tensor, passed as `argument`, if `memory` did not allocate its buffer.
    pub(crate) fn check_owned(&self, memory: &M, argument: &'static str) -> Result<(), Error> {
        check_owned_operand(memory, &self.buffer, argument)
    }

    /// Address of element `[0, 0, 0, 0]`.
    ///
    /// # Panics
    /// If another memory than `memory` allocated the buffer.
    pub fn address(&self, memory: &M) -> u64 {
        memory.address(&self.buffer) + (self.origin * self.spec.dtype.bytes()) as u64
    }

    /// Copies the view to the host, from its first element in memory to its last and whatever lies between them, waiting
    /// for the work that produces it.
    ///
    /// # Errors
    /// [`Error::Device`], which may report the failure of an earlier launch; [`Error::OutOfMemory`] if the host has no
    /// room; [`Error::Argument`] if another memory allocated the buffer.
    pub fn download(&self, memory: &mut M) -> Result<HostTensor, Error> {
        let reach = self.spec.reach("tensor")?;
        let element = self.spec.dtype.bytes();
        let first = self.origin as i64 + reach.lowest;
        let elements = (reach.highest - reach.lowest + 1) as usize;
        let mut bytes = host_zeros(elements * element)?;
        memory.read_at(&self.buffer, first as usize * element, &mut bytes)?;
        HostTensor::new(self.spec, reach.lowest.unsigned_abs() as usize, bytes)
    }
}

/// Spec of a forward pass's lse: contiguous f32 `[batch, heads_q, seq_q, 1]`.
pub(crate) fn lse_spec(o_shape: &Shape) -> Result<TensorSpec, Error> {
    let shape = Shape { dim: 1, ..*o_shape };
    TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
}

/// Refuses a tensor that is not of the spec that a plan was made for.
pub(crate) fn check_planned<M: Memory>(
    argument: &'static str,
    tensor: &Tensor<M>,
    planned: &TensorSpec,
) -> Result<(), Error> {
    if tensor.spec() == planned {
        return Ok(());
    }
    let wrong = format!("it is {:?}", tensor.spec());
    Err(Error::argument(
        argument,
        wrong,
        format!("{planned:?}, as planned"),
    ))
}

/// A new tensor with arbitrary contents.
pub(crate) fn allocate<M: Memory>(memory: &mut M, spec: TensorSpec) -> Result<Tensor<M>, Error> {
    let elements = spec.shape.element_count().unwrap_or(0);
    let buffer = memory.alloc(elements * spec.dtype.bytes())?;
    Tensor::new(memory, Arc::new(buffer), 0, spec)
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
