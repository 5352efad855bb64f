"""The small arrays of a call: checked, and given by address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arguments import Arguments, has_modifiers
from ._refuse import refuse_alone

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


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
    return (tensor.data_ptr(), (tuple(shape), tuple(strides))) if tensor.numel() else None


class Arrays:
    """What a call has beside q, k, v and o, as the native half takes it: what is not there is None."""

    packed: tuple[int, int, int, int, int] | None = None
    seqused_k: int | None = None
    alibi_slopes: tuple[int, bool] | None = None
    mask: _native.Operand | None = None
    bias: tuple[int, _native.View, int] | None = None
    sinks: int | None = None
    documents: tuple[int, int, bool] | None = None
    prefix_len: int | None = None
    dropout_state: int | None = None
    cache: _native.Cache | None = None
    d_lse: int | None = None
    d_alibi_slopes: int | None = None
    d_bias: int | None = None
    d_sinks: int | None = None

    def __init__(self, q: Tensor, k: Tensor, device: int, arguments: Arguments) -> None:
        self._device = device
        # Held while the work is queued.
        self._held: list[Tensor] = []
        q_shape, k_shape = q.shape, k.shape
        heads_axis, rows_axis = (1, 2) if arguments.heads_first else (-2, -3)
        batch, heads, seq_q, seq_k = q_shape[0], q_shape[heads_axis], q_shape[rows_axis], k_shape[rows_axis]
        rows = seq_q, seq_k
        if (sums := arguments.cu_seqlens_q) is not None:
            batch = sums.numel() - 1
            seq_q, seq_k = arguments.max_seqlen_q, arguments.max_seqlen_kv
            shape = (max(batch, 0) + 1,)
            at_q = self._array("cu_seqlens_q", sums, torch.int32, shape)
            at_k = self._array("cu_seqlens_k", arguments.cu_seqlens_kv, torch.int32, shape)
            self.packed = (at_q, at_k, batch, seq_q, seq_k)
        if arguments.seqused_kv is not None:
            self.seqused_k = self._array("seqused_k", arguments.seqused_kv, torch.int32, (batch,))
        if (slopes := arguments.alibi_slopes) is not None:
            at = self._array("alibi_slopes", slopes, torch.float32, (heads,), (batch, heads))
            self.alibi_slopes = at, slopes.dim() == 2
        self._whole = batch, heads, seq_q, seq_k
        if has_modifiers(arguments):
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
            at = _pairs("bias", bias, self._whole, self._device)
            self.bias = None if at is None else (*at, DTYPES[bias.dtype])
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

    def kind(self) -> tuple[Any, ...]:
        """What a plan depends on: which arrays there are, and how they lie, but not where."""
        return (
            self.packed and self.packed[2:],
            self.seqused_k is None,
            self.alibi_slopes and self.alibi_slopes[1:],
            self.mask and self.mask[1:],
            self.bias and self.bias[1:],
            self.sinks is None,
            self.documents and self.documents[2:],
            self.prefix_len is None,
            self.dropout_state is None,
            self.cache and _kind_of_cache(self.cache),
            self.d_alibi_slopes is None,
            self.d_bias is None,
            self.d_sinks is None,
        )

    def ask(self, name: str, tensor: Tensor) -> Tensor:
        """Has the gradient by an argument written, and returns it: float32 of its shape, but with all keys for a bias of one."""
        shape: Sequence[int] = tensor.shape
        if name == "bias":
            # As it is: elements of an expanded axis have gradients of their own.
            at = _pairs(name, tensor, self._whole, self._device, merges=False)
            if at is None:
                return tensor.new_empty(shape, dtype=torch.float32)
            self.bias, shape = (*at, DTYPES[tensor.dtype]), at[1][0]
        gradient = tensor.new_empty(shape, dtype=torch.float32)
        setattr(self, f"d_{name}", gradient.data_ptr())
        return gradient

    def _array(self, name: str, tensor: Tensor, dtype: torch.dtype, *shapes: tuple[int, ...]) -> int:
        """Where a small array lies, made contiguous, as kernels read it. Refuses one of another dtype, shape or device."""
        if tensor.dtype is not dtype:
            raise ValueError(f"{name}: its dtype is {tensor.dtype}; it must be {dtype}")
        if tensor.get_device() != self._device:
            raise ValueError(f"{name}: it is on {tensor.device}; it must be on the device of q")
        if tensor.shape not in shapes:
            allowed = " or ".join(str(list(shape)) for shape in shapes)
            raise ValueError(f"{name}: its shape is {list(tensor.shape)}; it must be {allowed}")
        tensor = tensor.contiguous()
        self._held.append(tensor)
        return tensor.data_ptr()


def _kind_of_cache(cache: _native.Cache) -> tuple[Any, ...]:
    is_e4m3, _, table, scales = cache
    return is_e4m3, table and table[1:], scales and tuple(view for _, view in scales)


def arrays_of(q: Tensor, k: Tensor, device: int, arguments: Arguments) -> Arrays:
    """Those of a call. Refuses what makes no sense alone."""
    # Asked here first: each call of a packed batch comes by.
    if (arguments.cu_seqlens_q is None) != (arguments.cu_seqlens_kv is None):
        refuse_alone(cu_seqlens_q=arguments.cu_seqlens_q, cu_seqlens_k=arguments.cu_seqlens_kv)
    if (arguments.doc_q is None) != (arguments.doc_kv is None):
        refuse_alone(doc_q=arguments.doc_q, doc_k=arguments.doc_kv)
    return Arrays(q, k, device, arguments)
