use ferroflash::{DType, Layout, Strides, TensorSpec};
use pyo3::prelude::*;

type Axes<T> = (T, T, T, T);

/// A tensor as Python gives it: `(address, shape, strides)`, always of rank 4.
#[derive(FromPyObject)]
pub struct Operand(pub u64, pub Axes<usize>, pub Axes<i64>);

impl Operand {
    /// Its spec, with the axes in the order of `layout`.
    pub fn spec(&self, dtype: usize, layout: Layout) -> TensorSpec {
        let (batch, outer, inner, dim) = self.2;
        let (head, seq) = match layout {
            Layout::Bshd => (inner, outer),
            Layout::Bhsd => (outer, inner),
        };
        TensorSpec {
            dtype: DType::ALL[dtype],
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
    pub mask: Option<Operand>,
    /// And its dtype.
    pub bias: Option<(Operand, usize)>,
    pub sinks: Option<u64>,
    /// Ids of queries, of keys, and whether each batch entry has its own.
    pub documents: Option<(u64, u64, bool)>,
    pub prefix_len: Option<u64>,
    pub dropout_state: Option<u64>,
    /// Of a backward pass, as what follows.
    pub d_lse: Option<u64>,
    pub d_alibi_slopes: Option<u64>,
    pub d_bias: Option<u64>,
    pub d_sinks: Option<u64>,
}
