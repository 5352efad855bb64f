"""ferroflash as an implementation of attention in Hugging Face's transformers.

`register()` once, then `model.set_attn_implementation("ferro")`, or `from_pretrained(..., attn_implementation="ferro")`. The name
does not hold "flash": transformers takes every name that does for a package of FlashAttention.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from ._refuse import refuse
from .torch import attention

__all__ = ["NAME", "forward", "register"]

NAME = "ferro"


def register(name: str = NAME) -> str:
    """Makes ferroflash known to transformers as `name`, with masks that tell padding apart; returns the name.

    Raises:
        ValueError: the name holds "flash".
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

    if "flash" in name:
        raise ValueError(f'name: it is {name!r}; it must not hold "flash", which transformers takes for FlashAttention')
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, flash_attention_mask)
    return name


def forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer.

    Args:
        query: [batch, heads_q, seq_q, head_dim]; key and value [batch, heads_k, seq_k, head_dim].
        attention_mask: None, or bool [batch, seq_k], false where a row is padding.
        kwargs: cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k of packed sequences in a batch of one, as
            `DataCollatorWithFlattening(return_flash_attn_kwargs=True)` gives them; position_ids that start anew, as without them.

    Returns:
        o [batch, seq_q, heads_q, head_dim_v], and None for the probabilities, which are never there.
    """
    refuse(
        dropout=dropout != 0.0,
        s_aux=s_aux is not None,
        attention_mask=attention_mask is not None and attention_mask.dim() != 2,
    )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    options = {
        "softmax_scale": scaling,
        # One query at the end of a cache sees all of it, which the alignment of masks to the last key says too.
        "causal": is_causal and query.shape[2] > 1,
        "window_size": (None if sliding_window is None else sliding_window - 1, None),
        "softcap": softcap or 0.0,
    }
    operands = (query, key, value)
    if attention_mask is not None:
        return _padded(operands, attention_mask, options), None
    lengths = _packed_lengths(query, kwargs)
    if lengths is not None:
        rows = [x.transpose(1, 2).squeeze(0) for x in operands]
        return attention(*rows, **lengths, **options).unsqueeze(0), None
    return attention(*operands, heads_first=True, **options).transpose(1, 2).contiguous(), None


def _packed_lengths(query: Tensor, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Lengths of sequences that lie in one row of a batch, if there are any."""
    names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    given = [kwargs.get(name) for name in names]
    if all(value is not None for value in given):
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = given
    else:
        sums_and_longest = _of_positions(query, kwargs.get("position_ids"))
        if sums_and_longest is None:
            return None
        cu_seqlens_q, max_seqlen_q = sums_and_longest
        cu_seqlens_k, max_seqlen_k = cu_seqlens_q, max_seqlen_q
    return {
        "cu_seqlens_q": cu_seqlens_q.int(),
        "cu_seqlens_k": cu_seqlens_k.int(),
        "max_seqlen_q": int(max_seqlen_q),
        "max_seqlen_k": int(max_seqlen_k),
    }


# The positions that were looked at last, and what was found: every layer is given the same.
_last: tuple[weakref.ref[Tensor], int, tuple[Tensor, int] | None] | None = None


def _of_positions(query: Tensor, position_ids: Tensor | None) -> tuple[Tensor, int] | None:
    """Running sums and the largest of lengths, of positions that start anew from 0 within one row; waits for the device."""
    global _last
    rows = query.shape[2]
    if position_ids is None or position_ids.shape != (1, rows) or query.shape[0] != 1 or rows < 2:
        return None
    if torch.compiler.is_compiling() or position_ids.is_inference():  # without a version
        return _split(position_ids[0])
    if _last is None or _last[0]() is not position_ids or _last[1] != position_ids._version:
        _last = weakref.ref(position_ids), position_ids._version, _split(position_ids[0])
    return _last[2]


def _split(positions: Tensor) -> tuple[Tensor, int] | None:
    starts = (positions == 0).nonzero().flatten()
    if len(starts) < 2 or starts[0] != 0:
        return None
    sums = torch.cat([starts, starts.new_tensor([len(positions)])]).int()
    return sums, int(sums.diff().max())


def _padded(operands: tuple[Tensor, Tensor, Tensor], attention_mask: Tensor, options: dict[str, Any]) -> Tensor:
    """Attention over the rows of a batch that are no padding; o is 0 in the others."""
    query, key, value = (x.transpose(1, 2) for x in operands)
    batch, seq_q = query.shape[:2]
    kept_k = attention_mask[:, : key.shape[1]].bool()
    # Of several queries on as many keys or more, the last rows of the mask are theirs.
    kept_q = kept_k[:, -seq_q:]
    rows_q, rows_k = (kept.flatten().nonzero().flatten() for kept in (kept_q, kept_k))
    sums_q, sums_k = (_sums(kept) for kept in (kept_q, kept_k))
    packed = attention(
        query.flatten(0, 1)[rows_q],
        key.flatten(0, 1)[rows_k],
        value.flatten(0, 1)[rows_k],
        cu_seqlens_q=sums_q,
        cu_seqlens_k=sums_k,
        max_seqlen_q=seq_q,
        max_seqlen_k=key.shape[1],
        **options,
    )
    o = packed.new_zeros((batch * seq_q, *packed.shape[1:]))
    return o.index_put((rows_q,), packed).unflatten(0, (batch, seq_q))


def _sums(kept: Tensor) -> Tensor:
    """Running sums of how many rows of each entry are kept, int32 [batch + 1]."""
    counts = kept.sum(1, dtype=torch.int32)
    return torch.nn.functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
