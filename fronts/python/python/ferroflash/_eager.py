"""Runs attention on the tensors of a call, at once: allocates what is written and queues the work on the current stream.

Nobody here knows autograd or torch's dispatcher; `_operators` makes operators of these functions.
"""

from __future__ import annotations

import functools
from typing import Callable

import torch
from torch import Tensor

from . import _native
from ._arguments import Arguments

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

# The handle of a GPU's current stream, by the function that Triton and Inductor use: a tenth of the time that a
# `torch.cuda.Stream` takes to make.
_stream_of = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)


@functools.lru_cache(maxsize=1024)
def _options(
    softmax_scale: float | None,
    softcap: float,
    left: int | None,
    right: int | None,
    top_left: bool,
    heads_first: bool,
    deterministic: bool,
) -> _native.Options:
    return _native.Options(
        softmax_scale=softmax_scale,
        softcap=softcap if softcap != 0.0 else None,
        left=left,
        right=right,
        top_left=top_left,
        heads_first=heads_first,
        deterministic=deterministic,
    )


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


def _array(name: str, tensor: Tensor, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...], device: int) -> Tensor:
    """A small array as kernels read it: contiguous. Refuses one of another dtype, shape or device."""
    if tensor.dtype is not dtype:
        raise ValueError(f"{name}: its dtype is {tensor.dtype}; it must be {dtype}")
    if tensor.get_device() != device:
        raise ValueError(f"{name}: it is on {tensor.device}; it must be on the device of q")
    if tuple(tensor.shape) not in shapes:
        allowed = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{name}: its shape is {list(tensor.shape)}; it must be {allowed}")
    return tensor.contiguous()


class _Arrays:
    """The small arrays of a call, held while the work is queued, and as the native half takes them."""

    __slots__ = ("held", "packed", "seqused_kv", "slopes")

    def __init__(self, q: Tensor, device: int, arguments: Arguments) -> None:
        self.packed = self.seqused_kv = self.slopes = None
        cu_seqlens_q, cu_seqlens_kv, seqused_kv, alibi_slopes = arguments[:4]
        self.held = held = []
        batch = q.shape[0]
        if cu_seqlens_q is not None:
            batch = cu_seqlens_q.numel() - 1
            shapes = ((max(batch, 0) + 1,),)
            cu_seqlens_q = _array("cu_seqlens_q", cu_seqlens_q, torch.int32, shapes, device)
            cu_seqlens_kv = _array("cu_seqlens_k", cu_seqlens_kv, torch.int32, shapes, device)
            held += cu_seqlens_q, cu_seqlens_kv
            longest = arguments.max_seqlen_q, arguments.max_seqlen_kv
            self.packed = (cu_seqlens_q.data_ptr(), cu_seqlens_kv.data_ptr(), batch, *longest)
        if seqused_kv is not None:
            seqused_kv = _array("seqused_k", seqused_kv, torch.int32, ((batch,),), device)
            held.append(seqused_kv)
            self.seqused_kv = seqused_kv.data_ptr()
        if alibi_slopes is not None:
            heads = q.shape[1] if arguments.heads_first else q.shape[-2]
            alibi_slopes = _array("alibi_slopes", alibi_slopes, torch.float32, ((heads,), (batch, heads)), device)
            held.append(alibi_slopes)
            self.slopes = (alibi_slopes.data_ptr(), alibi_slopes.dim() == 2)


class _NoArrays:
    packed = seqused_kv = slopes = None


def _arrays(q: Tensor, device: int, arguments: Arguments) -> _Arrays | type[_NoArrays]:
    cu_seqlens_q, cu_seqlens_kv, seqused_kv, alibi_slopes = arguments[:4]
    if (cu_seqlens_q is None) != (cu_seqlens_kv is None):
        missing, given = ("q", "k") if cu_seqlens_q is None else ("k", "q")
        raise ValueError(f"cu_seqlens_{missing}: it is None; it must be given where cu_seqlens_{given} is")
    if cu_seqlens_q is None and seqused_kv is None and alibi_slopes is None:
        return _NoArrays
    return _Arrays(q, device, arguments)


def _operand(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


@functools.cache
def _allocator(device: int) -> Callable[[int, bool], Tensor]:
    """Makes `allocate(bytes, is_zeroed)`, which gives a workspace from torch's allocator, in the order of the current stream."""

    def allocate(count: int, is_zeroed: bool) -> Tensor:
        make = torch.zeros if is_zeroed else torch.empty
        return make(count, dtype=torch.uint8, device=f"cuda:{device}")

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
        or (not q.is_cuda and _is_elsewhere(q, k, v))
    ):
        _refuse(q, (("k", k), ("v", v)))
    stream, is_capturing = (_stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    arrays = _arrays(q, device, arguments)
    if o is None:
        o = empty_output(q, v)
    lse = empty_lse(q, arguments.heads_first) if needs_lse or is_capturing else None
    _native.launch(
        device,
        stream,
        number,
        _options(*arguments[6:]),
        (q.data_ptr(), q.shape, q.stride()),
        (k.data_ptr(), k.shape, k.stride()),
        (v.data_ptr(), v.shape, v.stride()),
        (o.data_ptr(), o.shape, o.stride()),
        None if lse is None else lse.data_ptr(),
        arrays.packed,
        arrays.seqused_kv,
        arrays.slopes,
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
    alibi_gradient: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """dq, dk and dv, and if it is asked for, the gradient by ALiBi's slopes, of the loss's gradients by o and lse."""
    _refuse(q, (("k", k), ("v", v), ("o", o), ("d_o", d_o)))
    device = q.get_device()
    stream, is_capturing = (_stream_of(device), _is_capturing()) if device >= 0 else (0, False)
    arrays = _arrays(q, device, arguments)
    lse = lse.contiguous()
    d_lse = None if d_lse is None else d_lse.contiguous()
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    d_slopes = None
    if alibi_gradient:
        d_slopes = torch.empty(arguments.alibi_slopes.shape, dtype=torch.float32, device=q.device)
    gradients = (
        _operand(d_o),
        None if d_lse is None else d_lse.data_ptr(),
        _operand(dq),
        _operand(dk),
        _operand(dv),
        None if d_slopes is None else d_slopes.data_ptr(),
    )
    _native.launch(
        device,
        stream,
        _DTYPES[q.dtype],
        _options(*arguments[6:]),
        _operand(q),
        _operand(k),
        _operand(v),
        _operand(o),
        lse.data_ptr(),
        arrays.packed,
        arrays.seqused_kv,
        arrays.slopes,
        _allocator(device),
        is_capturing,
        gradients,
    )
    return dq, dk, dv, d_slopes
