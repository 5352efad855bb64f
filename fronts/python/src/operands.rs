use ferroflash::{DType, Layout, TensorSpec};
use pyo3::prelude::*;

use crate::cache::Cache;

type Axes<T> = (T, T, T, T);

/// A tensor without its address, as Python gives it: `(shape, strides)`, always of rank 4.
#[derive(FromPyObject)]
pub struct View(pub Axes<usize>, pub Axes<i64>);

impl View {
    /// Its spec, with the axes in the order of `layout`.
    pub fn spec(&self, dtype: usize, layout: Layout) -> TensorSpec {
        TensorSpec {
            dtype: DType::ALL[dtype],
            shape: layout.shape(self.0.into()),
            strides: layout.strides(self.1.into()),
        }
    }
}

/// Everything that a call may have beside q, k, v and o: an attribute each, `None` where it has none. Names are those of
/// `ferroflash.torch.attention`; a number is an address, and comes first.
#[derive(Default, FromPyObject)]
pub struct Arrays {
    /// Those of cu_seqlens_q and of cu_seqlens_k, batch, longest_q, longest_k.
    pub packed: Option<(u64, u64, usize, usize, usize)>,
    pub seqused_k: Option<u64>,
    /// And whether each batch entry has its own.
    pub alibi_slopes: Option<(u64, bool)>,
    /// Bytes, `[batch, heads, seq_q, seq_k]`, as the bias.
    pub mask: Option<(u64, View)>,
    /// And its dtype.
    pub bias: Option<(u64, View, usize)>,
    pub sinks: Option<u64>,
    /// Ids of queries, of keys, and whether each batch entry has its own.
    pub documents: Option<(u64, u64, bool)>,
    pub prefix_len: Option<u64>,
    pub dropout_state: Option<u64>,
    /// Where k and v are a cache.
    pub cache: Option<Cache>,
    /// Of a backward pass, as what follows.
    pub d_lse: Option<u64>,
    pub d_alibi_slopes: Option<u64>,
    pub d_bias: Option<u64>,
    pub d_sinks: Option<u64>,
}
