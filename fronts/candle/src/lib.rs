//! Exact fused attention for candle: the functions of `candle-flash-attn`, by name and signature, and [`Attention`], whose options go
//! together.
//!
//! ```
//! use ferroflash_candle as candle_flash_attn;
//! # use candle::{Device, Tensor};
//! # fn main() -> candle::Result<()> {
//! # let [q, k, v] = [(); 3].map(|()| Tensor::randn(0f32, 1., (1, 5, 2, 8), &Device::Cpu).unwrap());
//! let o = candle_flash_attn::flash_attn(&q, &k, &v, 0.35, true)?;
//! # assert_eq!(o.dims(), q.dims());
//! # Ok(())
//! # }
//! ```
//!
//! q is `[batch, seq_q, heads_q, head_dim]`, k and v `[batch, seq_k, heads_k, head_dim]`, in f32, f16 or bf16, of any strides and a
//! head_dim of 1 to 256; heads_q is a multiple of heads_k. Packed sequences (`varlen`) are `[total, heads, head_dim]`, with running
//! sums of their lengths, u32 `[batch + 1]`, on the same device, which the host never reads. `causal` and windows are aligned to
//! the bottom-right corner: the last query stands at the last key. A row that sees no key is 0. Slopes of ALiBi are f32 `[heads_q]`
//! or `[batch, heads_q]`.
//!
//! q, k and v have gradients, on the CPU and on GPUs; slopes have none, nor has what reads pages.
//!
//! | file | what it does |
//! |---|---|
//! | `attention` | the operation, forward and backward, written once for all devices |
//! | `paged` | the same for keys and values in pages, forward alone |
//! | `operand` | candle's tensors as the library's operands |
//! | `operation` | what is the same for all operations of candle |
//! | `place` | the CPU: addresses of candle's memory, and launches |
//! | `cuda` | the same on a GPU, in candle's own context and stream |
//!
//! # Errors
//! All functions refuse what does not fit, in an error that names the argument, its value and what is allowed.

mod attention;
#[cfg(feature = "cuda")]
mod cuda;
mod operand;
mod operation;
mod paged;
mod place;

use candle::{Result, Tensor, bail};

use paged::Paged;

pub use attention::Attention;
pub use ferroflash::Precision;

/// softmax(q · kᵀ · softmax_scale) · v.
pub fn flash_attn(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    Attention::new(softmax_scale).causal(causal).run(q, k, v)
}

/// [`flash_attn`] where a query sees so many keys before and after its position; `None` leaves a side open.
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .run(q, k, v)
}

/// [`flash_attn`] with ALiBi.
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .causal(causal)
        .slopes(Some(alibi_slopes))?
        .run(q, k, v)
}

/// [`flash_attn_windowed`] with ALiBi.
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .slopes(Some(alibi_slopes))?
        .run(q, k, v)
}

/// [`flash_attn_windowed`] with ALiBi where slopes are given, whose scores become `softcap · tanh(score / softcap)`; 0: they do not.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .slopes(alibi_slopes)?
        .softcap(softcap)
        .run(q, k, v)
}

/// [`flash_attn`] of packed sequences, of which none is longer than `max_seqlen_q` and `max_seqlen_k`.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .causal(causal)
        .packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?
        .run(q, k, v)
}

/// [`flash_attn_windowed`] of packed sequences.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?
        .run(q, k, v)
}

/// [`flash_attn_varlen_windowed`] of q to keys and values in pages: k and v are `[num_blocks, page_block_size, heads_k, head_dim]`,
/// on GPUs in f16 or bf16, and block_table, u32 or i32 `[batch, max_blocks]` on the same device, says which blocks a sequence has.
/// Nobody trusts what lies there: a sequence with a block that does not exist among those of its keys is NaN. softcap, if there is
/// one, bends scores as in [`flash_attn_alibi_windowed_softcap`].
///
/// # Errors
/// As of all functions; mm_prefix_ranges, by which candle-flash-attn shows ranges of keys past the mask, is refused.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    if mm_prefix_ranges.is_some() {
        bail!("mm_prefix_ranges: they are given; ranges past the mask are not supported");
    }
    let keys = k.dims().get(1).copied().unwrap_or(0);
    if page_block_size != keys {
        bail!("page_block_size: it is {page_block_size}; it must be {keys}, as k has it");
    }
    let attention = Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .softcap(softcap.unwrap_or(0.0))
        .packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?;
    Paged::of(attention, block_table)?.run(q, k, v)
}

/// [`flash_attn_alibi`] of packed sequences.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .causal(causal)
        .slopes(Some(alibi_slopes))?
        .packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?
        .run(q, k, v)
}

/// [`flash_attn_alibi_windowed`] of packed sequences.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .slopes(Some(alibi_slopes))?
        .packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?
        .run(q, k, v)
}

/// [`flash_attn_alibi_windowed_softcap`] of packed sequences.
#[allow(clippy::too_many_arguments)] // candle-flash-attn's
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    Attention::new(softmax_scale)
        .window(window_size_left, window_size_right)
        .slopes(alibi_slopes)?
        .softcap(softcap)
        .packed([seqlens_q, seqlens_k], [max_seqlen_q, max_seqlen_k])?
        .run(q, k, v)
}
