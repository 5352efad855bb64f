use ferroflash_torch::{Cache, View};
use pyo3::prelude::*;

/// What a call has beside q, k, v and o, without addresses: attributes, named as the arguments of `ferroflash.torch.attention`.
#[derive(FromPyObject)]
pub struct Arrays {
    /// Batch, longest_q and longest_k of packed sequences.
    pub packed: Option<[usize; 3]>,
    pub seqused_k: bool,
    /// Whether each batch entry has its own, as of the documents.
    pub alibi_slopes: Option<bool>,
    /// Bytes, `[batch, heads, seq_q, seq_k]`, as the bias.
    pub mask: Option<View>,
    /// And its dtype.
    pub bias: Option<(View, usize)>,
    pub sinks: bool,
    pub documents: Option<bool>,
    pub prefix_len: bool,
    pub dropout_state: bool,
    /// Where k and v are a cache.
    pub cache: Option<Cache>,
    /// Which gradients a backward pass writes too: by alibi_slopes, bias and sinks.
    pub wanted: [bool; 3],
}
