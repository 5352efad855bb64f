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
        given: &Bound<'_, PyAny>,
        dtype: DType,
        layout: Layout,
    ) -> PyResult<Self> {
        let (address, sizes, strides): (u64, Bound<'_, PyTuple>, Bound<'_, PyTuple>) =
            given.extract()?;
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
        let pairs = Pairs(address, sizes, strides);
        let spec = pairs.spec(dtype, layout);
        Ok(Self { address, spec })
    }
}

/// `(address, shape, strides)` of rank 4.
type Axes<T> = (T, T, T, T);
#[derive(FromPyObject)]
pub struct Pairs(pub u64, pub Axes<usize>, pub Axes<i64>);

impl Pairs {
    /// Its spec, with the axes in the order of `layout`.
    pub fn spec(&self, dtype: DType, layout: Layout) -> TensorSpec {
        let (batch, outer, inner, dim) = self.2;
        let (head, seq) = match layout {
            Layout::Bshd => (inner, outer),
            Layout::Bhsd => (outer, inner),
        };
        TensorSpec {
            dtype,
            shape: layout.shape(self.1.into()),
            strides: Strides {
                batch,
                head,
                seq,
                dim,
            },
        }
    }
}

/// Everything that a call may have beside q, k, v and o: an attribute each, `None` where it has none. Names are those of
/// `ferroflash.torch.attention`; a number is an address.
#[derive(Default, FromPyObject)]
pub struct Arrays {
    /// Those of cu_seqlens_q and of cu_seqlens_k, batch, longest_q, longest_k.
    pub packed: Option<(u64, u64, usize, usize, usize)>,
    pub seqused_k: Option<u64>,
    /// And whether each batch entry has its own.
    pub alibi_slopes: Option<(u64, bool)>,
    /// Bytes, `[batch, heads, seq_q, seq_k]`, as the bias.
    pub mask: Option<Pairs>,
    /// And its dtype.
    pub bias: Option<(Pairs, usize)>,
    pub sinks: Option<u64>,
    /// Ids of queries, of keys, and whether each batch entry has its own.
    pub documents: Option<(u64, u64, bool)>,
    pub prefix_len: Option<u64>,
    pub dropout_state: Option<u64>,
    /// Of a backward pass, as what follows.
    pub d_lse: Option<u64>,
    pub d_alibi_slopes: Option<u64>,
    pub d_sinks: Option<u64>,
}
