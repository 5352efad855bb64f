"""Memory from torch's allocators, past its dispatcher, which takes longer than they do."""

from __future__ import annotations

import functools
from typing import Callable

import torch
from torch import Tensor

# What Inductor's graphs allocate by, on the CPU and on the current GPU.
_on_cpu = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
_on_current = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_current = getattr(torch._C, "_cuda_getDevice", None)


def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: int) -> Tensor:
    """A tensor whose elements may be anything, on a GPU or, if `device` is negative, on the CPU.

    Neither tuple may be of a subclass, as shapes of tensors are.
    """
    if device >= 0:
        if _on_current is not None and _current is not None and _current() == device:
            return _on_current(shape, strides, dtype)
        return torch.empty_strided(shape, strides, dtype=dtype, device=torch.device("cuda", device))
    if _on_cpu is not None:
        return _on_cpu(shape, strides, dtype)
    return torch.empty_strided(shape, strides, dtype=dtype)


def allocator(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: int
) -> Callable[[], Tensor]:
    """Makes what gives tensors of `empty`, without a frame of Python where no other GPU can be the current one."""
    if device < 0 and _on_cpu is not None:
        return functools.partial(_on_cpu, shape, strides, dtype)
    if device >= 0 and _on_current is not None and torch.cuda.device_count() == 1:
        return functools.partial(_on_current, shape, strides, dtype)
    return functools.partial(empty, shape, strides, dtype, device)


@functools.cache
def workspace_allocator(device: int) -> Callable[[int, int], Tensor]:
    """Makes `allocate(bytes, zeroed)`, which gives a workspace in the order of a GPU's current stream.

    Its first `zeroed` bytes are 0.
    """

    def allocate(count: int, zeroed: int) -> Tensor:
        workspace = empty((count,), (1,), torch.uint8, device)
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
