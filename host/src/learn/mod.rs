//! Why fused attention is fast: costs counted from the algorithms, the roofline of a GPU, and the algorithms
//! themselves as small functions, from the textbook softmax to FlashAttention-2.
//!
//! The commands `roofline` and `ladder` print what is here, and `docs/how-it-works.md` is written around
//! their output.

pub mod cost;
pub mod gpu_spec;
pub mod ladder;
pub mod layout;
pub mod results;
pub mod roofline;
pub mod roofline_plot;
