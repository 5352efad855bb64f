"""torch's `scaled_dot_product_attention`, by name and signature."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.compiler import is_compiling

from . import _eager
from ._arguments import Arguments, bare, window
from ._covered import is_covered, with_groups, without_groups
from ._refuse import refuse
from .torch import run, run_bare

__all__ = ["scaled_dot_product_attention"]


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
    a head_dim of at most 256 are ferroflash's, with dropout and masks of any strides, of which a float one may require a gradient.
    is_causal is aligned to the top-left corner: query i sees the keys up to i.

    window_size, which torch does not have, bounds the keys that are seen before and after a query's position, from the top-left
    corner too; None is an open side.

    Raises:
        NotImplementedError: a window is asked for beside something that ferroflash does not cover.
    """
    # Not for those who compile, which does not look into what is remembered.
    if attn_mask is None and dropout_p == 0.0 and type(window_size) is tuple and not is_compiling():
        covers = with_groups if enable_gqa else without_groups
        results = run_bare(
            query, key, value, bare(covers, scale, is_causal, window_size, 0.0, False, True, True), False
        )
        if results is not None:
            return results[0]
    if not is_covered(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        refuse(window_size=None if window_size == (None, None) else window_size)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    left, right = window(window_size, is_causal)
    hides = attn_mask is not None and attn_mask.dtype is torch.bool
    arguments = Arguments(
        mask=attn_mask if hides else None,
        bias=None if hides else attn_mask,
        dropout_state=_eager.dropout_state(query.device) if dropout_p else None,
        softmax_scale=scale,
        left=left,
        right=right,
        top_left=True,
        heads_first=True,
        dropout_p=dropout_p,
    )
    return run(query, key, value, arguments, False)[0]
