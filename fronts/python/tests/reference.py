"""Attention in f64, from the formula: what tests compare with."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch import Tensor

# Relative error, in the largest norm, that is allowed of results of each dtype.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    top_left: bool = False,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    doc_q: Tensor | None = None,
    doc_k: Tensor | None = None,
    prefix_len: Tensor | None = None,
    chunk: int | None = None,
    dilation: int | None = None,
    kept: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """o [batch, seq_q, heads_q, head_dim_v] and lse [batch, heads_q, seq_q] in f64, of operands [batch, seq, heads, dim].

    `kept` is what probabilities are multiplied with after the softmax.
    """
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    seq_q, seq_k = scores.shape[-2:]
    shift = 0 if top_left else seq_k - seq_q
    distance = torch.arange(seq_k, device=q.device) - torch.arange(seq_q, device=q.device)[:, None] - shift
    if alibi_slopes is not None:
        of_all = distance + shift - (seq_k - seq_q)
        slopes = alibi_slopes.double().expand(q.shape[0], -1)
        scores = scores - slopes[:, :, None, None] * of_all.abs()
    left, right = (None if side is None or side < 0 else side for side in window_size)
    if causal:
        right = 0
    visible = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    keys = torch.arange(seq_k, device=q.device)
    if prefix_len is not None:
        visible = visible | (keys < prefix_len[:, None, None, None])
    if mask is not None:
        visible = visible & (mask != 0)
    if doc_q is not None:
        visible = visible & (doc_q[..., None, :, None] == doc_k[..., None, None, :])
    positions = torch.arange(seq_q, device=q.device)[:, None] + seq_k - seq_q
    if chunk is not None:
        visible = visible & (positions // chunk == keys // chunk)
    if dilation is not None:
        visible = visible & ((positions - keys) % dilation == 0)
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~visible, -math.inf)
    # The key of a sink has no value.
    column = scores.new_full((), -math.inf) if sinks is None else sinks.double()[:, None, None]
    with_sinks = torch.cat([scores, column.expand(*scores.shape[:3], 1)], -1)
    lse = torch.logsumexp(with_sinks, -1)
    p = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    if kept is not None:
        p = p * kept
    return torch.einsum("bhqk,bkhd->bqhd", p, v), lse


def packed(
    q: Tensor, k: Tensor, v: Tensor, lengths_q: list[int], lengths_k: list[int], **options: Any
) -> tuple[Tensor, Tensor]:
    """o [total_q, heads_q, head_dim_v] and lse [heads_q, total_q] of packed sequences of these lengths."""
    outputs = []
    parts = zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k))
    slopes = options.pop("alibi_slopes", None)
    arrays = {name: options.pop(name) for name in ("mask", "bias", "kept") if options.get(name) is not None}
    for index, part in enumerate(parts):
        own = slopes if slopes is None or slopes.dim() == 1 else slopes[index]
        # Arrays over pairs are as large as the longest sequences.
        of_pairs = {name: x[index : index + 1, :, : len(part[0]), : len(part[1])] for name, x in arrays.items()}
        outputs.append(attention(*(x[None] for x in part), alibi_slopes=own, **of_pairs, **options))
    return torch.cat([o[0] for o, _ in outputs]), torch.cat([lse[0] for _, lse in outputs], -1)


def gradients(
    reference: Callable[..., tuple[Tensor, Tensor]],
    tensors: list[Tensor],
    d_o: Tensor,
    d_lse: Tensor | None = None,
) -> list[Tensor]:
    """Gradients in f64 of a reference's o, and lse, by `tensors`."""
    doubled = [tensor.detach().double().requires_grad_() for tensor in tensors]
    o, lse = reference(*doubled)
    loss = (o * d_o.double()).sum()
    if d_lse is not None:
        loss = loss + (lse * d_lse.double()).sum()
    return list(torch.autograd.grad(loss, doubled))


def check(name: str, actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Holds `actual` to `expected`, in f64, within `tolerance` of its largest value; infinities have to be the same."""
    assert actual.shape == expected.shape, f"{name}: {actual.shape} for {expected.shape}"
    if expected.numel() == 0:
        return
    actual = actual.double()
    finite = expected.isfinite()
    assert torch.equal(actual[~finite], expected[~finite]), f"{name}: infinities differ"
    actual, expected = actual[finite], expected[finite]
    assert actual.isfinite().all(), f"{name}: not finite"
    if expected.numel() == 0:
        return
    error = (actual - expected).abs().max().item()
    allowed = tolerance * max(expected.abs().max().item(), 1.0)
    assert error <= allowed, f"{name}: off by {error:.2e}, allowed {allowed:.2e}"


def cu_seqlens(lengths: list[int], device: torch.device) -> Tensor:
    """Running sums of lengths, as FlashAttention takes them."""
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
