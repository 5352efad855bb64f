"""ferroflash as an implementation of attention in Hugging Face's transformers.

`register()` once, then `model.set_attn_implementation("ferro")`, or `from_pretrained(..., attn_implementation="ferro")`. The name
does not hold "flash": transformers takes every name that does for a package of FlashAttention.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .torch import attention

__all__ = ["NAME", "forward", "mask", "register"]

NAME = "ferro"


def register(name: str = NAME) -> str:
    """Makes ferroflash known to transformers as `name`, with masks of its own; returns the name.

    Raises:
        ValueError: the name holds "flash".
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    if "flash" in name:
        raise ValueError(f'name: it is {name!r}; it must not hold "flash", which transformers takes for FlashAttention')
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, mask)
    return name


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **rest: Any,
) -> Tensor | None:
    """What `forward` is given for attention_mask: bool [batch, kv_length] of padding; int32 [batch, kv_length], the sequence that
    each row belongs to, of packed ones; None where there is neither; or for masks that `forward` does not know, and for queries
    that are not at the end of the keys, all pairs."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    mask_function = mask_function or causal_mask_function
    is_at_end = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    parts = list(_parts(mask_function))
    packed = [_held(part, "packed_sequence_mask") for part in parts if _name(part) == _PACKED]
    is_known = all(_name(part) in _KNOWN for part in parts) and (not packed or attention_mask is None)
    if not (is_at_end and is_known):
        rest.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        lengths = batch_size, q_length, kv_length, q_offset, kv_offset
        return sdpa_mask(*lengths, mask_function, attention_mask, **rest)
    if attention_mask is None:
        return packed[0].int() if packed else None
    attention_mask = attention_mask[:, kv_offset : kv_offset + kv_length]
    return None if not torch.compiler.is_compiling() and attention_mask.all() else attention_mask


# Parts of masks that `forward` is told of otherwise: by is_causal and sliding_window.
_PACKED = "packed_sequence_mask_function.<locals>.inner_mask"
_WINDOWS = "sliding_window_overlay", "sliding_window_bidirectional_overlay"
_KNOWN = {
    "causal_mask_function",
    "bidirectional_mask_function",
    _PACKED,
    *(f"{of}.<locals>.inner_mask" for of in _WINDOWS),
}


def _parts(mask_function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The masks of transformers that a mask is the intersection of, as far as they can be told apart."""
    if _name(mask_function) == "and_masks.<locals>.and_mask":
        for part in _held(mask_function, "mask_functions"):
            yield from _parts(part)
    elif _name(mask_function) == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        yield from _parts(_held(mask_function, "mask_function"))
    else:
        yield mask_function


def _name(function: Callable[..., Any]) -> str:
    is_theirs = getattr(function, "__module__", None) == "transformers.masking_utils"
    return function.__qualname__ if is_theirs else ""


def _held(function: Callable[..., Any], name: str) -> Any:
    """What a function has of the one that made it."""
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


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
        attention_mask: None; or bool [batch, seq_k], false where a row is padding; or int32 [batch, seq], the
            sequence that each row belongs to; or a mask, or bias, of all pairs [batch or 1,
            heads_q or 1, seq_q, seq_k], which is then the only mask. None is copied.
        s_aux: [heads_q], scores of sinks.
        kwargs: cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k of packed sequences in a batch of one, as
            `DataCollatorWithFlattening(return_flash_attn_kwargs=True)` gives them; position_ids that start anew, as without them.

    Returns:
        o [batch, seq_q, heads_q, head_dim_v], and None for the probabilities, which are never there.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    operands = (query, key, value)
    options = {"softmax_scale": scaling, "softcap": softcap or 0.0, "sinks": s_aux, "dropout_p": dropout}
    if attention_mask is not None and attention_mask.dim() == 4:
        options["mask" if attention_mask.dtype is torch.bool else "bias"] = attention_mask[..., : key.shape[2]]
        return attention(*operands, heads_first=True, **options).transpose(1, 2).contiguous(), None
    # One query at the end of a cache sees all of it, which the alignment of masks to the last key says too.
    options["causal"] = is_causal and query.shape[2] > 1
    options["window_size"] = (None if sliding_window is None else sliding_window - 1, None)
    lengths = _packed_lengths(query, kwargs)
    if attention_mask is not None and attention_mask.dtype is torch.bool:
        options["mask"] = attention_mask[:, None, None, : key.shape[2]]
    elif lengths is None and attention_mask is not None:
        options["doc_q"] = options["doc_k"] = attention_mask
    elif lengths is not None:
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
