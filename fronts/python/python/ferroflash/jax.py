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
from jax.custom_derivatives import SymbolicZero

from . import _native
from ._arguments import Arguments, window
from ._refuse import refuse

if TYPE_CHECKING:
    from jax.typing import ArrayLike

__all__ = ["dot_product_attention", "flash_attention"]

_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

for _name, _platform, _capsule in _native.xla_targets():
    jax.ffi.register_ffi_target(_name, _capsule, platform=_platform, api_version=1)


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
    return_lse: bool = False,
    alibi_slopes: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    segment_ids: ArrayLike | None = None,
    dropout_p: float = 0.0,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(q · kᵀ · softmax_scale) · v over the keys that the mask leaves visible; exact, differentiable by q, k, v, o and lse.

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
        return_lse: returns (o, lse) and not o alone.
        alibi_slopes, bias, mask, segment_ids, dropout_p: not supported yet; they must be left at their defaults.

    Returns:
        o, of q's dtype and shape with head_dim_v; rows that see no key are 0. lse is float32 [batch, heads_q, seq_q]: log-sum-exp
        of each row's scores in nats, -inf where no key is seen.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: an option that has to be known when a function is traced is not; names it.
        NotImplementedError: names an argument that is not supported yet.
    """
    refuse(alibi_slopes=alibi_slopes, bias=bias, mask=mask, segment_ids=segment_ids, dropout_p=dropout_p)
    left, right = window(tuple(_known("window_size", side) for side in window_size), _known("causal", causal))
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    arguments = Arguments(
        softmax_scale=_known("softmax_scale", softmax_scale),
        softcap=_known("softcap", softcap),
        left=left,
        right=right,
        top_left=bool(_known("top_left", top_left)),
        deterministic=bool(_known("deterministic", deterministic)),
    )
    _check(arguments, q, k, v)
    o, lse = _compiled(arguments, *_varying_alike(q, k, v))
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

    query is [batch, seq_q, heads_q, head_dim] or [seq_q, heads_q, head_dim], key and value have seq_k and heads_k. With
    return_residual lse is returned too, as there [batch, seq_q, heads_q], but float32. Queries that see no key are 0, where jax.nn
    averages all values. bias, mask, query_seq_lengths, key_value_seq_lengths and implementation raise NotImplementedError;
    `flash_attention` says what else is raised.
    """
    refuse(bias=bias, mask=mask, query_seq_lengths=query_seq_lengths, key_value_seq_lengths=key_value_seq_lengths)
    refuse(implementation=implementation)
    if isinstance(local_window_size, int):
        local_window_size = local_window_size, local_window_size
    o, lse = flash_attention(
        query,
        key,
        value,
        causal=is_causal,
        softmax_scale=scale,
        window_size=local_window_size or (None, None),
        top_left=True,
        return_lse=True,
    )
    return (o, jnp.swapaxes(lse, -1, -2)) if return_residual else o


def _known(name: str, value: Any) -> Any:
    """An option's value as Python's number, or None; refuses one that is only known when the program runs."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name}: it is traced by JAX; it must be known when the function is traced")
    return value.item() if isinstance(value, (np.generic, np.ndarray, jax.Array)) else value


def _check(arguments: Arguments, q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    """Refuses, while a function is traced, what the library would refuse when it runs, in its words."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 3:
            raise ValueError(
                f"{name}: it has {x.ndim} axes; it must have 4, [batch, seq, heads, head_dim], or 3 or more"
            )
        if x.dtype.name not in _DTYPES:
            raise ValueError(f"{name}: its dtype is {x.dtype.name}; it must be float32, float16 or bfloat16")
        if x.dtype != q.dtype:
            raise ValueError(f"{name}: its dtype is {x.dtype.name}; it must be {q.dtype.name}, that of q")
        if x.shape[:-3] != q.shape[:-3]:
            raise ValueError(f"{name}: its leading axes are {x.shape[:-3]}; they must be {q.shape[:-3]}, those of q")
    _check_shapes(arguments, _DTYPES[q.dtype.name], q.shape, k.shape, v.shape)


@functools.lru_cache(maxsize=1024)
def _check_shapes(arguments: Arguments, dtype: int, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    def view(shape: tuple[int, ...]) -> _native.View:
        batch = math.prod(shape[:-3])
        strides = (math.prod(shape[-3:]), math.prod(shape[-2:]), shape[-1], 1)
        return (batch, *shape[-3:]), strides

    views = [view(shape) for shape in (q, k, v, (*q[:-1], v[-1]))]
    _native.Call(-1, 0, dtype, _native.Options(arguments), views, _NoArrays)


class _NoArrays:
    """What a call has beside q, k, v and o, as the native half reads it: nothing."""

    packed = seqused_k = alibi_slopes = mask = bias = sinks = documents = prefix_len = dropout_state = None
    d_lse = d_alibi_slopes = d_bias = d_sinks = None


def _varying_alike(*operands: jax.Array) -> list[jax.Array]:
    """The operands, each varying over every axis of a mesh that one varies over (`jax.shard_map`).

    Gradients by an operand that did not are summed over it then.
    """
    axes = [_varying(x) for x in operands]
    every = frozenset().union(*axes)
    return [x if own == every else _spread(x, tuple(every - own)) for x, own in zip(operands, axes)]


def _spread(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """An array that varies over these axes of a mesh too, by the name that releases of JAX have for it."""
    return jax.lax.pcast(x, axes, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(x, axes)


def _varying(x: jax.Array) -> frozenset[str]:
    """The axes of a mesh that an array varies over; older releases of JAX call them vma."""
    aval = jax.typeof(x)
    of_mesh = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if of_mesh is None else of_mesh.varying


def _attributes(arguments: Arguments, q: jax.Array) -> dict[str, Any]:
    """The attributes of a custom call: -1 is an open side."""
    scale = arguments.softmax_scale
    return {
        "softmax_scale": np.float32(1 / math.sqrt(q.shape[-1]) if scale is None else scale),
        "softcap": np.float32(arguments.softcap),
        "left": np.int64(-1 if arguments.left is None else arguments.left),
        "right": np.int64(-1 if arguments.right is None else arguments.right),
        "top_left": arguments.top_left,
    }


def _call(name: str, results: tuple[Any, ...], *operands: jax.Array, **attributes: Any) -> tuple[jax.Array, ...]:
    # A mapped axis comes first, and is one more leading axis of all operands: those that are not mapped are broadcast.
    return jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")(*operands, **attributes)


def _forward(arguments: Arguments, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    def like(q: jax.Array) -> tuple[jax.Array, jax.Array]:
        row = q[..., :1]
        o = jnp.broadcast_to(row, (*q.shape[:-1], v.shape[-1]))
        return o, jnp.swapaxes(row[..., 0], -1, -2).astype(jnp.float32)

    # Found by a function, they lie on a mesh as q does, and vary over its axes as q does (`jax.shard_map`).
    results = jax.eval_shape(like, q)
    return _call("ferroflash_forward", results, q, k, v, **_attributes(arguments, q))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(arguments: Arguments, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """o and lse."""
    return _forward(arguments, q, k, v)


def _attend_forward(arguments: Arguments, *operands: Any) -> tuple[Any, Any]:
    q, k, v = (operand.value for operand in operands)
    o, lse = _forward(arguments, q, k, v)
    return (o, lse), (q, k, v, o, lse)


def _attend_backward(arguments: Arguments, kept: Any, cotangents: Any) -> tuple[jax.Array, ...]:
    q, k, v, o, lse = kept
    d_o, d_lse = cotangents
    if isinstance(d_o, SymbolicZero):
        d_o = jnp.zeros_like(o)
    # Of most losses, which do not depend on lse, there is none, and kernels do without.
    of_lse = () if isinstance(d_lse, SymbolicZero) else (d_lse,)
    results = jax.eval_shape(lambda *x: x, q, k, v)
    attributes = {**_attributes(arguments, q), "deterministic": arguments.deterministic}
    return _call("ferroflash_backward", results, q, k, v, o, lse, d_o, *of_lse, **attributes)


_attend.defvjp(_attend_forward, _attend_backward, symbolic_zeros=True)

# Compiled by itself, so that a call outside of `jax.jit` is a look-up too.
_compiled = jax.jit(_attend, static_argnums=0, inline=True)
