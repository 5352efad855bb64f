"""ferroflash among torch's own implementations of attention (`torch.nn.attention`, torch 2.11 and later).

While it is active, `scaled_dot_product_attention` and `varlen_attn` run on ferroflash wherever torch would run
FlashAttention 2, or its memory-efficient kernel because there is a mask: CUDA tensors in float16 or bfloat16. What ferroflash
does not cover (paged caches), and what torch prefers cuDNN for, goes to torch's own kernels. A backward pass with dropout has to
run on what its forward pass ran on: neither `activate()` nor `restore()` may come between them.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from . import _eager, _masked
from ._arguments import DENSE, Arguments, Lengths, with_lengths, without_arrays
from ._memory import empty
from ._refuse import has_unknown

__all__ = ["activate", "restore"]

_NAME = "ferroflash"


def activate() -> None:
    """Lets torch's `scaled_dot_product_attention` of every model run on ferroflash, forward and backward.

    `restore()` ends that. Models that call `scaled_dot_product_attention` need no change.

    Raises:
        RuntimeError: torch is older than 2.11.
    """
    if not _registered:
        raise RuntimeError(f"torch {torch.__version__} has no registry of attention; ferroflash.activate needs 2.11")
    torch.nn.attention.activate_flash_attention_impl(_NAME)


def restore() -> None:
    """Gives torch its own attention back."""
    if _registered and torch.nn.attention.current_flash_attention_impl() == _NAME:
        torch.nn.attention.restore_flash_attention_impl()


# What an operator is handed if ferroflash does not cover it: NotImplemented is returned then.
_BELOW = NotImplemented


def _sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    **unknown: Any,
) -> Any:
    """`aten::_scaled_dot_product_flash_attention`, on [batch, heads, seq, head_dim]."""
    if return_debug_mask or has_unknown(unknown):
        return _BELOW
    arguments = _arguments(dropout_p, is_causal, scale, heads_first=True)
    o, lse, *rest = _forward(query, key, value, arguments)
    return o, lse, None, None, query.shape[2], key.shape[2], *rest


def _sdpa_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
    **unknown: Any,
) -> Any:
    """`aten::_scaled_dot_product_flash_attention_backward`."""
    if has_unknown(unknown):
        return _BELOW
    arguments = _arguments(dropout_p, is_causal, scale, heads_first=True)
    return _backward(grad_out, query, key, value, out, logsumexp, arguments, philox_seed)


def _flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    out: Tensor | None = None,
    **unknown: Any,
) -> Any:
    """`aten::_flash_attention_forward`, on [batch, seq, heads, head_dim], or packed rows."""
    if return_debug_mask or has_unknown(unknown):
        return _BELOW
    lengths = cum_seq_q, cum_seq_k, max_q, max_k
    sides = window_size_left, window_size_right
    arguments = _arguments(dropout_p, is_causal, scale, lengths, sides)
    if seqused_k is not None or alibi_slopes is not None:
        arguments = arguments._replace(seqused_kv=seqused_k, alibi_slopes=alibi_slopes)
    return _forward(query, key, value, arguments, out)


def _flash_forward_into(out: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`aten::_flash_attention_forward_no_dropout_inplace`, which writes `out` and returns lse."""
    results = _flash_forward(*args, out=out, **kwargs)
    return _BELOW if results is _BELOW else results[1]


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **unknown: Any,
) -> Any:
    """`aten::_flash_attention_backward`."""
    if has_unknown(unknown):
        return _BELOW
    lengths = cum_seq_q, cum_seq_k, max_q, max_k
    sides = window_size_left, window_size_right
    arguments = _arguments(dropout_p, is_causal, scale, lengths, sides)
    return _backward(grad_out, query, key, value, out, logsumexp, arguments, rng_state)


def _arguments(
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    lengths: Lengths = DENSE,
    sides: tuple[int | None, int | None] = (None, None),
    heads_first: bool = False,
) -> Arguments:
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    arguments = without_arrays(scale, is_causal, sides, 0.0, is_deterministic, heads_first)
    if lengths[0] is not None or lengths[1] is not None:
        arguments = with_lengths(lengths, arguments)
    return arguments if dropout_p == 0.0 else arguments._replace(dropout_p=dropout_p)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    arguments: Arguments,
    out: Tensor | None = None,
) -> tuple[Any, ...]:
    """o, lse, the random numbers' state, an unused result and the debug mask."""
    device = query.get_device()
    if arguments.dropout_p == 0.0:
        state = empty((2,), (1,), torch.uint64, device)
    else:
        drawn = _eager.dropout_state(query.device)
        arguments, state = arguments._replace(dropout_state=drawn), drawn.view(torch.uint64)
    o, lse = _eager.forward(query, key, value, arguments, o=out)
    unused = empty((), (), torch.uint64, device)
    return o, lse, state, unused, empty((0,), (1,), query.dtype, device)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    arguments: Arguments,
    state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    if arguments.dropout_p != 0.0:
        arguments = arguments._replace(dropout_state=state.view(torch.int64))
    return _eager.backward(grad_out, None, query, key, value, out, logsumexp, arguments)[:3]


_OVERRIDES = {
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
    "_scaled_dot_product_efficient_attention": _masked.forward,
    "_scaled_dot_product_efficient_attention_backward": _masked.backward,
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_forward_no_dropout_inplace": _flash_forward_into,
    "_flash_attention_backward": _flash_backward,
}


class _Handle:
    """Keeps the overrides of torch's operators."""

    def __init__(self, library: torch.library.Library) -> None:
        self._library: torch.library.Library | None = library

    def remove(self) -> None:
        self._library = None


def _override(library: torch.library.Library, name: str, implementation: Any) -> None:
    # The kernel that is there before: it takes what ferroflash does not.
    kernel = torch.library.get_kernel(f"aten::{name}", "CUDA")

    def overridden(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        results = implementation(*args, **kwargs)
        return kernel.call_boxed(keyset, *args, **kwargs) if results is _BELOW else results

    with warnings.catch_warnings():
        # torch warns of what is asked for here.
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(name, overridden, "CUDA", with_keyset=True)


def _register() -> _Handle:
    library = torch.library.Library("aten", "IMPL", "CUDA")
    for name, implementation in _OVERRIDES.items():
        if hasattr(torch.ops.aten, name):  # releases differ
            _override(library, name, implementation)
    return _Handle(library)


_registered = hasattr(torch.nn.attention, "register_flash_attention_impl")
if _registered:
    torch.nn.attention.register_flash_attention_impl(_NAME, register_fn=_register)
