"""What a call of attention takes beside q, k and v: one list, for the operators' schemas and for those who run them."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from . import _native

if TYPE_CHECKING:
    from torch import Tensor


class Arguments(NamedTuple):
    """Everything but q, k and v, in the order of the operators' schemas."""

    # Running sums of the lengths of packed sequences, int32 [batch + 1] on q's device. q is then [total_q, heads, head_dim].
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_kv: Tensor | None = None
    # How many of its rows of k and v each sequence uses, int32 [batch] on q's device.
    seqused_kv: Tensor | None = None
    # Slopes of ALiBi, float32 [heads_q] or [batch, heads_q] on q's device.
    alibi_slopes: Tensor | None = None
    # What hides or changes single pairs, of a shape that broadcasts to [batch, heads_q, seq_q, seq_kv]: bool or uint8, and in nats.
    mask: Tensor | None = None
    bias: Tensor | None = None
    # Scores of keys without a value, float32 [heads_q].
    sinks: Tensor | None = None
    # Documents of queries and of keys, int32 [batch, seq] or [seq].
    doc_q: Tensor | None = None
    doc_kv: Tensor | None = None
    # How many of the first keys every query sees, int32 [batch].
    prefix_len: Tensor | None = None
    # Seed and offset of dropout, int64 [2]; None: nothing is dropped.
    dropout_state: Tensor | None = None
    # Upper bounds on the lengths of packed sequences; not used otherwise.
    max_seqlen_q: int = 0
    max_seqlen_kv: int = 0
    # Multiplies q · k; None: 1 / sqrt(head_dim).
    softmax_scale: float | None = None
    # Scores become softcap · tanh(score / softcap); 0: they stay.
    softcap: float = 0.0
    # Keys visible before and after a query's own position; None: all.
    left: int | None = None
    right: int | None = None
    # Whether a query's own position is its index, and not counted back from the last key.
    top_left: bool = False
    # Whether operands are [batch, heads, seq, dim], and not [batch, seq, heads, dim].
    heads_first: bool = False
    # Whether two backward passes must give the same bits.
    deterministic: bool = False
    # A query sees keys of its own chunk of so many positions, and at distances that are multiples.
    chunk: int | None = None
    dilation: int | None = None
    # How many probabilities are dropped; those left are divided by 1 - dropout_p.
    dropout_p: float = 0.0
    # Whether products and sums of float32 are rounded one by one, and not sums of tf32 parts.
    ieee: bool = False


# The tensors come first.
SCHEMA = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, Tensor? seqused_kv, Tensor? alibi_slopes, Tensor? mask, Tensor? bias, "
    "Tensor? sinks, Tensor? doc_q, Tensor? doc_kv, Tensor? prefix_len, Tensor? dropout_state, SymInt max_seqlen_q, "
    "SymInt max_seqlen_kv, float? softmax_scale, float softcap, int? left, int? right, bool top_left, bool heads_first, "
    "bool deterministic, int? chunk, int? dilation, float dropout_p, bool ieee"
)
TENSORS = SCHEMA.count("Tensor")
_NONE = (None,) * TENSORS
SCALARS = TENSORS + 2  # those that are the same for any lengths: where they begin

# By which a loss has gradients, beside q, k and v.
DIFFERENTIABLE = "alibi_slopes", "bias", "sinks"
differentiable = operator.attrgetter(*DIFFERENTIABLE)


def has_arrays(arguments: Arguments) -> bool:
    """Whether a tensor is given. Not by `==`, for which a tensor takes 100 µs."""
    return any(map(operator.is_not, arguments[:TENSORS], _NONE))


@functools.lru_cache(maxsize=1024)
def without_arrays(
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float = 0.0,
    deterministic: bool = False,
    heads_first: bool = False,
    top_left: bool = False,
) -> Arguments:
    """The arguments of a call that has no tensor but q, k and v, made once for any number of calls."""
    left, right = window(window_size, causal)
    return Arguments(
        softmax_scale=softmax_scale,
        softcap=softcap,
        left=left,
        right=right,
        top_left=top_left,
        heads_first=heads_first,
        deterministic=deterministic,
    )


_MOST_BARE_CALLS = 256  # of the same scalars

# cu_seqlens_q, cu_seqlens_kv and the bounds on lengths.
Lengths = tuple[Optional["Tensor"], Optional["Tensor"], int, int]
DENSE: Lengths = (None, None, 0, 0)


class Bare(NamedTuple):
    """Arguments without a tensor, and what is known of calls with them."""

    arguments: Arguments
    # Those that were made, by lengths and how q, k and v lie.
    calls: _native.Calls
    # Whether calls of such q, k and v are to be made: asked before the first. None: any, which may be refused.
    covers: Callable[[Tensor, Tensor, Tensor], bool] | None


@functools.lru_cache(maxsize=1024)
def bare(covers: Callable[[Tensor, Tensor, Tensor], bool] | None, *options: Any) -> Bare:
    """Those of `without_arrays`' options, made once for any number of calls."""
    return Bare(without_arrays(*options), _native.Calls(_MOST_BARE_CALLS), covers)


def with_lengths(lengths: Lengths, arguments: Arguments) -> Arguments:
    """The `arguments`, which have no tensor, for packed sequences."""
    return Arguments._make((*lengths[:2], *_NONE[2:], *lengths[2:], *arguments[SCALARS:]))


def window(window_size: tuple[int | None, int | None], causal: bool) -> tuple[int | None, int | None]:
    """Keys before and after a query's position, of FlashAttention's arguments, where -1 or None is an open side."""
    left, right = window_size
    if left is not None and left < 0:
        left = None
    if causal:
        return left, 0
    return left, None if right is None or right < 0 else right


def is_ieee(precision: str) -> bool:
    """What `precision` says of products of float32."""
    if precision in ("bounded", "ieee"):
        return precision == "ieee"
    raise ValueError(f"precision: it is {precision!r}; it must be 'bounded' or 'ieee'")


def common(
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float | None,
    deterministic: bool = False,
) -> dict[str, Any]:
    """What all functions of FlashAttention's names hand on to `ferroflash.torch.attention` as it is."""
    options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap or 0.0}
    # Of gradients, which caches have none of.
    return options | {"deterministic": True} if deterministic else options


def packed(
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: Tensor | None,
) -> dict[str, Any]:
    """The lengths of packed sequences, as `ferroflash.torch.attention` takes them."""
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
    return {**lengths, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
