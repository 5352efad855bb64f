"""Attention to a cache of keys and values that is filled in part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .torch import attention


@torch.no_grad()
def attend_cache(
    q: Tensor,
    cache: tuple[Tensor, Tensor],
    new: tuple[Tensor | None, Tensor | None],
    cache_seqlens: int | Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """o and lse of q and the cache's first cache_seqlens rows, with new rows written behind these first."""
    k, v = new
    if (k is None) != (v is None):
        missing, given = ("k", "v") if k is None else ("v", "k")
        raise ValueError(f"{missing}: it is None; it must be given where {given} is")
    if cache_seqlens is None:
        if k is not None:
            raise ValueError("cache_seqlens: it is None; it must be given where k and v are, which are written behind")
        return attention(q, *cache, return_lse=True, **options)
    batch = q.shape[0]
    if not isinstance(cache_seqlens, Tensor):
        cache_seqlens = torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)
    used = cache_seqlens
    if k is not None:
        _append(cache, (k, v), cache_seqlens)
        used = cache_seqlens + k.shape[1]
    return attention(q, *cache, seqused_k=used, return_lse=True, **options)


def _append(cache: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], cache_seqlens: Tensor) -> None:
    """Writes new rows behind the used ones of each entry, without the host's knowing where that is."""
    batch, count = new[0].shape[:2]
    entries = torch.arange(batch, device=cache_seqlens.device)[:, None]
    rows = cache_seqlens.long()[:, None] + torch.arange(count, device=cache_seqlens.device)
    for into, rows_of in zip(cache, new):
        into[entries, rows] = rows_of.to(into.dtype)
