"""Runs attention on the tensors of a call, at once: allocates what is written and queues the work on the current stream.

Nobody here knows autograd or torch's dispatcher; `_operators` makes operators of these functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

from . import _native
from ._arguments import DIFFERENTIABLE, SCALARS, TENSORS, Arguments, Bare, Lengths, with_lengths
from ._arrays import DTYPES, Arrays, kind_of_cache
from ._memory import empty, empty_lse, empty_output, workspace_allocator

# The handle of a GPU's current stream, by the function that Triton and Inductor use: a tenth of the time that a
# `torch.cuda.Stream` takes to make.
stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)

# Calls that were made, by all that they depend on: scalars, and how tensors lie, but not where.
_calls: dict[tuple[Any, ...], _Known] = {}
_MOST_CALLS = 4096
_MOST_BARE_CALLS = 256  # of the same scalars


class _Known(NamedTuple):
    """A call that was made, and what each like it needs."""

    call: _native.Call
    device: int
    dtype: torch.dtype
    # How results lie.
    results: list[_native.View]
    # Whether arrays have to be made contiguous.
    gathers: bool
    allocate: Callable[[int, int], Tensor]


_NO_ARRAYS = (None,) * TENSORS
_NO_RESULTS = (None,) * 3
_STRIDED = [Arguments._fields.index(name) for name in ("mask", "bias")]
_NONE_WANTED = (False,) * len(DIFFERENTIABLE)


@functools.lru_cache(maxsize=1024)
def _options(scalars: tuple[Any, ...]) -> _native.Options:
    """Those of `Arguments`' scalars."""
    return _native.Options(Arguments(*_NO_ARRAYS, 0, 0, *scalars))


def _in_words(tensors: tuple[Tensor | None, ...]) -> Any:
    """What says of tensors as much as `_native.signature`, where there is none."""
    return tuple(x if x is None else (x.dtype, x.device, tuple(x.shape), x.stride()) for x in tensors)


def _refuse(q: Tensor, others: dict[str, Tensor]) -> None:
    """Refuses tensors that are not of q's dtype or not on its device, if there are any."""
    if q.dtype not in DTYPES:
        raise ValueError(f"q: its dtype is {q.dtype}; it must be float32, float16 or bfloat16")
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q: it is on {q.device}; it must be on the CPU or a CUDA device")
    for name, tensor in others.items():
        if tensor.dtype is not q.dtype:
            raise ValueError(f"{name}: its dtype is {tensor.dtype}; it must be {q.dtype}, that of q")
        if tensor.device != q.device:
            raise ValueError(f"{name}: it is on {tensor.device}; it must be on {q.device}, as q is")


def _refuse_sums(q: Tensor, heads_first: bool, of_rows: dict[str, Tensor | None]) -> None:
    """Refuses what is not as an lse beside q, if it is there."""
    right = empty_lse(q, heads_first)
    for name, tensor in of_rows.items():
        if tensor is None:
            continue
        if tensor.dtype is not torch.float32 or tensor.device != q.device:
            raise ValueError(f"{name}: it is {tensor.dtype} on {tensor.device}; it must be float32, on {q.device}")
        if tensor.shape != right.shape:
            raise ValueError(f"{name}: its shape is {list(tensor.shape)}; it must be {list(right.shape)}")


def dropout_state(device: torch.device) -> Tensor:
    """Seed and offset of dropout from torch's generator, where the device reads them: in a graph others at each replay."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device)


def _views(heads_first: bool, **tensors: Tensor) -> list[_native.View]:
    """How tensors lie, of rank 4: rows of packed sequences are those of one batch entry."""
    views = []
    for name, tensor in tensors.items():
        shape, strides = tensor.shape, tensor.stride()
        if len(shape) == 3 and not heads_first:
            shape, strides = (1, *shape), (0, *strides)
        elif len(shape) != 4:
            raise ValueError(f"{name}: it has {len(shape)} axes; it must have 4, or 3 where sequences are packed")
        views.append((shape, strides))
    return views


def _kept(
    key: tuple[Any, ...],
    q: Tensor,
    arguments: Arguments,
    views: list[_native.View],
    arrays: Arrays,
    results: Sequence[Tensor],
) -> _Known:
    """Checks a call unlike those that were made, and keeps it, and how its results lie, for the next like it."""
    options, device = _options(arguments[SCALARS:]), q.get_device()
    stream = stream_of(device) if device >= 0 else 0
    call = _native.Call(device, stream, DTYPES[q.dtype], options, views, arrays)
    results_lie = [(tuple(result.shape), result.stride()) for result in results]
    known = _Known(call, device, q.dtype, results_lie, arrays.gathers, workspace_allocator(device))
    return _entered(known, _calls, key, _MOST_CALLS)


def _entered(known: _Known, calls: dict[Any, _Known], key: tuple[Any, ...], most: int) -> _Known:
    """`known`, which is among `calls` from now on, of which there are at `most` so many."""
    if len(calls) >= most:
        calls.clear()  # those that are still made come back
    calls[key] = known
    return known


def _gathered(arrays: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """The small arrays made contiguous, as kernels read them; a mask and a bias may lie in any way."""
    return tuple(x if x is None or i in _STRIDED else x.contiguous() for i, x in enumerate(arrays))


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arguments: Arguments,
    needs_lse: bool = True,
    o: Tensor | None = None,
    cache: _native.Cache | None = None,
) -> tuple[Tensor, Tensor | None]:
    """o and lse of attention; no lse where it is not needed and a kernel can do without.

    Writes `o`, if it is given, which must be of the shape that o has. Where k and v are a `cache`, it has been checked beside q.
    """
    arrays = arguments[:TENSORS]
    given = q, k, v, o, *arrays
    key = arguments[TENSORS:], _native.signature(given) or _in_words(given), cache and kind_of_cache(cache)
    known = _calls.get(key) or _checked(key, q, k, v, arguments, o, cache)
    return _launched(known, q, k, v, arrays, needs_lse, o, cache)


def forward_bare(
    q: Tensor, k: Tensor, v: Tensor, bare: Bare, lengths: Lengths, needs_lse: bool
) -> tuple[Tensor, Tensor | None] | None:
    """`forward` where there is no tensor but q, k, v and those of `lengths`: a call like one before is looked up by these alone.

    None where `bare` does not cover q, k and v.
    """
    cu_seqlens_q, cu_seqlens_kv, max_q, max_kv = lengths
    given = q, k, v, cu_seqlens_q, cu_seqlens_kv
    lie = _native.signature(given) or _in_words(given)
    bare_key = lie, max_q, max_kv
    known = bare.calls.get(bare_key)
    if known is None:
        if bare.covers is not None and not bare.covers(q, k, v):
            return None
        arguments = with_lengths(lengths, bare.arguments)
        key = arguments[TENSORS:], lie
        known = _calls.get(key) or _checked(key, q, k, v, arguments)
        _entered(known, bare.calls, bare_key, _MOST_BARE_CALLS)
    return _launched(known, q, k, v, (cu_seqlens_q, cu_seqlens_kv), needs_lse)


def _checked(
    key: tuple[Any, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arguments: Arguments,
    o: Tensor | None = None,
    cache: _native.Cache | None = None,
) -> _Known:
    """A forward pass that was not made before."""
    _refuse(q, {"k": k, "v": v} if cache is None else {})
    new = empty_output(q, v) if o is None else o
    views = _views(arguments.heads_first, q=q, k=k, v=v, o=new)
    results = new, empty_lse(q, arguments.heads_first)
    return _kept(key, q, arguments, views, Arrays(q, k, arguments, cache), results)


def _launched(
    known: _Known,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arrays: tuple[Tensor | None, ...],
    needs_lse: bool,
    o: Tensor | None = None,
    cache: _native.Cache | None = None,
) -> tuple[Tensor, Tensor | None]:
    """o and lse of a forward pass; `arrays` may end with the last that is there."""
    call, device, dtype, (of_o, of_lse), gathers, allocate = known
    stream, is_capturing = (stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    if gathers:
        arrays = _gathered(arrays)
    if o is None:
        o = empty(*of_o, dtype, device)
    lse = empty(*of_lse, torch.float32, device) if needs_lse or is_capturing else None
    call.launch(stream, is_capturing, allocate, (q, k, v, o, lse), arrays, cache, None)
    return o, lse


def backward(
    d_o: Tensor,
    d_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    arguments: Arguments,
    wanted: Sequence[bool] = _NONE_WANTED,
    into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor | None, ...]:
    """dq, dk and dv of the loss's gradients by o and lse, and those by `DIFFERENTIABLE` arguments that are `wanted`.

    Writes dq, dk and dv `into` these tensors, if they are given.
    """
    lse = lse.contiguous()
    d_lse = d_lse if d_lse is None else d_lse.contiguous()
    wanted, arrays = tuple(wanted), arguments[:TENSORS]
    given = q, k, v, o, d_o, lse, d_lse, *(into or _NO_RESULTS), *arrays
    key = arguments[TENSORS:], _native.signature(given) or _in_words(given), wanted
    known = _calls.get(key)
    if known is None:
        _refuse(q, {"k": k, "v": v, "o": o, "d_o": d_o})
        written = into or tuple(map(torch.empty_like, (q, k, v)))
        of_gradients = dict(zip(("d_o", "dq", "dk", "dv"), (d_o, *written)))
        views = _views(arguments.heads_first, q=q, k=k, v=v, o=o, **of_gradients)
        _refuse_sums(q, arguments.heads_first, {"lse": lse, "d_lse": d_lse})
        described = Arrays(q, k, arguments, wanted=wanted)
        results = *written, *described.gradients(arguments, wanted)
        known = _kept(key, q, arguments, views, described, results)
    call, device, dtype, results, gathers, allocate = known
    stream, is_capturing = (stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    if gathers:
        arrays = _gathered(arrays)
    dq, dk, dv = into or [empty(*view, dtype, device) for view in results[:3]]
    others = iter([empty(*view, torch.float32, device) for view in results[3:]])
    d_slopes, d_bias, d_sinks = [next(others) if is_wanted else None for is_wanted in wanted]
    call.launch(
        stream,
        is_capturing,
        allocate,
        (q, k, v, o, lse),
        arrays,
        None,
        (d_o, dq, dk, dv, d_lse, d_slopes, d_bias, d_sinks),
    )
    if d_bias is not None:
        d_bias = summed(d_bias, -1, arguments.bias.shape)
    return dq, dk, dv, d_slopes, d_bias, d_sinks


def summed(gradient: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """A gradient in `shape`, summed over `axis` unless `shape` has all its elements."""
    if gradient.numel() != math.prod(shape):
        gradient = gradient.sum(axis)
    return gradient.reshape(shape)
