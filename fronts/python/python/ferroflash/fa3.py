"""The functions of FlashAttention 3 (`flash_attn_interface`), by name and signature.

They return (out, lse) if return_attn_probs is set, else out. `num_splits`, `pack_gqa`, `sm_margin` and `scheduler_metadata`, which
cannot change a result, are ignored. What is not supported raises NotImplementedError that names the argument.
`ferroflash.torch.attention` says more of each argument.
"""

from __future__ import annotations

from typing import Any, Union

from torch import Tensor

from ._arguments import common, packed
from ._kvcache import attend_cache, attend_packed
from ._refuse import refuse
from .torch import attention

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_Result = Union[Tensor, "tuple[Tensor, Tensor]"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention of q [batch, seq_q, heads_q, head_dim] to k and v [batch, seq_k, heads_k, head_dim]: out, or (out, lse)."""
    refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    options = common(softmax_scale, causal, window_size, softcap, deterministic)
    return attention(q, k, v, chunk=attention_chunk or None, return_lse=return_attn_probs, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> _Result:
    """Attention of packed sequences: q [total_q, heads_q, head_dim], k and v [total_k, heads_k, head_dim].

    cu_seqlens_q and cu_seqlens_k, int32 [batch + 1], and seqused_k, int32 [batch], stay on the device.
    """
    refuse(seqused_q=seqused_q, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    options = common(softmax_scale, causal, window_size, softcap, deterministic)
    options |= packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k)
    return attention(q, k, v, chunk=attention_chunk or None, return_lse=return_attn_probs, **options)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> _Result:
    """Attention to a cache, as `ferroflash.flash_attn_with_kvcache`; with cu_seqlens_q q is packed, [total_q, heads_q, head_dim].

    k and v are not packed; beside packed queries the cache has to hold them already (`ferroflash.cache.append_kv`).
    """
    refuse(qv=qv, rotary_seqlens=rotary_seqlens, cache_leftpad=cache_leftpad, cu_seqlens_k_new=cu_seqlens_k_new)
    refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    options = common(softmax_scale, causal, window_size, softcap)
    if cu_seqlens_q is not None:
        refuse(k=k, v=v, attention_chunk=attention_chunk)
        lengths = (cu_seqlens_q, q.shape[0] if max_seqlen_q is None else max_seqlen_q)
        o, lse = attend_packed(q, (k_cache, v_cache), lengths, cache_seqlens, page_table, cache_batch_idx, options)
        return (o, lse) if return_softmax_lse else o
    o, lse = attend_cache(
        q,
        (k_cache, v_cache),
        (k, v),
        cache_seqlens,
        page_table,
        cache_batch_idx,
        (rotary_cos, rotary_sin, rotary_interleaved),
        chunk=attention_chunk or None,
        **options,
    )
    return (o, lse) if return_softmax_lse else o
