"""ferroflash among torch's own implementations of attention (`torch.nn.attention`, torch 2.11 and later).

While it is active, `scaled_dot_product_attention` and `varlen_attn` run on ferroflash wherever torch would run
FlashAttention 2: CUDA tensors in float16 or bfloat16, without a mask. What ferroflash does not cover (dropout, paged
caches) goes to torch's own kernels, with its gradients.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from . import _eager
from ._arguments import Arguments, window

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


def _sdpa_forward(
    below: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    **unknown: Any,
) -> tuple[Any, ...]:
    """`aten::_scaled_dot_product_flash_attention`, on [batch, heads, seq, head_dim]."""
    if dropout_p != 0.0 or return_debug_mask or _given(unknown):
        return below(query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale, **unknown)
    left, right = window((None, None), is_causal)
    arguments = Arguments(softmax_scale=scale, left=left, right=right, heads_first=True)
    o, lse = _eager.forward(query, key, value, arguments)
    return o, lse, None, None, query.shape[2], key.shape[2], *_unused(query)


def _sdpa_backward(
    below: Any,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::_scaled_dot_product_flash_attention_backward`."""
    if dropout_p != 0.0 or _given(unknown):
        lengths = cum_seq_q, cum_seq_k, max_q, max_k
        rest = dropout_p, is_causal, philox_seed, philox_offset
        return below(grad_out, query, key, value, out, logsumexp, *lengths, *rest, scale=scale, **unknown)
    left, right = window((None, None), is_causal)
    arguments = _deterministic(Arguments(softmax_scale=scale, left=left, right=right, heads_first=True))
    return _eager.backward(grad_out, None, query, key, value, out, logsumexp, arguments)[:3]


def _flash_forward(
    below: Any,
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
) -> tuple[Any, ...]:
    """`aten::_flash_attention_forward`, on [batch, seq, heads, head_dim], or packed rows."""
    if dropout_p != 0.0 or return_debug_mask or _given(unknown):
        own = {} if out is None else {"out": out}
        lengths = cum_seq_q, cum_seq_k, max_q, max_k
        rest = dropout_p, is_causal, return_debug_mask
        sides = {"window_size_left": window_size_left, "window_size_right": window_size_right}
        arrays = {"seqused_k": seqused_k, "alibi_slopes": alibi_slopes}
        return below(query, key, value, *lengths, *rest, scale=scale, **sides, **arrays, **own, **unknown)
    left, right = window((window_size_left, window_size_right), is_causal)
    lengths = cum_seq_q, cum_seq_k, seqused_k, alibi_slopes, max_q, max_k
    arguments = Arguments(*lengths, softmax_scale=scale, left=left, right=right)
    o, lse = _eager.forward(query, key, value, arguments, o=out)
    return o, lse, *_unused(query)


def _flash_forward_into(below: Any, out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`aten::_flash_attention_forward_no_dropout_inplace`, which writes `out` and returns lse."""

    def below_into(*args: Any, out: Tensor, **kwargs: Any) -> tuple[Any, ...]:
        return out, below(out, *args, **kwargs)

    return _flash_forward(below_into, *args, out=out, **kwargs)[1]


def _flash_backward(
    below: Any,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten::_flash_attention_backward`."""
    if dropout_p != 0.0 or _given(unknown):
        lengths = cum_seq_q, cum_seq_k, max_q, max_k
        sides = {"window_size_left": window_size_left, "window_size_right": window_size_right}
        rest = dropout_p, is_causal, rng_state, unused
        return below(grad_out, query, key, value, out, logsumexp, *lengths, *rest, scale=scale, **sides, **unknown)
    left, right = window((window_size_left, window_size_right), is_causal)
    lengths = cum_seq_q, cum_seq_k, None, None, max_q, max_k
    arguments = _deterministic(Arguments(*lengths, softmax_scale=scale, left=left, right=right))
    return _eager.backward(grad_out, None, query, key, value, out, logsumexp, arguments)[:3]


def _given(unknown: dict[str, Any]) -> bool:
    """Whether an argument that only some releases of torch have is given; a number of splits cannot change a result."""
    return any(value is not None for name, value in unknown.items() if name != "num_splits")


def _deterministic(arguments: Arguments) -> Arguments:
    return arguments._replace(deterministic=torch.are_deterministic_algorithms_enabled())


def _unused(query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The random numbers' state, an unused result and the debug mask, of a pass without dropout."""
    rng_state = torch.empty((2,), dtype=torch.uint64, device=query.device)
    return rng_state, torch.empty((), dtype=torch.uint64, device=query.device), query.new_empty(0)


_OVERRIDES = {
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
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
        def below(*args: Any, **kwargs: Any) -> Any:
            return kernel.call_boxed(keyset, *args, **kwargs)

        return implementation(below, *args, **kwargs)

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
