"""Runs attention on the tensors of a call, at once: allocates what is written and queues the work on the current stream.

Nobody here knows autograd or torch's dispatcher; `_operators` makes operators of these functions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from . import _native
from ._arguments import DIFFERENTIABLE, SCALARS, TENSORS, Arguments, has_arrays

_NONE = (None,) * TENSORS
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

# The handle of a GPU's current stream, by the function that Triton and Inductor use: a tenth of the time that a
# `torch.cuda.Stream` takes to make.
_stream_of = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)


@functools.lru_cache(maxsize=1024)
def _options(scalars: tuple[Any, ...]) -> _native.Options:
    """Those of `Arguments`' scalars."""
    return _native.Options(Arguments(*_NONE, 0, 0, *scalars))


def _is_elsewhere(*tensors: Tensor) -> bool:
    """Whether a tensor is not on the CPU, of those that are on no numbered device or on one that is not CUDA's."""
    return any(tensor.device.type != "cpu" for tensor in tensors)


def _refuse(q: Tensor, others: tuple[tuple[str, Tensor], ...]) -> None:
    """Refuses tensors that are not of q's dtype or not on its device, if there are any."""
    if q.dtype not in _DTYPES:
        raise ValueError(f"q: its dtype is {q.dtype}; it must be float32, float16 or bfloat16")
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q: it is on {q.device}; it must be on the CPU or a CUDA device")
    for name, tensor in others:
        if tensor.dtype is not q.dtype:
            raise ValueError(f"{name}: its dtype is {tensor.dtype}; it must be {q.dtype}, that of q")
        if tensor.device != q.device:
            raise ValueError(f"{name}: it is on {tensor.device}; it must be on {q.device}, as q is")


def _pairs(
    name: str, tensor: Tensor, whole: tuple[int, ...], device: int, merges: bool = True
) -> _native.Operand | None:
    """An array over pairs, where it lies, None if it is empty; if it `merges`, an expanded axis has a size of 1."""
    missing = 4 - tensor.dim()
    if missing < 0:
        raise ValueError(f"{name}: it has {tensor.dim()} axes; it must have 4 or fewer")
    if tensor.get_device() != device:
        raise ValueError(f"{name}: it is on {tensor.device}; it must be on the device of q")
    shape, strides = [*[1] * missing, *tensor.shape], [*[0] * missing, *tensor.stride()]
    for axis in range(3):
        if merges and strides[axis] == 0 and shape[axis] == whole[axis]:
            shape[axis] = 1
    if shape[3] == 1:
        shape[3], strides[3] = whole[3], 0
    return (tensor.data_ptr(), tuple(shape), tuple(strides)) if tensor.numel() else None


class _Arrays:
    """What a call has beside q, k, v and o, as the native half takes it: what is not there is None."""

    packed: tuple[int, int, int, int, int] | None = None
    seqused_k: int | None = None
    alibi_slopes: tuple[int, bool] | None = None
    mask: _native.Operand | None = None
    bias: tuple[_native.Operand, int] | None = None
    sinks: int | None = None
    documents: tuple[int, int, bool] | None = None
    prefix_len: int | None = None
    dropout_state: int | None = None
    d_lse: int | None = None
    d_alibi_slopes: int | None = None
    d_bias: int | None = None
    d_sinks: int | None = None

    def __init__(self, q: Tensor, k: Tensor, device: int, arguments: Arguments) -> None:
        self._device = device
        # Held while the work is queued.
        self._held: list[Tensor] = []
        first = arguments.heads_first
        batch, heads, seq_q = q.shape[0], q.shape[1 if first else -2], q.shape[2 if first else -3]
        seq_k = k.shape[2 if first else -3]
        if arguments.cu_seqlens_q is not None:
            batch = arguments.cu_seqlens_q.numel() - 1
            seq_q, seq_k = arguments.max_seqlen_q, arguments.max_seqlen_kv
            shape = (max(batch, 0) + 1,)
            at_q = self._array("cu_seqlens_q", arguments.cu_seqlens_q, torch.int32, shape)
            at_k = self._array("cu_seqlens_k", arguments.cu_seqlens_kv, torch.int32, shape)
            self.packed = (at_q, at_k, batch, seq_q, seq_k)
        if arguments.seqused_kv is not None:
            self.seqused_k = self._array("seqused_k", arguments.seqused_kv, torch.int32, (batch,))
        if (slopes := arguments.alibi_slopes) is not None:
            at = self._array("alibi_slopes", slopes, torch.float32, (heads,), (batch, heads))
            self.alibi_slopes = at, slopes.dim() == 2
        self._whole = batch, heads, seq_q, seq_k
        self._modifiers(arguments, (q.shape[-3], k.shape[-3]) if not first else (seq_q, seq_k))

    def _modifiers(self, arguments: Arguments, rows: tuple[int, int]) -> None:
        batch, heads = self._whole[:2]
        if (mask := arguments.mask) is not None:
            if mask.dtype not in (torch.bool, torch.uint8):
                raise ValueError(f"mask: its dtype is {mask.dtype}; it must be bool or uint8")
            self.mask = _pairs("mask", mask, self._whole, self._device)
        if (bias := arguments.bias) is not None:
            if bias.dtype not in _DTYPES:
                raise ValueError(f"bias: its dtype is {bias.dtype}; it must be float32, float16 or bfloat16")
            at = _pairs("bias", bias, self._whole, self._device)
            self.bias = None if at is None else (at, _DTYPES[bias.dtype])
        if arguments.sinks is not None:
            self.sinks = self._array("sinks", arguments.sinks, torch.float32, (heads,))
        if (doc_q := arguments.doc_q) is not None and (doc_kv := arguments.doc_kv) is not None:
            is_batched = doc_q.dim() == 2
            shapes = [((batch,) if is_batched else ()) + (count,) for count in rows]
            at = [
                self._array(name, ids, torch.int32, shape)
                for name, ids, shape in zip(("doc_q", "doc_k"), (doc_q, doc_kv), shapes)
            ]
            self.documents = (*at, is_batched) if all(at) else None
        if arguments.prefix_len is not None:
            self.prefix_len = self._array("prefix_len", arguments.prefix_len, torch.int32, (batch,))
        if arguments.dropout_state is not None:
            self.dropout_state = self._array("dropout_state", arguments.dropout_state, torch.int64, (2,))

    def ask(self, name: str, tensor: Tensor) -> Tensor:
        """Has the gradient by an argument written, and returns it: float32 of its shape, but with all keys for a bias of one."""
        shape: Sequence[int] = tensor.shape
        if name == "bias":
            # As it is: elements of an expanded axis have gradients of their own.
            at = _pairs(name, tensor, self._whole, self._device, merges=False)
            if at is None:
                return tensor.new_empty(shape, dtype=torch.float32)
            self.bias, shape = (at, _DTYPES[tensor.dtype]), at[1]
        gradient = tensor.new_empty(shape, dtype=torch.float32)
        setattr(self, f"d_{name}", gradient.data_ptr())
        return gradient

    def _array(self, name: str, tensor: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...]) -> int:
        """Where a small array lies, made contiguous, as kernels read it. Refuses one of another dtype, shape or device."""
        if tensor.dtype is not dtype:
            raise ValueError(f"{name}: its dtype is {tensor.dtype}; it must be {dtype}")
        if tensor.get_device() != self._device:
            raise ValueError(f"{name}: it is on {tensor.device}; it must be on the device of q")
        if tuple(tensor.shape) not in shapes:
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            raise ValueError(f"{name}: its shape is {list(tensor.shape)}; it must be {allowed}")
        tensor = tensor.contiguous()
        self._held.append(tensor)
        return tensor.data_ptr()


# What makes no sense alone.
_TOGETHER = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_k"), ("doc_q", "doc_kv", "doc_k")


def _arrays(q: Tensor, k: Tensor, device: int, arguments: Arguments) -> _Arrays:
    for first, second, named in _TOGETHER:
        if (getattr(arguments, first) is None) != (getattr(arguments, second) is None):
            missing, given = (first, named) if getattr(arguments, first) is None else (named, first)
            raise ValueError(f"{missing}: it is None; it must be given where {given} is")
    return _Arrays(q, k, device, arguments)


def dropout_state(device: torch.device) -> Tensor:
    """Seed and offset of dropout from torch's generator, where the device reads them: in a graph others at each replay."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device)


def _operand(name: str, tensor: Tensor, heads_first: bool) -> _native.Operand:
    """A tensor where it lies, of rank 4: rows of packed sequences are those of one batch entry."""
    shape, strides = tensor.shape, tensor.stride()
    if len(shape) == 3 and not heads_first:
        shape, strides = (1, *shape), (0, *strides)
    elif len(shape) != 4:
        raise ValueError(f"{name}: it has {len(shape)} axes; it must have 4, or 3 where sequences are packed")
    return tensor.data_ptr(), shape, strides


def _operands(heads_first: bool, **tensors: Tensor) -> tuple[_native.Operand, ...]:
    return tuple(_operand(name, tensor, heads_first) for name, tensor in tensors.items())


@functools.cache
def _allocator(device: int) -> Callable[[int, int], Tensor]:
    """Makes `allocate(bytes, zeroed)`, which gives a workspace from torch's allocator, in the order of the current stream.

    Its first `zeroed` bytes are 0.
    """

    def allocate(count: int, zeroed: int) -> Tensor:
        workspace = torch.empty(count, dtype=torch.uint8, device=f"cuda:{device}")
        if zeroed:
            workspace[:zeroed].zero_()
        return workspace

    return allocate


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """o's memory: in the order of q's axes in memory, without gaps."""
    if q.shape[-1] == v.shape[-1]:
        return torch.empty_like(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def empty_lse(q: Tensor, heads_first: bool) -> Tensor:
    """lse's memory: [batch, heads_q, seq_q], of packed sequences [heads_q, total_q]."""
    if q.dim() == 3:
        shape = (q.shape[1], q.shape[0])
    elif heads_first:
        shape = q.shape[:3]
    else:
        shape = (q.shape[0], q.shape[2], q.shape[1])
    return torch.empty(shape, dtype=torch.float32, device=q.device)


def forward(
    q: Tensor, k: Tensor, v: Tensor, arguments: Arguments, needs_lse: bool = True, o: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """o and lse of attention; no lse where it is not needed and a kernel can do without.

    Writes `o`, if it is given, which must be of the shape that o has.
    """
    dtype, device = q.dtype, q.get_device()
    number = _DTYPES.get(dtype)
    if (
        number is None
        or not (dtype is k.dtype is v.dtype)
        or not (device == k.get_device() == v.get_device())
        or (device < 0 and _is_elsewhere(q, k, v))
    ):
        _refuse(q, (("k", k), ("v", v)))
    stream, is_capturing = (_stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    arrays = _arrays(q, k, device, arguments) if has_arrays(arguments) else None
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    if o is None:
        o = torch.empty_like(q) if q_shape[-1] == v_shape[-1] else empty_output(q, v)
    lse = empty_lse(q, arguments.heads_first) if needs_lse or is_capturing else None
    if len(q_shape) == len(k_shape) == len(v_shape) == 4:
        operands = (
            (q.data_ptr(), q_shape, q.stride()),
            (k.data_ptr(), k_shape, k.stride()),
            (v.data_ptr(), v_shape, v.stride()),
            (o.data_ptr(), o.shape, o.stride()),
        )
    else:
        operands = _operands(arguments.heads_first, q=q, k=k, v=v, o=o)
    _native.launch(
        device,
        stream,
        number,
        _options(arguments[SCALARS:]),
        operands,
        None if lse is None else lse.data_ptr(),
        arrays,
        _allocator(device),
        is_capturing,
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
    _refuse(q, (("k", k), ("v", v), ("o", o), ("d_o", d_o)))
    device = q.get_device()
    stream, is_capturing = (_stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    arrays = _arrays(q, k, device, arguments) if has_arrays(arguments) else None
    lse = lse.contiguous()
    dq, dk, dv = into or (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    others: dict[str, Tensor] = {}
    if d_lse is not None or any(wanted):
        arrays = arrays or _Arrays(q, k, device, arguments)
        if d_lse is not None:
            d_lse = d_lse.contiguous()
            arrays.d_lse = d_lse.data_ptr()
        for name in itertools.compress(DIFFERENTIABLE, wanted):
            others[name] = arrays.ask(name, getattr(arguments, name))
    _native.launch(
        device,
        stream,
        _DTYPES[q.dtype],
        _options(arguments[SCALARS:]),
        _operands(arguments.heads_first, q=q, k=k, v=v, o=o, d_o=d_o, dq=dq, dk=dk, dv=dv),
        lse.data_ptr(),
        arrays,
        _allocator(device),
        is_capturing,
    )
    if "bias" in others:
        others["bias"] = summed(others["bias"], -1, arguments.bias.shape)
    return dq, dk, dv, *map(others.get, DIFFERENTIABLE)


def summed(gradient: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
    """A gradient in `shape`, summed over `axis` unless `shape` has all its elements."""
    if gradient.numel() != math.prod(shape):
        gradient = gradient.sum(axis)
    return gradient.reshape(shape)
