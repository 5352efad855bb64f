"""torch's operators of attention with a mask, those of its memory-efficient kernel, on ferroflash.

`scaled_dot_product_attention` calls them for masks, of which it has made biases [batch, heads_q, seq_q, seq_k], expanded where they
broadcast. Results are laid out as by the kernel beneath, which compiled graphs rely on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from . import _eager
from ._arguments import DIFFERENTIABLE, Arguments
from ._covered import is_covered
from ._refuse import has_unknown

# Of what the kernel beneath makes the rows of lse, and the keys of a gradient by a bias, a multiple.
_LSE_ROWS = 32
_BIAS_KEYS = 16


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    **unknown: Any,
) -> Any:
    """`aten::_scaled_dot_product_efficient_attention`, on [batch, heads, seq, head_dim]."""
    if not _is_covered(query, key, value, attn_bias, dropout_p, is_causal, unknown):
        return NotImplemented
    state = _eager.dropout_state(query.device) if dropout_p else None
    arguments = _arguments(attn_bias, state, dropout_p, scale)
    o, lse = _eager.forward(query, key, value, arguments, compute_log_sumexp, _rows_first(query, value.shape[-1]))
    if compute_log_sumexp:
        lse = functional.pad(lse, (0, -lse.shape[-1] % _LSE_ROWS), value=math.inf)
    else:
        lse = query.new_empty((*query.shape[:2], 0), dtype=torch.float32)
    return o, lse, *_numbers(state, query.device)


def backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
    **unknown: Any,
) -> Any:
    """`aten::_scaled_dot_product_efficient_attention_backward`."""
    if not _is_covered(query, key, value, attn_bias, dropout_p, is_causal, unknown):
        return NotImplemented
    state = torch.stack((philox_seed, philox_offset)) if dropout_p else None
    arguments = _arguments(attn_bias, state, dropout_p, scale)
    lse = logsumexp[..., : query.shape[2]]
    if logsumexp.shape[2] == 0:  # torch asks for none where only the mask requires a gradient
        _, lse = _eager.forward(query, key, value, arguments)
    into = tuple(_rows_first(x, x.shape[-1]) for x in (query, key, value))
    wanted = [name == "bias" and grad_input_mask[3] for name in DIFFERENTIABLE]
    gradients = _eager.backward(grad_out_, None, query, key, value, out, lse, arguments, wanted, into)
    d_bias = dict(zip(DIFFERENTIABLE, gradients[3:]))["bias"]
    return *into, None if d_bias is None else _rows_padded(d_bias, attn_bias)


def _is_covered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    unknown: dict[str, Any],
) -> bool:
    """Whether there is a mask, in 16 bits as in all that ferroflash takes over, and it is one that it knows."""
    return (
        attn_bias is not None
        and query.dtype is not torch.float32
        and not has_unknown(unknown)
        and is_covered(query, key, value, attn_bias, dropout_p, is_causal, enable_gqa=True)
    )


def _arguments(attn_bias: Tensor, state: Tensor | None, dropout_p: float, scale: float | None) -> Arguments:
    return Arguments(
        bias=attn_bias,
        dropout_state=state,
        softmax_scale=scale,
        heads_first=True,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        dropout_p=dropout_p,
    )


def _rows_first(like: Tensor, dim: int) -> Tensor:
    """Memory for [batch, heads, seq, dim] where the heads of a row follow each other."""
    batch, heads, seq, _ = like.shape
    return like.new_empty((batch, seq, heads, dim)).transpose(1, 2)


def _numbers(state: Tensor | None, device: torch.device) -> list[Tensor]:
    """Seed and offset of dropout, in memory of their own each; any numbers if nothing is dropped."""
    if state is None:
        return [torch.empty((), dtype=torch.int64, device=device) for _ in range(2)]
    return [number.clone() for number in state]


def _rows_padded(d_bias: Tensor, bias: Tensor) -> Tensor:
    """The gradient in the bias's dtype."""
    *shape, keys = bias.shape
    rows = bias.new_empty((*shape, keys + -keys % _BIAS_KEYS))
    return rows[..., :keys].copy_(d_bias)
