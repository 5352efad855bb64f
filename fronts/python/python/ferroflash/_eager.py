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
from ._memory import allocator, empty_lse, empty_output, workspace_allocator

# The handle of a GPU's current stream, by the function that Triton and Inductor use: a tenth of the time that a
# `torch.cuda.Stream` takes to make.
_raw_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)

# Calls that were made, by all that they depend on: scalars, and how tensors lie, but not where.
_calls: dict[tuple[Any, ...], _Known] = {}
_MOST_CALLS = 4096


class _Known(NamedTuple):
    """A call that was made, and what each like it needs."""

    call: _native.Call
    device: int
    # What gives its results memory.
    results: list[Callable[[], Tensor]]
    # Whether arrays have to be made contiguous.
    gathers: bool


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
    memory = [allocator(tuple(result.shape), result.stride(), result.dtype, device) for result in results]
    of_forward = (memory[0], memory[1]) if len(memory) == 2 else None
    place, allocate = (device, stream_of(device)), workspace_allocator(device)
    call = _native.checked(place, DTYPES[q.dtype], options, views, arrays, allocate, of_forward)
    if len(_calls) >= _MOST_CALLS:
        _calls.clear()  # those that are still made come back
    known = _calls[key] = _Known(call, device, memory, arrays.gathers)
    return known


def stream_of(device: int) -> int:
    """The handle of a GPU's current stream; 0 of the CPU, whose number is negative."""
    return _raw_stream(device) if device >= 0 else 0


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
    known = _known(q, k, v, arguments, o, cache)
    return _launched(known, q, k, v, arguments[:TENSORS], needs_lse, o, cache)


def forward_bare(
    q: Tensor, k: Tensor, v: Tensor, bare: Bare, lengths: Lengths, needs_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """`forward` where there is no tensor but q, k, v and those of `lengths`, for calls that `bare` has not kept: it keeps them."""
    arguments = with_lengths(lengths, bare.arguments)
    known = _known(q, k, v, arguments)
    if not known.gathers:
        bare.calls.keep(q, k, v, lengths, known.call)
    return _launched(known, q, k, v, arguments[:TENSORS], needs_lse)


def _known(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arguments: Arguments,
    o: Tensor | None = None,
    cache: _native.Cache | None = None,
) -> _Known:
    """A forward pass that was made before, or is checked."""
    given = q, k, v, o, *arguments[:TENSORS]
    key = arguments[TENSORS:], _native.signature(given) or _in_words(given), cache and kind_of_cache(cache)
    return _calls.get(key) or _checked(key, q, k, v, arguments, o, cache)


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
    """o and lse of a forward pass."""
    if known.gathers:
        arrays = _gathered(arrays)
    return known.call.forward(stream_of(known.device), (q, k, v), o, arrays, cache, needs_lse)


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
    if known.gathers:
        arrays = _gathered(arrays)
    dq, dk, dv = into or [allocate() for allocate in known.results[:3]]
    others = iter([allocate() for allocate in known.results[3:]])
    d_slopes, d_bias, d_sinks = [next(others) if is_wanted else None for is_wanted in wanted]
    gradients = d_o, dq, dk, dv, d_lse, d_slopes, d_bias, d_sinks
    known.call.backward(stream_of(known.device), (q, k, v, o, lse), arrays, gradients)
    if d_bias is not None:
        d_bias = summed(d_bias, -1, arguments.bias.shape)
    return dq, dk, dv, d_slopes, d_bias, d_sinks


def summed(gradient: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """A gradient in `shape`, summed over `axis` unless `shape` has all its elements."""
    if gradient.numel() != math.prod(shape):
        gradient = gradient.sum(axis)
    return gradient.reshape(shape)
