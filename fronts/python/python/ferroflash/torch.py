"""Attention on tensors of torch: one function with every option, and what the functions of other libraries' names share.

Importing this registers the operators `torch.ops.ferroflash.forward` and `backward`, and ferroflash among torch's own
implementations of attention (`ferroflash.activate()` chooses it).
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import _eager
from ._arguments import DENSE, Arguments, Bare, Lengths, differentiable, has_arrays, is_ieee, window, with_lengths
from ._operators import Differentiable, Mappable
from .registry import activate, restore

__all__ = ["activate", "attention", "restore"]

_operator = torch.ops.ferroflash.forward.default

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
# Of any kind of device: asked first, as it takes a fifth of the time.
_is_any_autocast_enabled = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack


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
    dropout_p: float = 0.0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    seqused_k: Tensor | None = None,
    heads_first: bool = False,
    deterministic: bool = False,
    precision: str = "bounded",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(q · kᵀ · softmax_scale) · v over the keys that the mask leaves visible; exact, differentiable by q, k, v,
    alibi_slopes, bias, sinks, o and lse.

    Args:
        q: [batch, seq_q, heads_q, head_dim], float32, float16 or bfloat16, on the CPU or a CUDA device, of any strides; head_dim
            is 1 to 256. Of packed sequences [total_q, heads_q, head_dim].
        k: [batch, seq_k, heads_k, head_dim] like q; heads_q is a multiple of heads_k, of which each is shared by neighbours.
        v: [batch, seq_k, heads_k, head_dim_v] like k; head_dim_v is 1 to 256.
        softmax_scale: by default 1 / sqrt(head_dim).
        causal: query i sees no key after its own position, which is i + seq_k - seq_q: the last query sees the last key.
        window_size: how many keys are seen before and after that position; None or -1 is an open side.
        top_left: counts positions from the first key instead, as torch's is_causal does: query i stands at i.
        softcap: scores become softcap · tanh(score / softcap), in nats; 0: they do not.
        alibi_slopes: float32 [heads_q] or [batch, heads_q]; -slope · |i + seq_k - seq_q - j| is added to scores.
        mask: bool or uint8, of a shape that broadcasts to [batch, heads_q, seq_q, seq_k], of any strides: keys that are 0 there
            are not seen, of those that the other masks show.
        bias: float32, float16 or bfloat16, of a shape as the mask's, of any strides: added to scores, in nats. Its gradient is
            summed in float32 over the axes that broadcast; that by one which is expanded instead is as large as it looks.
        sinks: [heads_q], the score of a key without a value that every query of a head sees; lse counts it.
        doc_q, doc_k: int32 [batch, seq] or [seq], of packed sequences [total]: queries see keys of their own document.
        prefix_len: int32 [batch]: so many first keys are seen by every query, causal and window_size notwithstanding.
        chunk: a query sees keys of its own chunk of so many positions.
        dilation: a query sees keys whose distance from it is a multiple.
        dropout_p: so many of the probabilities, drawn from torch's generator of q's device, are dropped; the others are divided
            by 1 - dropout_p. lse is that without dropout.
        cu_seqlens_q, cu_seqlens_k: int32 [batch + 1] on q's device, where sequences begin and end in the packed rows. They are
            never read by the host, nor is seqused_k.
        max_seqlen_q, max_seqlen_k: bounds on the lengths of packed sequences.
        seqused_k: int32 [batch] on q's device: only so many first rows of k and v of each sequence are used.
        heads_first: q, k, v and o are [batch, heads, seq, dim].
        deterministic: the backward pass gives the same bits at every run.
        precision: "bounded": products of float32 may be sums of tf32 parts, on tensor cores, which keep float32's error bound.
            "ieee": each product and each sum is rounded to float32.
        return_lse: returns (o, lse) and not o alone.

    Returns:
        o, of q's dtype and shape with head_dim_v; rows that see no key are 0. lse is float32 [batch, heads_q, seq_q], of packed
        sequences [heads_q, total_q]: log-sum-exp of each row's scores in nats, -inf where no key is seen.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        torch.OutOfMemoryError: the device lacks memory.
    """
    left, right = window(window_size, causal)
    arguments = Arguments(
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        alibi_slopes,
        mask,
        bias,
        sinks if sinks is None or sinks.dtype is torch.float32 else sinks.float(),
        doc_q,
        doc_k,
        prefix_len,
        _eager.dropout_state(q.device) if dropout_p else None,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        softcap,
        left,
        right,
        top_left,
        heads_first,
        deterministic,
        chunk,
        dilation,
        dropout_p,
        is_ieee(precision),
    )
    o, lse = run(q, k, v, arguments, return_lse)
    return (o, lse) if return_lse else o


def run(q: Tensor, k: Tensor, v: Tensor, arguments: Arguments, needs_lse: bool) -> tuple[Tensor, Tensor | None]:
    """o and lse; past torch's dispatcher, which takes longer than the launch, where nothing there wants to know of it."""
    if _is_compiling() or _is_watched(q, k, v):
        return _dispatched(q, k, v, arguments)
    if _is_grad_enabled():
        others = differentiable(arguments)
        if any(x is not None and x.requires_grad for x in (q, k, v, *others)):
            others = others if has_arrays(arguments) else ()
            return Differentiable.apply(q, k, v, arguments, *others)
    return _eager.forward(q, k, v, arguments, needs_lse)


def run_bare(
    q: Tensor, k: Tensor, v: Tensor, bare: Bare, needs_lse: bool, lengths: Lengths = DENSE
) -> tuple[Tensor, Tensor | None] | None:
    """`run` where no other tensor is given than those of lengths, for callers who know that nothing is being compiled.

    None where `bare` does not cover q, k and v.
    """
    is_plain = not (
        _is_watched(q, k, v) or (_is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
    )
    if is_plain and (results := bare.calls.forward(q, k, v, lengths, needs_lse)) is not None:
        return results
    if bare.covers is not None and not bare.covers(q, k, v):
        return None
    if is_plain:
        return _eager.forward_bare(q, k, v, bare, lengths, needs_lse)
    return run(q, k, v, with_lengths(lengths, bare.arguments), needs_lse)


def _is_watched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether somebody at torch's dispatcher wants to know of a call."""
    return (
        not (type(q) is type(k) is type(v) is Tensor)
        or _dispatch_modes() != 0
        or (_is_any_autocast_enabled() and torch.is_autocast_enabled(q.device.type))
        or _functorch_level() is not None
    )


def _dispatched(q: Tensor, k: Tensor, v: Tensor, arguments: Arguments) -> tuple[Tensor, Tensor]:
    """Through torch's dispatcher, or its transforms."""
    if not _is_compiling() and _functorch_level() is not None:
        return Mappable.apply(q, k, v, *arguments)
    return _operator(q, k, v, *arguments)
