"""What of torch's `scaled_dot_product_attention` ferroflash computes."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _eager

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
    return (
        0.0 <= dropout_p < 1.0
        and query.dim() == key.dim() == value.dim() == 4
        and query.dtype in _eager._DTYPES
        and query.dtype is key.dtype is value.dtype
        and query.device == key.device == value.device
        and query.device.type in ("cpu", "cuda")
        and query.shape[-1] == key.shape[-1]
        and 0 < query.shape[-1] <= _MAX_HEAD_DIM
        and 0 < value.shape[-1] <= _MAX_HEAD_DIM
        and query.shape[0] == key.shape[0] == value.shape[0]
        and key.shape[1:3] == value.shape[1:3]
        and (query.shape[1] == key.shape[1] or (enable_gqa and key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0))
        and (attn_mask is None or (not is_causal and _is_mask_covered(query, key, attn_mask)))
    )


def _is_mask_covered(query: Tensor, key: Tensor, attn_mask: Tensor) -> bool:
    pairs = *query.shape[:3], key.shape[2]
    return (
        (attn_mask.dtype is torch.bool or attn_mask.dtype in _eager._DTYPES)
        and attn_mask.device == query.device
        and attn_mask.dim() <= 4
        and all(size in (1, whole) for size, whole in zip(reversed(attn_mask.shape), reversed(pairs)))
    )
