"""The arrays that a call has beside q, k and v: checked, and described."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arguments import DIFFERENTIABLE, Arguments
from ._refuse import refuse_alone

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


def _pairs(name: str, tensor: Tensor, whole: tuple[int, ...], device: int, merges: bool = True) -> _native.View | None:
    """How an array over pairs lies, None if it is empty; if it `merges`, an expanded axis has a size of 1."""
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
    return (tuple(shape), tuple(strides)) if tensor.numel() else None


class Arrays:
    """What a call has beside q, k, v and o, checked, as the native half takes it: everything but addresses."""

    packed: tuple[int, int, int] | None = None
    seqused_k = False
    # Whether each batch entry has its own.
    alibi_slopes: bool | None = None
    mask: _native.View | None = None
    bias: tuple[_native.View, int] | None = None
    sinks = False
    documents: bool | None = None
    prefix_len = False
    dropout_state = False
    # Whether small arrays have to be made contiguous at each launch.
    gathers = False

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        arguments: Arguments,
        cache: _native.Cache | None = None,
        wanted: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        """Refuses what is of a wrong dtype, shape or device, or makes no sense alone; of `wanted` are gradients written too."""
        refuse_alone(cu_seqlens_q=arguments.cu_seqlens_q, cu_seqlens_k=arguments.cu_seqlens_kv)
        refuse_alone(doc_q=arguments.doc_q, doc_k=arguments.doc_kv)
        self.cache, self.wanted, self._device = cache, wanted, q.get_device()
        heads_axis, rows_axis = (1, 2) if arguments.heads_first else (-2, -3)
        batch, heads, seq_q, seq_k = q.shape[0], q.shape[heads_axis], q.shape[rows_axis], k.shape[rows_axis]
        rows = seq_q, seq_k
        if (sums := arguments.cu_seqlens_q) is not None and (sums_k := arguments.cu_seqlens_kv) is not None:
            batch = sums.numel() - 1
            seq_q, seq_k = arguments.max_seqlen_q, arguments.max_seqlen_kv
            for name, array in (("cu_seqlens_q", sums), ("cu_seqlens_k", sums_k)):
                self._check(name, array, torch.int32, (max(batch, 0) + 1,))
            self.packed = (batch, seq_q, seq_k)
        if arguments.seqused_kv is not None:
            self.seqused_k = self._check("seqused_k", arguments.seqused_kv, torch.int32, (batch,))
        if (slopes := arguments.alibi_slopes) is not None:
            self._check("alibi_slopes", slopes, torch.float32, (heads,), (batch, heads))
            self.alibi_slopes = slopes.dim() == 2
        self._whole = batch, heads, seq_q, seq_k
        self._modifiers(arguments, rows)

    def _modifiers(self, arguments: Arguments, rows: tuple[int, int]) -> None:
        batch, heads = self._whole[:2]
        if (mask := arguments.mask) is not None:
            if mask.dtype not in (torch.bool, torch.uint8):
                raise ValueError(f"mask: its dtype is {mask.dtype}; it must be bool or uint8")
            self.mask = _pairs("mask", mask, self._whole, self._device)
        if (bias := arguments.bias) is not None:
            if bias.dtype not in DTYPES:
                raise ValueError(f"bias: its dtype is {bias.dtype}; it must be float32, float16 or bfloat16")
            # One by which there is a gradient as it is: elements of an expanded axis have gradients of their own.
            d_slopes, d_bias, d_sinks = self.wanted
            view = _pairs("bias", bias, self._whole, self._device, merges=not d_bias)
            if view is not None:
                self.bias = (view, DTYPES[bias.dtype])
            self.wanted = d_slopes, d_bias and view is not None, d_sinks
        if arguments.sinks is not None:
            self.sinks = self._check("sinks", arguments.sinks, torch.float32, (heads,))
        if (doc_q := arguments.doc_q) is not None and (doc_kv := arguments.doc_kv) is not None:
            is_batched = doc_q.dim() == 2
            for name, ids, count in zip(("doc_q", "doc_k"), (doc_q, doc_kv), rows):
                self._check(name, ids, torch.int32, ((batch,) if is_batched else ()) + (count,))
            self.documents = is_batched if doc_q.numel() and doc_kv.numel() else None
        if arguments.prefix_len is not None:
            self.prefix_len = self._check("prefix_len", arguments.prefix_len, torch.int32, (batch,))
        if arguments.dropout_state is not None:
            self.dropout_state = self._check("dropout_state", arguments.dropout_state, torch.int64, (2,))

    def _check(self, name: str, tensor: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...]) -> bool:
        """Refuses a small array of another dtype, shape or device; else it is there."""
        if tensor.dtype is not dtype:
            raise ValueError(f"{name}: its dtype is {tensor.dtype}; it must be {dtype}")
        if tensor.get_device() != self._device:
            raise ValueError(f"{name}: it is on {tensor.device}; it must be on the device of q")
        if tensor.shape not in shapes:
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            raise ValueError(f"{name}: its shape is {list(tensor.shape)}; it must be {allowed}")
        self.gathers |= not tensor.is_contiguous()
        return True

    def gradients(self, arguments: Arguments, wanted: Sequence[bool]) -> list[Tensor]:
        """Memory for the gradients that are `wanted`: float32 of an argument's shape, but with all keys for a bias of one."""
        memory = []
        for name in itertools.compress(DIFFERENTIABLE, wanted):
            given = getattr(arguments, name)
            shape = given.shape if name != "bias" or self.bias is None else self.bias[0][0]
            memory.append(given.new_empty(shape, dtype=torch.float32))
        return memory


def kind_of_cache(cache: _native.Cache) -> tuple[Any, ...]:
    """What a plan depends on of a cache: not where it lies."""
    is_e4m3, _, table, scales, tree = cache
    return is_e4m3, table and table[1:], scales and tuple(view for _, view in scales), tree and tree[1]
