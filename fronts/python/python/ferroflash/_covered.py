"""What of torch's `scaled_dot_product_attention` ferroflash computes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ._arrays import DTYPES

_MAX_HEAD_DIM = 256


def is_covered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether ferroflash gives what torch would, for these arguments."""
    dtype, device, shapes = query.dtype, query.device, (query.shape, key.shape, value.shape)
    if not (0.0 <= dropout_p < 1.0 and len(shapes[0]) == len(shapes[1]) == len(shapes[2]) == 4):
        return False
    (batch, heads, _, dim), (batch_k, heads_k, seq_k, dim_k), (batch_v, heads_v, seq_v, dim_v) = shapes
    return (
        dtype in DTYPES
        and dtype is key.dtype is value.dtype
        and device == key.device == value.device
        and device.type in ("cpu", "cuda")
        and dim == dim_k
        and 0 < dim <= _MAX_HEAD_DIM
        and 0 < dim_v <= _MAX_HEAD_DIM
        and batch == batch_k == batch_v
        and heads_k == heads_v
        and seq_k == seq_v
        and (heads == heads_k or (enable_gqa and heads_k > 0 and heads % heads_k == 0))
        and (attn_mask is None or (not is_causal and _is_mask_covered(query, key, attn_mask)))
    )


def _is_mask_covered(query: Tensor, key: Tensor, attn_mask: Tensor) -> bool:
    pairs = *query.shape[:3], key.shape[2]
    return (
        (attn_mask.dtype is torch.bool or attn_mask.dtype in DTYPES)
        and attn_mask.device == query.device
        and attn_mask.dim() <= 4
        and all(size in (1, whole) for size, whole in zip(reversed(attn_mask.shape), reversed(pairs)))
    )


# Of q, k and v without a mask and dropout; with groups of heads allowed, and without.
with_groups = functools.partial(is_covered, attn_mask=None, dropout_p=0.0, is_causal=False, enable_gqa=True)
without_groups = functools.partial(is_covered, attn_mask=None, dropout_p=0.0, is_causal=False, enable_gqa=False)
