"""The functions of FlashAttention 4 (`flash_attn.cute.interface`), by name and signature.

They always return (out, lse); None is an open side of a window. `num_splits` and `pack_gqa`, which cannot change a result, and
`return_lse` are ignored. What is not supported raises NotImplementedError that names the argument.
`ferroflash.torch.attention` says more of each argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ._arguments import common, packed
from ._kvcache import attend_cache, attend_packed
from ._refuse import refuse
from .torch import attention

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    mask_mod: Callable[..., Any] | None = None,
    full_block_cnt: Tensor | None = None,
    full_block_idx: Tensor | None = None,
    mask_block_cnt: Tensor | None = None,
    mask_block_idx: Tensor | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of q [batch, seq_q, heads_q, head_dim] to k and v [batch, seq_k, heads_k, head_dim]: (out, lse)."""
    refuse(mask_mod=mask_mod, full_block_cnt=full_block_cnt, full_block_idx=full_block_idx)
    refuse(mask_block_cnt=mask_block_cnt, mask_block_idx=mask_block_idx)
    options = common(softmax_scale, causal, window_size, softcap, deterministic)
    return attention(q, k, v, sinks=learnable_sink, return_lse=True, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod: Callable[..., Any] | None = None,
    block_sparse_tensors: Any = None,
    aux_tensors: list[Tensor] | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention of packed sequences, or of a batch where cu_seqlens_q and cu_seqlens_k are None.

    Bounds on the lengths of sequences that are not given are those of all packed rows. With page_table, int32 [batch, max_pages], k
    and v are pages [num_pages, page_size, heads_k, head_dim] of a cache, of which sequences have seqused_k keys; without gradients
    then.
    """
    refuse(seqused_q=seqused_q, score_mod=score_mod)
    refuse(block_sparse_tensors=block_sparse_tensors, aux_tensors=aux_tensors)
    if page_table is not None:
        refuse(cu_seqlens_k=cu_seqlens_k)
        if seqused_k is None:
            raise ValueError("seqused_k: it is None; pages of a cache need it")
        options = common(softmax_scale, causal, window_size, softcap) | {"sinks": learnable_sink}
        if cu_seqlens_q is None:
            return attend_cache(q, (k, v), (None, None), seqused_k, page_table, **options)
        lengths = (cu_seqlens_q, q.shape[0] if max_seqlen_q is None else max_seqlen_q)
        return attend_packed(q, (k, v), lengths, seqused_k, page_table, None, options)
    for name, array, other in (("q", cu_seqlens_q, cu_seqlens_k), ("k", cu_seqlens_k, cu_seqlens_q)):
        if array is None and other is not None:
            raise NotImplementedError(f"cu_seqlens_{name}: ferroflash packs q as k and v; it must be given too")
    max_seqlen_q = q.shape[0] if max_seqlen_q is None else max_seqlen_q
    max_seqlen_k = k.shape[0] if max_seqlen_k is None else max_seqlen_k
    options = common(softmax_scale, causal, window_size, softcap, deterministic)
    options |= packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k)
    return attention(q, k, v, sinks=learnable_sink, return_lse=True, **options)
