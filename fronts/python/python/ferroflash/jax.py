"""Attention on arrays of JAX, by custom calls of XLA: `flash_attention`, and `jax.nn`'s function by its own name.

Both work on the CPU and on CUDA devices, under `jax.jit`, `jax.grad`, `jax.vmap` and `jax.shard_map`. Importing this module
imports jax and registers the calls; importing `ferroflash` does neither. Operands are dense, and XLA orders the work: on a GPU by
the stream that it runs the program on, with scratch memory of its own allocator.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from . import _native
from ._arguments import Arguments, is_ieee, window
from ._jax_arrays import (
    DTYPES,
    Shapes,
    bias_of,
    documents_of,
    dropout_state_of,
    lengths_as_documents,
    mask_of,
    shapes_of,
    slopes_of,
)
from ._jax_calls import attend, varying_alike
from ._refuse import refuse

if TYPE_CHECKING:
    from jax.typing import ArrayLike

__all__ = ["dot_product_attention", "flash_attention"]


def flash_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    top_left: bool = False,
    deterministic: bool = False,
    precision: str = "bounded",
    return_lse: bool = False,
    alibi_slopes: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    dropout_p: float = 0.0,
    dropout_rng: ArrayLike | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(q · kᵀ · softmax_scale) · v over the keys that the masks leave visible; exact, differentiable by q, k, v,
    alibi_slopes, bias, o and lse.

    Args:
        q: [batch, seq_q, heads_q, head_dim], float32, float16 or bfloat16; head_dim is 1 to 256. There may be any number of leading
            axes in place of the batch, which q, k and v share. Under `jax.vmap` the mapped axis is one more.
        k: [batch, seq_k, heads_k, head_dim] like q; heads_q is a multiple of heads_k, of which each is shared by neighbours.
        v: [batch, seq_k, heads_k, head_dim_v] like k; head_dim_v is 1 to 256.
        causal: query i sees no key after its own position, which is i + seq_k - seq_q: the last query sees the last key.
        softmax_scale: by default 1 / sqrt(head_dim).
        window_size: how many keys are seen before and after that position; None or -1 is an open side.
        softcap: scores become softcap · tanh(score / softcap), in nats; 0: they do not.
        top_left: counts positions from the first key instead, as `jax.nn.dot_product_attention` does: query i stands at i.
        deterministic: the backward pass gives the same bits at every run.
        precision: "bounded": products of float32 may be sums of tf32 parts, on tensor cores, which keep float32's error bound.
            "ieee": each product and each sum is rounded to float32.
        return_lse: returns (o, lse) and not o alone.
        alibi_slopes: float32 [heads_q] or [batch, heads_q]; -slope · |i + seq_k - seq_q - j| is added to scores.
        bias: float32, float16 or bfloat16, of a shape that broadcasts to [batch, heads_q, seq_q, seq_k], added to scores in nats.
            Its gradient is computed where it is asked for, and summed in float32 over axes of 1.
        mask: bool, of a shape as the bias's: keys that are False there are not seen, of those that the other masks show. Axes of 1
            are not expanded, nor are the bias's, unless some of several leading axes are 1 and others are not.
        segment_ids: int32 [batch, seq] or [seq], of queries and keys, or one such array of q and one of k: queries see keys of
            their own document.
        dropout_p: so many of the probabilities are dropped; the others are divided by 1 - dropout_p. lse is that without dropout.
        dropout_rng: a key of `jax.random`, or its data, uint32 [2] or [4], which must be given where dropout_p is above 0. The same
            key drops the same at the same place; under `jax.shard_map` the places of each device are its own, counted from 0.

    Returns:
        o, of q's dtype and shape with head_dim_v; rows that see no key are 0. lse is float32 [batch, heads_q, seq_q]: log-sum-exp
        of each row's scores in nats, -inf where no key is seen.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: an option that has to be known when a function is traced is not; names it.
    """
    left, right = window(tuple(_known("window_size", side) for side in window_size), _known("causal", causal))
    arguments = Arguments(
        softmax_scale=_known("softmax_scale", softmax_scale),
        softcap=_known("softcap", softcap),
        left=left,
        right=right,
        top_left=bool(_known("top_left", top_left)),
        deterministic=bool(_known("deterministic", deterministic)),
        dropout_p=_known("dropout_p", dropout_p),
        ieee=is_ieee(precision),
    )
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    _check_operands(q, k, v)
    lead, rows = q.shape[:-3], (q.shape[-3], k.shape[-3])
    operands = {"q": q, "k": k, "v": v}
    if mask is not None:
        operands["mask"] = mask_of(mask, lead)
    if bias is not None:
        operands["bias"] = bias_of(bias, lead)
    if alibi_slopes is not None:
        operands["alibi_slopes"] = slopes_of(alibi_slopes, lead, q.shape[-2])
    if segment_ids is not None:
        operands["doc_q"], operands["doc_k"] = documents_of(segment_ids, lead, rows)
    if arguments.dropout_p:
        operands["dropout_state"] = dropout_state_of(dropout_rng)
    _check_shapes(arguments, DTYPES[q.dtype.name], q.shape, k.shape, v.shape, shapes_of(operands, rows[1]))
    o, lse = attend(arguments, varying_alike(operands))
    return (o, lse) if return_lse else o


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: Literal["xla", "cudnn"] | None = None,
    return_residual: bool = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """`jax.nn.dot_product_attention`, by its signature: positions are counted from the first key, unlike `flash_attention`'s.

    query is [batch, seq_q, heads_q, head_dim] or [seq_q, heads_q, head_dim], key and value have seq_k and heads_k. bias and mask
    broadcast to [batch, heads_q, seq_q, seq_k]. Of query_seq_lengths and key_value_seq_lengths, int32 [batch], each batch entry has
    as many first rows; the others are padding, which is not seen and whose o is 0. With return_residual lse is returned too, as
    there [batch, seq_q, heads_q], but float32, and -inf of padding. Queries that see no key are 0, where jax.nn averages all
    values. implementation raises NotImplementedError; `flash_attention` says what else is raised.
    """
    refuse(implementation=implementation)
    if isinstance(local_window_size, int):
        local_window_size = local_window_size, local_window_size
    query, key, value = (jnp.asarray(x) for x in (query, key, value))
    # As in jax.nn, whose lengths, mask and bias then have an axis of one batch entry.
    is_single = query.ndim == 3
    if is_single:
        query, key, value = (x[None] if x.ndim == 3 else x for x in (query, key, value))
    segment_ids = None
    if query_seq_lengths is not None or key_value_seq_lengths is not None:
        rows = query.shape[1], key.shape[1]
        segment_ids = lengths_as_documents(query_seq_lengths, key_value_seq_lengths, query.shape[0], rows)
    o, lse = flash_attention(
        query,
        key,
        value,
        causal=is_causal,
        softmax_scale=scale,
        window_size=local_window_size or (None, None),
        top_left=True,
        return_lse=True,
        bias=bias,
        mask=mask,
        segment_ids=segment_ids,
    )
    lse = jnp.swapaxes(lse, -1, -2)
    if is_single:
        o, lse = o[0], lse[0]
    return (o, lse) if return_residual else o


def _known(name: str, value: Any) -> Any:
    """An option's value as Python's number, or None; refuses one that is only known when the program runs."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: it is traced by JAX; it must be known when the function is traced")
    return value.item() if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value


def _check_operands(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 3:
            raise ValueError(
                f"{name}: it has {x.ndim} axes; it must have 4, [batch, seq, heads, head_dim], or 3 or more"
            )
        if x.dtype.name not in DTYPES:
            raise ValueError(f"{name}: its dtype is {x.dtype.name}; it must be float32, float16 or bfloat16")
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: its dtype is {x.dtype.name}; it must be {q.dtype.name}, that of q")
        if x.shape[:-3] != q.shape[:-3]:
            raise ValueError(f"{name}: its leading axes are {x.shape[:-3]}; they must be {q.shape[:-3]}, those of q")


@functools.lru_cache(maxsize=1024)
def _check_shapes(
    arguments: Arguments, dtype: int, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], arrays: Shapes
) -> None:
    """Refuses, while a function is traced, what the library would refuse when it runs, in its words."""

    def view(shape: tuple[int, ...]) -> _native.View:
        batch = math.prod(shape[:-3])
        strides = (math.prod(shape[-3:]), math.prod(shape[-2:]), shape[-1], 1)
        return (batch, *shape[-3:]), strides

    views = [view(shape) for shape in (q, k, v, (*q[:-1], v[-1]))]
    _native.checked((-1, 0), dtype, _native.Options(arguments), views, arrays, None, None)
