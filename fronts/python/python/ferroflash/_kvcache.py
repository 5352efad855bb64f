"""Attention to a cache of keys and values by the names of FlashAttention: new rows are written into it first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ._refuse import refuse, refuse_alone
from .cache import append_kv, decode
from .torch import attention

# Tables of cosines and sines in float32, in which rotation is computed, beside the tables that they were made of.
_tables: Any = WeakTensorKeyDictionary()


@torch.no_grad()
def attend_cache(
    q: Tensor,
    cache: tuple[Tensor, Tensor],
    new: tuple[Tensor | None, Tensor | None],
    cache_seqlens: int | Tensor | None,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    rotary: tuple[Tensor | None, Tensor | None, bool] = (None, None, False),
    chunk: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """o and lse of q and the cache's first cache_seqlens rows, with new rows written behind these first.

    `options` are `causal` and others of `ferroflash.cache.decode`.
    """
    k, v = new
    cos, sin, _ = rotary
    refuse_alone(k=k, v=v)
    refuse_alone(rotary_cos=cos, rotary_sin=sin)
    block_table = _table(block_table, cache_batch_idx)
    if cache_seqlens is None:
        if k is not None or block_table is not None:
            raise ValueError("cache_seqlens: it is None; only a whole cache, without new rows, needs none")
        return attention(q, *cache, return_lse=True, chunk=chunk, **options)
    lengths = _lengths(cache_seqlens, q, q.shape[0])
    used = lengths if k is None else lengths + k.shape[1]
    # float32 has no kernels for caches on a GPU, and chunks are not for caches.
    if block_table is None and cos is None and (chunk is not None or (q.is_cuda and q.dtype is torch.float32)):
        if k is not None and v is not None:
            _append(cache, (k, v), lengths)
        return attention(q, *cache, seqused_k=used, return_lse=True, chunk=chunk, **options)
    refuse(attention_chunk=chunk)
    if k is not None and v is not None:
        q = _appended(q, cache, (k, v), used, block_table, rotary, options)
    elif cos is not None:
        raise ValueError("rotary_cos: there are no new rows of k and v, beside which q is rotated")
    return decode(q, *cache, used, block_table=block_table, return_lse=True, **options)


@torch.no_grad()
def attend_packed(
    q: Tensor,
    cache: tuple[Tensor, Tensor],
    lengths: tuple[Tensor, int],
    kv_lens: int | Tensor | None,
    block_table: Tensor | None,
    cache_batch_idx: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """o and lse of packed queries, with their cu_seqlens and a bound on their numbers, and a cache of kv_lens keys."""
    cu_seqlens_q, max_seqlen_q = lengths
    if kv_lens is None:
        raise ValueError("cache_seqlens: it is None; sequences of packed queries need it")
    kv_lens = _lengths(kv_lens, q, cu_seqlens_q.numel() - 1)
    block_table = _table(block_table, cache_batch_idx)
    packed = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
    return decode(q, *cache, kv_lens, block_table=block_table, return_lse=True, **packed, **options)


def _lengths(cache_seqlens: int | Tensor, q: Tensor, batch: int) -> Tensor:
    """Those of `batch` sequences, as an array beside q."""
    if isinstance(cache_seqlens, Tensor):
        return cache_seqlens
    return torch.full((batch,), cache_seqlens, dtype=torch.int32, device=q.device)


def _table(block_table: Tensor | None, cache_batch_idx: Tensor | None) -> Tensor | None:
    """Where sequences are, if it is said: an entry of the cache is a page that holds all of a sequence."""
    if cache_batch_idx is None:
        return block_table
    if block_table is not None:
        raise ValueError("cache_batch_idx: it is given beside a block table, which says where sequences are")
    return cache_batch_idx.to(torch.int32)[:, None]


def _appended(
    q: Tensor,
    cache: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    used: Tensor,
    block_table: Tensor | None,
    rotary: tuple[Tensor | None, Tensor | None, bool],
    options: dict[str, Any],
) -> Tensor:
    """q, rotated like the new keys if these are, once new rows are in the cache."""
    cos, sin, interleaved = rotary
    if cos is None or sin is None:
        append_kv(*new, *cache, used, block_table=block_table)
        return q
    if q.shape[1] > 1 and not (options["causal"] or any(side not in (None, -1) for side in options["window_size"])):
        raise NotImplementedError(
            "causal: ferroflash rotates queries by positions of their own, not all by the first one's"
        )
    tables = {"cos": _in_float32(cos), "sin": _in_float32(sin), "interleaved": interleaved}
    if q.shape[1] != new[0].shape[1]:
        raise NotImplementedError(
            f"q: it has {q.shape[1]} rows; ferroflash rotates as many as k has, {new[0].shape[1]}"
        )
    rotated = append_kv(*new, *cache, used, block_table=block_table, q=q, **tables)
    assert rotated is not None
    return rotated


def _in_float32(table: Tensor) -> Tensor:
    """The table in float32, made once for any number of calls."""
    if table.dtype is torch.float32 or torch.compiler.is_compiling():
        return table.float()
    known = _tables.get(table)
    if known is None or known[0] != table._version:
        known = _tables[table] = table._version, table.float()
    return known[1]


def _append(cache: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], cache_seqlens: Tensor) -> None:
    """Writes new rows behind the used ones of each entry, without the host's knowing where that is."""
    batch, count = new[0].shape[:2]
    entries = torch.arange(batch, device=cache_seqlens.device)[:, None]
    rows = cache_seqlens.long()[:, None] + torch.arange(count, device=cache_seqlens.device)
    for into, rows_of in zip(cache, new):
        into[entries, rows] = rows_of.to(into.dtype)
