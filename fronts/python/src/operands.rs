use ferroflash::{DType, Error, Layout, Strides, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A tensor as Python gives it: `(address, shape, strides)`, of rank 4, or of rank 3 as `[rows, heads, dim]`.
pub struct Operand {
    pub address: u64,
    pub spec: TensorSpec,
}

impl Operand {
    /// Takes `(address, shape, strides)` with the axes in the order of `layout`.
    ///
    /// # Errors
    /// A ValueError that names the operand, if it is of another rank; a TypeError if it is something else.
    pub fn new(
        name: &'static str,
        given: &Bound<'_, PyTuple>,
        dtype: DType,
        layout: Layout,
    ) -> PyResult<Self> {
        let (sizes, strides) = (given.get_item(1)?, given.get_item(2)?);
        let (sizes, strides) = (sizes.cast::<PyTuple>()?, strides.cast::<PyTuple>()?);
        // The rows of packed sequences are those of one batch entry.
        let (sizes, strides) = match (layout, sizes.len()) {
            (_, 4) => (sizes.extract()?, strides.extract()?),
            (Layout::Bshd, 3) => {
                let ((rows, heads, dim), (s, h, d)) = (sizes.extract()?, strides.extract()?);
                ((1, rows, heads, dim), (0, s, h, d))
            }
            (_, rank) => {
                let allowed = "it must have 4, or 3 where sequences are packed";
                let error = Error::argument(name, format!("it has {rank} axes"), allowed);
                return Err(crate::errors::exception(given.py(), error));
            }
        };
        let (batch, outer, inner, dim): (i64, i64, i64, i64) = strides;
        let (head, seq) = match layout {
            Layout::Bshd => (inner, outer),
            Layout::Bhsd => (outer, inner),
        };
        let strides = Strides {
            batch,
            head,
            seq,
            dim,
        };
        Ok(Self {
            address: given.get_item(0)?.extract()?,
            spec: TensorSpec {
                dtype,
                shape: layout.shape(<[usize; 4]>::from(sizes)),
                strides,
            },
        })
    }
}

/// Packed sequences: `(address of cu_seqlens_q, of cu_seqlens_kv, batch, longest_q, longest_kv)`.
#[derive(FromPyObject)]
pub struct Packed(pub u64, pub u64, pub usize, pub usize, pub usize);

/// Slopes of ALiBi: `(address, whether each batch entry has its own)`.
#[derive(FromPyObject)]
pub struct Slopes(pub u64, pub bool);

/// What a backward pass has beside: `(d_o, address of d_lse, dq, dk, dv, address of d_alibi_slopes)`.
#[derive(FromPyObject)]
pub struct Gradients<'py>(
    pub Bound<'py, PyTuple>,
    pub Option<u64>,
    pub Bound<'py, PyTuple>,
    pub Bound<'py, PyTuple>,
    pub Bound<'py, PyTuple>,
    pub Option<u64>,
);
