use std::sync::Arc;

use crate::spec::{Layout, Shape, TensorSpec};
use crate::{Backend, DType, Error, ForwardOptions, Memory, Operands, Problem, Tensor};

/// What [`forward`] computes.
pub struct Output<M: Memory> {
    /// `[batch, heads_q, seq_q, head_dim_v]`, in q's dtype. Rows that see no key are 0.
    pub o: Tensor<M>,
    /// Log-sum-exp of each row's scores, in nats: f32 `[batch, heads_q, seq_q, 1]`, contiguous.
    /// Rows that see no key hold −∞.
    pub lse: Tensor<M>,
}

/// Exact attention: `o = softmax(q · kᵀ · softmax_scale) · v` over the keys the mask leaves visible.
///
/// Allocates o and lse and nothing else, queues the work and returns without waiting for it;
/// reading the result waits.
///
/// # Errors
/// [`Error::Argument`] naming the operand or option that is refused, [`Error::OutOfMemory`] or
/// [`Error::Device`].
pub fn forward<B: Backend>(
    backend: &mut B,
    q: &Tensor<B::Memory>,
    k: &Tensor<B::Memory>,
    v: &Tensor<B::Memory>,
    options: &ForwardOptions,
) -> Result<Output<B::Memory>, Error> {
    let o_shape = Shape {
        dim: v.spec().shape.dim,
        ..q.spec().shape
    };
    let o_spec = TensorSpec::contiguous(q.spec().dtype, o_shape, options.o_layout)?;
    let lse_spec = lse_spec(&o_shape)?;
    let problem = Problem::new(*q.spec(), *k.spec(), *v.spec(), o_spec, options)?;
    crate::variant::select(&problem, &backend.capabilities())?;

    let memory = backend.memory();
    let o = allocate(memory, o_spec)?;
    let lse = allocate(memory, lse_spec)?;
    let operands = Operands {
        q: q.address(memory),
        k: k.address(memory),
        v: v.address(memory),
        o: o.address(memory),
        lse: lse.address(memory),
    };
    // SAFETY: a `Tensor` reaches only into its own buffer, which lives as long as the tensor does,
    // and backends free memory in stream order. o and lse were allocated just now, so nobody else
    // knows them; q, k and v are only read. Buffers are aligned to 16 bytes, origins count elements.
    unsafe { backend.forward_raw(&problem, &operands)? };
    Ok(Output { o, lse })
}

/// lse is contiguous f32 `[batch, heads_q, seq_q, 1]`.
pub(crate) fn lse_spec(o_shape: &Shape) -> Result<TensorSpec, Error> {
    let shape = Shape { dim: 1, ..*o_shape };
    TensorSpec::contiguous(DType::F32, shape, Layout::Bhsd)
}

fn allocate<M: Memory>(memory: &mut M, spec: TensorSpec) -> Result<Tensor<M>, Error> {
    let elements = spec.shape.element_count().unwrap_or(0);
    let buffer = memory.alloc(elements * spec.dtype.bytes())?;
    Tensor::new(memory, Arc::new(buffer), 0, spec)
}
