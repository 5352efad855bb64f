"""What attention on arrays of JAX takes beside q, k and v: checked, and in the shapes that custom calls take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from . import _native

if TYPE_CHECKING:
    from jax.typing import ArrayLike

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}

# The arrays that a call may have beside q, k and v, by the names of its attributes, in its order.
ARRAYS = "mask", "bias", "alibi_slopes", "doc_q", "doc_k", "dropout_state"

# How many axes each operand of a custom call has behind the leading ones, which are q's, in the order of operands. An array that
# is for all of several batch entries has no leading axes.
AXES = {"q": 3, "k": 3, "v": 3, "o": 3, "lse": 2, "d_o": 3, "d_lse": 2, **dict(zip(ARRAYS, (3, 3, 1, 1, 1, 1)))}


def mask_of(mask: ArrayLike, lead: tuple[int, ...]) -> jax.Array:
    """A mask that broadcasts to [*lead, heads_q, seq_q, seq_k]."""
    return _pairs("mask", jnp.asarray(mask), lead, ("bool",))


def bias_of(bias: ArrayLike, lead: tuple[int, ...]) -> jax.Array:
    """A bias that broadcasts to [*lead, heads_q, seq_q, seq_k]."""
    return _pairs("bias", jnp.asarray(bias), lead, tuple(DTYPES))


def slopes_of(slopes: ArrayLike, lead: tuple[int, ...], heads: int) -> jax.Array:
    """Slopes of ALiBi, [heads] or [*lead, heads]."""
    return _rows("alibi_slopes", jnp.asarray(slopes), lead, "float32", heads)


def documents_of(
    segment_ids: ArrayLike | tuple[ArrayLike, ArrayLike], lead: tuple[int, ...], rows: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Ids of queries and of keys, [seq] or [*lead, seq] of each."""
    if not isinstance(segment_ids, (tuple, list)):
        segment_ids = segment_ids, segment_ids
    if len(segment_ids) != 2:
        raise ValueError(f"segment_ids: there are {len(segment_ids)}; they must be one array, or two: of q, and of k")
    of_queries, of_keys = (
        _rows("segment_ids", jnp.asarray(ids), lead, "int32", count) for ids, count in zip(segment_ids, rows)
    )
    return of_queries, of_keys


def lengths_as_documents(
    query_lengths: ArrayLike | None, key_lengths: ArrayLike | None, batch: int, rows: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Ids by which the first rows of each batch entry see each other, and those behind see nothing and are seen by none."""

    def ids(name: str, lengths: ArrayLike | None, count: int, padding: int) -> jax.Array:
        if lengths is None:
            return jnp.zeros((batch, count), jnp.int32)
        lengths = jnp.asarray(lengths)
        _check_dtype(name, lengths, ("int32",))
        if lengths.shape != (batch,):
            raise ValueError(f"{name}: its shape is {list(lengths.shape)}; it must be {[batch]}")
        return jnp.where(jnp.arange(count) < lengths[:, None], 0, padding).astype(jnp.int32)

    of_queries = ids("query_seq_lengths", query_lengths, rows[0], -1)
    return of_queries, ids("key_value_seq_lengths", key_lengths, rows[1], -2)


def dropout_state_of(rng: ArrayLike | None) -> jax.Array:
    """Seed and offset, two numbers of 64 bits, of a key: uint32 [4]."""
    if rng is None:
        raise ValueError("dropout_rng: it is None; it must be a key where dropout_p is above 0")
    words = jnp.asarray(rng)
    if jnp.issubdtype(words.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(words)
    _check_dtype("dropout_rng", words, ("uint32",))
    if words.shape not in ((2,), (4,)):
        raise ValueError(f"dropout_rng: its shape is {list(words.shape)}; it must be one key, whose data is [2] or [4]")
    return jnp.concatenate([words, jnp.zeros(4 - words.size, jnp.uint32)])


def _check_dtype(name: str, x: jax.Array, allowed: tuple[str, ...]) -> None:
    if x.dtype.name not in allowed:
        names = " or ".join([", ".join(allowed[:-1]), allowed[-1]][len(allowed) == 1 :])
        raise ValueError(f"{name}: its dtype is {x.dtype.name}; it must be {names}")


def _pairs(name: str, x: jax.Array, lead: tuple[int, ...], dtypes: tuple[str, ...]) -> jax.Array:
    """An array over pairs. Sizes of its last three axes are the library's to check."""
    _check_dtype(name, x, dtypes)
    most = len(lead) + 3
    if x.ndim > most:
        raise ValueError(f"{name}: it has {x.ndim} axes; it must have {most} or fewer")
    x = x.reshape(*[1] * (most - x.ndim), *x.shape)
    given = x.shape[:-3]
    if any(size not in (1, of_q) for size, of_q in zip(given, lead)):
        raise ValueError(f"{name}: its leading axes are {given}; they must be {lead}, those of q, or 1")
    return _with_leading_axes(x, 3, lead)


def _rows(name: str, x: jax.Array, lead: tuple[int, ...], dtype: str, count: int) -> jax.Array:
    """An array of `count` numbers, or as many for each batch entry."""
    _check_dtype(name, x, (dtype,))
    if x.shape not in ((count,), (*lead, count)):
        allowed = " or ".join(dict.fromkeys((f"{[count]}", f"{[*lead, count]}")))
        raise ValueError(f"{name}: its shape is {list(x.shape)}; it must be {allowed}")
    return _with_leading_axes(x.reshape(*[1] * (len(lead) + 1 - x.ndim), *x.shape), 1, lead)


def _with_leading_axes(x: jax.Array, own: int, lead: tuple[int, ...]) -> jax.Array:
    """An array with q's leading axes, or with none where it is for all of several batch entries."""
    if math.prod(x.shape[:-own]) == 1 != math.prod(lead):
        return x.reshape(x.shape[-own:])
    return jnp.broadcast_to(x, (*lead, *x.shape[-own:]))


class Shapes(NamedTuple):
    """How arrays lie, as the native half reads it to check a call."""

    mask: _native.View | None = None
    bias: tuple[_native.View, int] | None = None
    alibi_slopes: bool | None = None
    documents: bool | None = None
    dropout_state: bool = False
    cache: None = None
    packed: None = None
    seqused_k: bool = False
    sinks: bool = False
    prefix_len: bool = False
    wanted: tuple[bool, bool, bool] = (False, False, False)


def shapes_of(arrays: dict[str, jax.Array], seq_k: int) -> Shapes:
    """Those of the arrays of a call."""

    def view(x: jax.Array) -> _native.View:
        *leading, heads, rows, keys = x.shape
        return (math.prod(leading), heads, rows, seq_k if keys == 1 else keys), (0, 0, 0, 0)

    found: dict[str, Any] = {}
    if (mask := arrays.get("mask")) is not None:
        found["mask"] = view(mask)
    if (bias := arrays.get("bias")) is not None:
        found["bias"] = view(bias), DTYPES[bias.dtype.name]
    if (slopes := arrays.get("alibi_slopes")) is not None:
        found["alibi_slopes"] = slopes.ndim > 1
    if (ids := arrays.get("doc_q")) is not None:
        found["documents"] = ids.ndim > 1
    if "dropout_state" in arrays:
        found["dropout_state"] = True
    return Shapes(**found)
