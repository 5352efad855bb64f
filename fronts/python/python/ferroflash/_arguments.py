"""What a call of attention takes beside q, k and v: one list, for the operators' schemas and for those who run them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

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


SCHEMA = (
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, Tensor? seqused_kv, Tensor? alibi_slopes, SymInt max_seqlen_q, "
    "SymInt max_seqlen_kv, float? softmax_scale, float softcap, int? left, int? right, bool top_left, bool heads_first, "
    "bool deterministic"
)

# How many of them are tensors; they come first.
TENSORS = 4


@functools.lru_cache(maxsize=1024)
def without_arrays(
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int | None, int | None],
    softcap: float,
    deterministic: bool,
) -> Arguments:
    """The arguments of FlashAttention's functions on operands [batch, seq, heads, dim], made once for any number of calls."""
    left, right = window(window_size, causal)
    return Arguments(softmax_scale=softmax_scale, softcap=softcap, left=left, right=right, deterministic=deterministic)


def window(window_size: tuple[int | None, int | None], causal: bool) -> tuple[int | None, int | None]:
    """Keys before and after a query's position, of FlashAttention's arguments, where -1 or None is an open side."""
    left, right = window_size
    if left is not None and left < 0:
        left = None
    if causal:
        return left, 0
    return left, None if right is None or right < 0 else right
