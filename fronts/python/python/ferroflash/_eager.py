"""Runs attention on the tensors of a call, at once: allocates what is written and queues the work on the current stream.

Nobody here knows autograd or torch's dispatcher; `_operators` makes operators of these functions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arguments import DIFFERENTIABLE, SCALARS, TENSORS, Arguments, has_arrays
from ._arrays import DTYPES, Arrays, arrays_of
from ._memory import empty, empty_lse, empty_output, workspace_allocator

_NONE = (None,) * TENSORS

# The handle of a GPU's current stream, by the function that Triton and Inductor use: a tenth of the time that a
# `torch.cuda.Stream` takes to make.
stream_of = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)

# Calls that were made, and how the results of each lie, by all that these depend on: everything but addresses.
_Known = tuple[_native.Call, "list[_native.View]"]
_calls: dict[tuple[Any, ...], _Known] = {}
_MOST_CALLS = 4096


@functools.lru_cache(maxsize=1024)
def _options(scalars: tuple[Any, ...]) -> _native.Options:
    """Those of `Arguments`' scalars."""
    return _native.Options(Arguments(*_NONE, 0, 0, *scalars))


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


def dropout_state(device: torch.device) -> Tensor:
    """Seed and offset of dropout from torch's generator, where the device reads them: in a graph others at each replay."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device)


def _view(name: str, tensor: Tensor, heads_first: bool) -> _native.View:
    """How a tensor lies, of rank 4: rows of packed sequences are those of one batch entry."""
    shape, strides = tensor.shape, tensor.stride()
    if len(shape) == 3 and not heads_first:
        shape, strides = (1, *shape), (0, *strides)
    elif len(shape) != 4:
        raise ValueError(f"{name}: it has {len(shape)} axes; it must have 4, or 3 where sequences are packed")
    return shape, strides


def _new_call(
    key: tuple[Any, ...], place: tuple[int, int], heads_first: bool, tensors: dict[str, Tensor], arrays: Arrays | None
) -> _native.Call:
    """Checks a call unlike those that were made. `key` begins with its scalars and its dtype."""
    views = [_view(name, tensor, heads_first) for name, tensor in tensors.items()]
    # The class itself has no array: its attributes are None.
    return _native.Call(*place, DTYPES[key[1]], _options(key[0]), views, arrays or Arrays)


def _kept(key: tuple[Any, ...], call: _native.Call, results: Sequence[Tensor]) -> _Known:
    """Keeps a call, and how its results lie, for the next like it."""
    if len(_calls) >= _MOST_CALLS:
        _calls.clear()  # those that are still made come back
    known = _calls[key] = call, [(tuple(result.shape), result.stride()) for result in results]
    return known


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    arguments: Arguments,
    needs_lse: bool = True,
    o: Tensor | None = None,
    is_bare: bool = False,
    cache: _native.Cache | None = None,
) -> tuple[Tensor, Tensor | None]:
    """o and lse of attention; no lse where it is not needed and a kernel can do without.

    Writes `o`, if it is given, which must be of the shape that o has. Whoever knows that `arguments` hold no tensor says that
    they are bare. Where k and v are a `cache`, it has been checked beside q.
    """
    dtype, device = q.dtype, q.get_device()
    if cache is None and (
        not (dtype is k.dtype is v.dtype)
        or not (device == k.get_device() == v.get_device())
        or (device < 0 and not (q.is_cpu and k.is_cpu and v.is_cpu))
    ):
        _refuse(q, {"k": k, "v": v})
    stream, is_capturing = (stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    key = arguments[SCALARS:], dtype, device, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride()
    arrays = None
    if not is_bare and has_arrays(arguments):
        arrays = arrays_of(q, k, device, arguments)
    if cache is not None:
        arrays = arrays or Arrays(q, k, device, arguments)
        arrays.cache = cache
    if arrays is not None:
        key = *key, arrays.kind()
    if o is not None:
        key = *key, o.shape, o.stride()
    known = _calls.get(key)
    if known is None:
        _refuse(q, {})
        new = empty_output(q, v) if o is None else o
        tensors = {"q": q, "k": k, "v": v, "o": new}
        call = _new_call(key, (device, stream), arguments.heads_first, tensors, arrays)
        known = _kept(key, call, (new, empty_lse(q, arguments.heads_first)))
    call, (of_o, of_lse) = known
    if o is None:
        o = empty(*of_o, dtype, device)
    lse = empty(*of_lse, torch.float32, device) if needs_lse or is_capturing else None
    call.launch(
        stream,
        (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()),
        None if lse is None else lse.data_ptr(),
        workspace_allocator(device),
        is_capturing,
        arrays,
    )
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
    wanted: Sequence[bool] = (False,) * len(DIFFERENTIABLE),
    into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor | None, ...]:
    """dq, dk and dv of the loss's gradients by o and lse, and those by `DIFFERENTIABLE` arguments that are `wanted`.

    Writes dq, dk and dv `into` these tensors, if they are given.
    """
    dtype, device = q.dtype, q.get_device()
    if (
        not (dtype is k.dtype is v.dtype is o.dtype is d_o.dtype)
        or not (device == k.get_device() == v.get_device() == o.get_device() == d_o.get_device())
        or (device < 0 and not (q.is_cpu and k.is_cpu and v.is_cpu and o.is_cpu and d_o.is_cpu))
    ):
        _refuse(q, {"k": k, "v": v, "o": o, "d_o": d_o})
    stream, is_capturing = (stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    arrays = arrays_of(q, k, device, arguments) if has_arrays(arguments) else None
    lse = lse.contiguous()
    others: dict[str, Tensor] = {}
    if d_lse is not None or any(wanted):
        arrays = arrays or Arrays(q, k, device, arguments)
        if d_lse is not None:
            d_lse = d_lse.contiguous()
            arrays.d_lse = d_lse.data_ptr()
        for name in itertools.compress(DIFFERENTIABLE, wanted):
            others[name] = arrays.ask(name, getattr(arguments, name))
    key = arguments[SCALARS:], dtype, device, q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride()
    key = *key, o.shape, o.stride(), d_o.shape, d_o.stride(), arrays and arrays.kind()
    if into is not None:
        key = *key, *((x.shape, x.stride()) for x in into)
    known = _calls.get(key)
    if known is None:
        _refuse(q, {})
        written = into or tuple(map(torch.empty_like, (q, k, v)))
        tensors = {"q": q, "k": k, "v": v, "o": o, "d_o": d_o, **dict(zip(("dq", "dk", "dv"), written))}
        known = _kept(key, _new_call(key, (device, stream), arguments.heads_first, tensors, arrays), written)
    call, views = known
    dq, dk, dv = into or [empty(*view, dtype, device) for view in views]
    call.launch(
        stream,
        (q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()),
        lse.data_ptr(),
        workspace_allocator(device),
        is_capturing,
        arrays,
        (d_o.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr()),
    )
    if "bias" in others:
        others["bias"] = summed(others["bias"], -1, arguments.bias.shape)
    return dq, dk, dv, *map(others.get, DIFFERENTIABLE)


def summed(gradient: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """A gradient in `shape`, summed over `axis` unless `shape` has all its elements."""
    if gradient.numel() != math.prod(shape):
        gradient = gradient.sum(axis)
    return gradient.reshape(shape)
