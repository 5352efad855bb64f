"""The functions of FlashAttention 2 (`flash_attn` 2.8), by name and signature.

What is given to them and what they return is as there: q [batch, seq_q, heads_q, head_dim], packed [total_q, heads_q, head_dim];
lse float32 [batch, heads_q, seq_q], packed [heads_q, total_q]; causal masks and windows are aligned to the bottom-right corner;
-1 is an open side of a window. Besides, tensors may be float32, on the CPU, and of any strides, without being copied, and
gradients by lse and alibi_slopes are right. Probabilities are never there: None is returned for them.
What is not supported raises NotImplementedError that names the argument. `ferroflash.torch.attention` says more of each argument.
"""

from __future__ import annotations

from typing import Union

from torch import Tensor
from torch.compiler import is_compiling

from ._arguments import DENSE, Arguments, Lengths, bare, common, window
from ._eager import dropout_state
from ._kvcache import attend_cache, attend_packed
from ._refuse import refuse
from .torch import run, run_bare

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_Result = Union[Tensor, "tuple[Tensor, Tensor, None]"]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
) -> _Result:
    """What all functions below are: `lengths` are cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k."""
    # Not for those who compile, which does not look into what is remembered.
    if alibi_slopes is None and dropout_p == 0.0 and type(window_size) is tuple and not is_compiling():
        options = bare(None, softmax_scale, causal, window_size, softcap, deterministic)
        o, lse = run_bare(q, k, v, options, return_attn_probs, lengths)
    else:
        left, right = window(window_size, causal)
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = lengths
        arguments = Arguments(
            cu_seqlens_q,
            cu_seqlens_k,
            alibi_slopes=alibi_slopes,
            dropout_state=dropout_state(q.device) if dropout_p else None,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_kv=max_seqlen_k,
            softmax_scale=softmax_scale,
            softcap=softcap,
            left=left,
            right=right,
            deterministic=deterministic,
            dropout_p=dropout_p,
        )
        o, lse = run(q, k, v, arguments, return_attn_probs)
    return (o, lse, None) if return_attn_probs else o


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention of q [batch, seq_q, heads_q, head_dim] to k and v [batch, seq_k, heads_k, head_dim]: o, or (o, lse, None)."""
    # One by one: a tuple of the rest, as below, takes a tenth of a microsecond.
    return _attend(
        q,
        k,
        v,
        DENSE,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_func` of the three parts of qkv [batch, seq, 3, heads, head_dim], which are not copied."""
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(*qkv.unbind(-3), DENSE, *rest)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_func` of q and the two parts of kv [batch, seq_k, 2, heads_k, head_dim], which are not copied."""
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(q, *kv.unbind(-3), DENSE, *rest)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> _Result:
    """Attention of packed sequences: q [total_q, heads_q, head_dim], k and v [total_k, heads_k, head_dim].

    cu_seqlens_q and cu_seqlens_k, int32 [batch + 1], stay on the device. With block_table, int32 [batch, max_pages], k and v are
    pages [num_pages, page_size, heads_k, head_dim] of a cache, of which a sequence has as many keys as cu_seqlens_k say; without
    gradients then.
    """
    if block_table is not None:
        refuse(dropout_p=dropout_p)
        options = common(softmax_scale, causal, window_size, softcap)
        options["alibi_slopes"] = alibi_slopes
        kv_lens = cu_seqlens_k[1:] - cu_seqlens_k[:-1]
        o, lse = attend_packed(q, (k, v), (cu_seqlens_q, max_seqlen_q), kv_lens, block_table, None, options)
        return (o, lse, None) if return_attn_probs else o
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(q, k, v, (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), *rest)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_varlen_func` of the three parts of qkv [total, 3, heads, head_dim], which are not copied."""
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(*qkv.unbind(-3), (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), *rest)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> _Result:
    """`flash_attn_varlen_func` of q and the two parts of kv [total_k, 2, heads_k, head_dim], which are not copied."""
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(q, *kv.unbind(-3), (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), *rest)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of q [batch, seq_q, heads_q, head_dim] to a cache [batch, seq_cache, heads_k, head_dim]; without gradients.

    Of each entry cache_seqlens rows are used (int32 [batch] on the device, or one number); k and v [batch, seq_new, heads_k,
    head_dim], where given, are written behind them first, into the cache, and used too: rotated, and q with them, by rotary_cos and
    rotary_sin [positions, rotary_dim / 2]. With block_table, int32 [batch, max_pages], the cache is pages [num_pages, page_size,
    heads_k, head_dim] of any size; cache_batch_idx, int32 [batch], says which entries of the cache q's are. num_splits, which
    cannot change a result here, is ignored. On a GPU pages, cache_batch_idx and rotation need float16 or bfloat16.
    """
    refuse(cache_leftpad=cache_leftpad)
    options = common(softmax_scale, causal, window_size, softcap)
    o, lse = attend_cache(
        q,
        (k_cache, v_cache),
        (k, v),
        cache_seqlens,
        block_table,
        cache_batch_idx,
        (rotary_cos, rotary_sin, rotary_interleaved),
        alibi_slopes=alibi_slopes,
        **options,
    )
    return (o, lse) if return_softmax_lse else o
