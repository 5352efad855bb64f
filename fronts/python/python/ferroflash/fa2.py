"""The functions of FlashAttention 2 (`flash_attn` 2.8), by name and signature.

What is given to them and what they return is as there: q [batch, seq_q, heads_q, head_dim], packed [total_q, heads_q, head_dim];
lse float32 [batch, heads_q, seq_q], packed [heads_q, total_q]; causal masks and windows are aligned to the bottom-right corner;
-1 is an open side of a window. Besides, tensors may be float32, on the CPU, and of any strides, without being copied, and
gradients by lse and alibi_slopes are right. What is not supported raises NotImplementedError that names the argument.
`ferroflash.torch.attention` says more of each argument.
"""

from __future__ import annotations

from typing import Union

from torch import Tensor
from torch.compiler import is_compiling

from ._arguments import Arguments, window, without_arrays
from ._kvcache import attend_cache
from ._refuse import refuse
from .torch import run

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


def _returned(o: Tensor, lse: Tensor | None, return_attn_probs: bool) -> _Result:
    """What FlashAttention 2 returns: there are no probabilities without dropout."""
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
    if dropout_p != 0.0:
        refuse(dropout_p=True)
    if is_compiling() or alibi_slopes is not None or type(window_size) is not tuple:
        left, right = window(window_size, causal)
        scalars = softmax_scale, softcap, left, right, False, False, deterministic
        arguments = Arguments(None, None, None, alibi_slopes, 0, 0, *scalars)
    else:
        arguments = without_arrays(softmax_scale, causal, window_size, softcap, deterministic)
    return _returned(*run(q, k, v, arguments, return_attn_probs), return_attn_probs)


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
    q, k, v = qkv.unbind(-3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


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
    k, v = kv.unbind(-3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


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

    cu_seqlens_q and cu_seqlens_k, int32 [batch + 1], stay on the device.
    """
    refuse(dropout_p=dropout_p != 0.0, block_table=block_table is not None)
    left, right = window(window_size, causal)
    arguments = Arguments(
        cu_seqlens_q,
        cu_seqlens_k,
        None,
        alibi_slopes,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        softcap,
        left,
        right,
        False,
        False,
        deterministic,
    )
    return _returned(*run(q, k, v, arguments, return_attn_probs), return_attn_probs)


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
    q, k, v = qkv.unbind(-3)
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(
        q,
        k,
        v,
        *lengths,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    k, v = kv.unbind(-3)
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    return flash_attn_varlen_func(
        q,
        k,
        v,
        *lengths,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


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
    head_dim], where given, are written behind them first, into the cache, and used too. rotary_interleaved and num_splits, which
    cannot change a result here, are ignored.
    """
    refuse(
        rotary_cos=rotary_cos is not None,
        rotary_sin=rotary_sin is not None,
        cache_batch_idx=cache_batch_idx is not None,
        cache_leftpad=cache_leftpad is not None,
        block_table=block_table is not None,
    )
    o, lse = attend_cache(
        q,
        (k_cache, v_cache),
        (k, v),
        cache_seqlens,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
    )
    return (o, lse) if return_softmax_lse else o
