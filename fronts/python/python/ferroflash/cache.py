"""A cache of keys and values, contiguous or in pages, whose lengths and pages only the device knows.

`append_kv` writes a step's new rows into it, `decode` attends to it; neither waits for the device, and both can be captured
into a CUDA graph that serves all lengths. They are operators too, `torch.ops.ferroflash.decode` and `append_kv`, for
torch.compile. Nothing here has gradients.

A cache is [batch, capacity, heads_k, head_dim], or, with a block table, pages [num_pages, page_size, heads_k, head_dim] of any
size and strides: key j of sequence b lies in place j % page_size of page block_table[b, j // page_size]. kv_lens, int32 [batch],
counts each sequence's keys, new ones included; the last query stands at the last of them. Lengths and pages are not trusted: a
sequence with a bad one has NaN for results, and nothing outside the cache is read or written. What lies behind a length may be
anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _eager, _native
from ._arguments import Arguments, window
from ._arrays import DTYPES
from ._memory import empty_lse, empty_output
from ._operators import LIBRARY, TAGS, is_plain
from ._refuse import refuse_alone

__all__ = ["append_kv", "decode"]

_E4M3 = getattr(torch, "float8_e4m3fn", None)


class Cache(NamedTuple):
    """The tensors of a cache, in the order of the operators' schemas."""

    k: Tensor
    v: Tensor
    kv_lens: Tensor
    block_table: Tensor | None
    k_scales: Tensor | None
    v_scales: Tensor | None


_CACHE = "Tensor kv_lens, Tensor? block_table, Tensor? k_scales, Tensor? v_scales"
LIBRARY.define(
    f"decode(Tensor q, Tensor k_cache, Tensor v_cache, {_CACHE}, Tensor? alibi_slopes, Tensor? sinks, Tensor? tree_mask, "
    "Tensor? cu_seqlens_q, "
    "SymInt max_seqlen_q, float? softmax_scale, float softcap, int? left, int? right) -> (Tensor o, Tensor lse)",
    tags=TAGS,
)
LIBRARY.define(
    f"append_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, {_CACHE}, Tensor? slots, Tensor? cos, "
    "Tensor? sin, bool interleaved, Tensor? q) -> Tensor",
    tags=TAGS,
)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_lens: Tensor,
    *,
    block_table: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int = 0,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of the last queries of each sequence to its cache: decoding, drafts to verify, or a chunk of a prompt.

    A sequence's results depend on its own queries and keys alone, bit for bit: not on the batch, the pages or the GPU's size.

    Args:
        q: [batch, seq_q, heads_q, head_dim], float16 or bfloat16, on the CPU float32 too; of any strides. Of packed queries, as of
            chunks of prompts beside single tokens, [total_q, heads_q, head_dim].
        k_cache, v_cache: of q's dtype, or both torch.float8_e4m3fn.
        kv_lens: int32 [batch].
        block_table: int32 [batch, max_pages].
        k_scales, v_scales: of an e4m3 cache: float32 [num_pages or 1, page_size or 1, heads_k or 1], by which codes are multiplied.
        softmax_scale, causal, window_size, softcap, alibi_slopes, sinks: as for `ferroflash.torch.attention`.
        tree_mask: int64 [batch, seq_q] or [seq_q], of drafts that branch (tree attention): of the last seq_q keys of its sequence,
            the drafts, a query sees number j where bit j of its word is set, if causal and window_size show it too.
        cu_seqlens_q: int32 [batch + 1], where each sequence's queries begin and end in packed ones.
        max_seqlen_q: a bound on their numbers.
        return_lse: returns (o, lse) and not o alone.

    Returns:
        o [batch, seq_q, heads_q, head_dim_v]; lse is float32 [batch, heads_q, seq_q], in nats; of packed queries o is
        [total_q, heads_q, head_dim_v], and lse [heads_q, total_q].

    Raises:
        ValueError: names the argument, its value and what is allowed.
    """
    left, right = window(window_size, causal)
    cache = k_cache, v_cache, kv_lens, block_table, k_scales, v_scales
    given = q, *cache, alibi_slopes, sinks, tree_mask, cu_seqlens_q
    call = _decode if is_plain(*given) else torch.ops.ferroflash.decode
    o, lse = call(*given, max_seqlen_q, softmax_scale, softcap, left, right)
    return (o, lse) if return_lse else o


def append_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_lens: Tensor,
    *,
    block_table: Tensor | None = None,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
    slots: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    interleaved: bool = False,
    q: Tensor | None = None,
) -> Tensor | None:
    """Writes new rows into a cache: row i of seq becomes key kv_lens[b] - seq + i; rows before key 0 are padding.

    Args:
        k, v: [batch, seq, heads_k, head_dim], of any strides, of the cache's dtype; rounded to codes for one of e4m3.
        slots: int32 [batch, seq], where rows go instead, without a block table: slot s is place s % page_size of page
            s // page_size, -1 is nowhere. Of packed rows each is a sequence of its own here: k[:, None], slots[:, None], and
            positions + 1 for kv_lens.
        cos, sin: float32 [positions, rotary_dim / 2]: keys are rotated by the angles of their positions.
        interleaved: whether components 2 i and 2 i + 1 are rotated together (GPT-J), and not i and i + rotary_dim / 2 (NeoX).
        q: [batch, seq, heads_q, head_dim], rotated as the keys are.

    Returns:
        The rotated q, if it is given.

    Raises:
        ValueError: names the argument, its value and what is allowed.
    """
    cache = k_cache, v_cache, kv_lens, block_table, k_scales, v_scales
    given = k, v, *cache, slots, cos, sin
    call = _append if is_plain(*given, q) else torch.ops.ferroflash.append_kv
    rotated = call(*given, interleaved, q)
    return None if q is None else rotated


def _decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_lens: Tensor,
    block_table: Tensor | None,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    cu_seqlens_q: Tensor | None,
    max_seqlen_q: int,
    *scalars: Any,
) -> tuple[Tensor, Tensor]:
    cache = Cache(k_cache, v_cache, kv_lens, block_table, k_scales, v_scales)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
    # Held while the work is queued.
    native, _held = _described(cache, q, "q", batch)
    if tree_mask is not None:
        tree_mask = _tree(tree_mask, q, batch)
        native = *native[:4], (tree_mask.data_ptr(), tree_mask.dim() == 2)
    softmax_scale, softcap, left, right = scalars
    arguments = Arguments(
        # Keys have lengths of their own: sums of theirs are not read.
        cu_seqlens_q,
        cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        softmax_scale=softmax_scale,
        softcap=softcap,
        left=left,
        right=right,
    )
    return _eager.forward(q, k_cache, v_cache, arguments, cache=native)


def _append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_lens: Tensor,
    block_table: Tensor | None,
    k_scales: Tensor | None,
    v_scales: Tensor | None,
    slots: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
    interleaved: bool,
    q: Tensor | None,
) -> Tensor:
    cache = Cache(k_cache, v_cache, kv_lens, block_table, k_scales, v_scales)
    native, _held = _described(cache, k, "k", k.shape[0])
    refuse_alone(cos=cos, sin=sin)
    if q is not None:
        refuse_alone(cos=cos, q=q)
    device = k.get_device()
    operands = [_operand(name, x, k.dtype, device) for name, x in (("k", k), ("v", v))]
    operands += [_operand(name, x, x.dtype, device) for name, x in (("k_cache", k_cache), ("v_cache", v_cache))]
    rotary = None
    if cos is not None and sin is not None:
        rotary = [_angles("cos", cos, device), _angles("sin", sin, device)], interleaved
    of_q, rotated = None, k.new_empty(0)
    if q is not None:
        rotated = torch.empty_like(q)
        of_q = [_operand("q", q, k.dtype, device), _operand("rotated", rotated, k.dtype, device)]
    of_slots = None
    if slots is not None:
        slots = _integers("slots", slots, k, k.shape[:2])
        of_slots = slots.data_ptr(), slots.stride(0)
        if block_table is None:
            # The cache is pages all the same, of which a sequence may have all; nobody reads the table, which is any array.
            is_e4m3, at, _, scales, _ = native
            native = is_e4m3, at, (at, k_cache.shape[0], 0), scales, None
    place = device, _eager.stream_of(device)
    _native.append(place, DTYPES[k.dtype], operands, native, rotary, of_q, of_slots)
    # As autograd knows of what is written by torch.
    torch.autograd.graph.increment_version(k_cache)
    torch.autograd.graph.increment_version(v_cache)
    return rotated


def _operand(name: str, tensor: Tensor, dtype: torch.dtype, device: int) -> _native.Operand:
    """Where a tensor of rank 4 lies, and how."""
    if tensor.dtype is not dtype or tensor.get_device() != device:
        raise ValueError(f"{name}: it is {tensor.dtype} on {tensor.device}; it must be {dtype}, on the cache's device")
    if tensor.dim() != 4:
        raise ValueError(f"{name}: it has {tensor.dim()} axes; it must have 4")
    return tensor.data_ptr(), (tuple(tensor.shape), tensor.stride())


def _angles(name: str, table: Tensor, device: int) -> _native.Operand:
    """Where a table of rotary angles lies: [positions, angles], between axes of one."""
    if table.dim() != 2:
        raise ValueError(f"{name}: it has {table.dim()} axes; it must have 2, positions and angles")
    return _operand(name, table[None, :, None], torch.float32, device)


def _integers(name: str, tensor: Tensor, beside: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An int32 array on the device of `beside`, of this shape, where -1 is any size, with rows that are contiguous."""
    if tensor.dtype is not torch.int32 or tensor.get_device() != beside.get_device():
        raise ValueError(f"{name}: it is {tensor.dtype} on {tensor.device}; it must be int32, on the cache's device")
    if len(tensor.shape) != len(shape) or any(size not in (-1, own) for size, own in zip(shape, tensor.shape)):
        allowed = str(list(shape)).replace("-1", "any")
        raise ValueError(f"{name}: its shape is {list(tensor.shape)}; it must be {allowed}")
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _described(cache: Cache, beside: Tensor, name: str, batch: int) -> tuple[_native.Cache, tuple[Tensor | None, ...]]:
    """A cache of `batch` sequences as the native half takes it, for `beside`, which is called `name`; and its arrays' memory."""
    dtypes = {cache.k.dtype, cache.v.dtype}
    if beside.dtype not in DTYPES:
        raise ValueError(f"{name}: its dtype is {beside.dtype}; it must be float32, float16 or bfloat16")
    if dtypes not in ({beside.dtype}, {_E4M3}):
        of_both = f"{cache.k.dtype} and {cache.v.dtype}"
        raise ValueError(f"k_cache: its dtype and that of v_cache are {of_both}; they must be {beside.dtype} or e4m3")
    device = beside.get_device()
    if not device == cache.k.get_device() == cache.v.get_device():
        raise ValueError(f"k_cache: it is on {cache.k.device}; it and v_cache must be on {beside.device}, as {name} is")
    lens, table = _integers("kv_lens", cache.kv_lens, beside, (batch,)), None
    of_table = None
    if cache.block_table is not None:
        table = _integers("block_table", cache.block_table, beside, (batch, -1))
        of_table = table.data_ptr(), table.shape[1], table.stride(0)
    refuse_alone(k_scales=cache.k_scales, v_scales=cache.v_scales)
    scales = None
    if cache.k_scales is not None and cache.v_scales is not None:
        scales = [_scales("k_scales", cache.k_scales, device), _scales("v_scales", cache.v_scales, device)]
    return (dtypes == {_E4M3}, lens.data_ptr(), of_table, scales, None), (lens, table)


def _tree(words: Tensor, q: Tensor, batch: int) -> Tensor:
    """A tree's words, which follow each other, for the queries of q."""
    if words.dtype is not torch.int64 or words.get_device() != q.get_device():
        raise ValueError(f"tree_mask: it is {words.dtype} on {words.device}; it must be int64, on the cache's device")
    if words.shape not in ((q.shape[1],), (batch, q.shape[1])):
        raise ValueError(
            f"tree_mask: its shape is {list(words.shape)}; it must be {[q.shape[1]]} or {[batch, q.shape[1]]}"
        )
    return words.contiguous()


def _scales(name: str, scales: Tensor, device: int) -> _native.Operand:
    """Where they lie: [pages, places, heads] with an axis behind."""
    if scales.dim() != 3:
        raise ValueError(f"{name}: it has {scales.dim()} axes; it must have 3, of pages, keys of a page and heads")
    return _operand(name, scales[..., None], torch.float32, device)


def _decode_shapes(q: Tensor, _: Tensor, v_cache: Tensor, *__: Any) -> tuple[Tensor, Tensor]:
    return empty_output(q, v_cache), empty_lse(q, False)


def _append_shapes(k: Tensor, *rest: Any) -> Tensor:
    q = rest[-1]
    return k.new_empty(0) if q is None else torch.empty_like(q)


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("decode", _decode, _key)
    LIBRARY.impl("append_kv", _append, _key)
torch.library.register_fake("ferroflash::decode", _decode_shapes, lib=LIBRARY)
torch.library.register_fake("ferroflash::append_kv", _append_shapes, lib=LIBRARY)
