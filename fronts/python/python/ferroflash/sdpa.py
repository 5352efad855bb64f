"""torch's `scaled_dot_product_attention`, by name and signature."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from . import _eager
from ._arguments import Arguments, window
from ._refuse import refuse
from .torch import run

__all__ = ["scaled_dot_product_attention"]

_MAX_HEAD_DIM = 256


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window_size: tuple[int | None, int | None] = (None, None),
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` by ferroflash, where it can, else by torch.

    query [batch, heads_q, seq_q, head_dim], key and value [batch, heads_k, seq_k, head_dim] in float32, float16 or bfloat16, with
    a head_dim of at most 256 are ferroflash's, with dropout and masks of any strides, unless a mask requires a gradient.
    is_causal is aligned to the top-left corner: query i sees the keys up to i.

    window_size, which torch does not have, bounds the keys that are seen before and after a query's position, from the top-left
    corner too; None is an open side.

    Raises:
        NotImplementedError: a window is asked for beside something that ferroflash does not cover.
    """
    if not is_covered(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        refuse(window_size=None if window_size == (None, None) else window_size)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    left, right = window(window_size, is_causal)
    arguments = Arguments(softmax_scale=scale, left=left, right=right, top_left=True, heads_first=True)
    if attn_mask is not None:
        kind = "mask" if attn_mask.dtype is torch.bool else "bias"
        arguments = arguments._replace(**{kind: attn_mask})
    if dropout_p:
        arguments = arguments._replace(dropout_state=_eager.dropout_state(query.device), dropout_p=dropout_p)
    return run(query, key, value, arguments, False)[0]


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
        and not attn_mask.requires_grad
        and attn_mask.device == query.device
        and attn_mask.dim() <= 4
        and all(size in (1, whole) for size, whole in zip(reversed(attn_mask.shape), reversed(pairs)))
    )
