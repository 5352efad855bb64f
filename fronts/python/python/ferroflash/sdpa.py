"""torch's `scaled_dot_product_attention`, by name and signature."""

from __future__ import annotations

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
    a head_dim of at most 256, without a mask and without dropout, are ferroflash's. is_causal is aligned to the top-left
    corner: query i sees the keys up to i.

    window_size, which torch does not have, bounds the keys that are seen before and after a query's position, from the top-left
    corner too; None is an open side.

    Raises:
        NotImplementedError: a window is asked for beside something that ferroflash does not cover; it names that.
    """
    left, right = window(window_size, is_causal)
    if not is_covered(query, key, value, attn_mask, dropout_p, enable_gqa):
        if window_size != (None, None):
            refuse(attn_mask=attn_mask is not None, dropout_p=dropout_p != 0.0, window_size=True)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    arguments = Arguments(softmax_scale=scale, left=left, right=right, top_left=True, heads_first=True)
    return run(query, key, value, arguments, False)[0]


def is_covered(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, enable_gqa: bool
) -> bool:
    """Whether ferroflash gives what torch would, for these arguments."""
    return (
        attn_mask is None
        and dropout_p == 0.0
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
    )
