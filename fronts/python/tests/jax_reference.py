"""Attention in f64, from the formula, by JAX: what tests of `ferroflash.jax` compare with."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Relative error, in the largest norm, that is allowed of results of each dtype: as in `reference`.
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}

# The attributes of a custom call of the forward pass that has no arrays beside its tensors.
ATTRIBUTES = {
    **{"softmax_scale": np.float32(0.3), "softcap": np.float32(0), "dropout_p": np.float32(0)},
    **{"left": np.int64(-1), "right": np.int64(-1), "top_left": False, "ieee": False},
    **dict.fromkeys(("mask", "bias", "alibi_slopes", "doc_q", "doc_k", "dropout_state"), False),
}


def plain(options: tuple[tuple[str, Any], ...], q: Any, k: Any, v: Any, **arrays: Any) -> tuple[Any, Any]:
    """o and lse of operands [..., seq, heads, dim], from the formula, in the dtype that they are of.

    Of `arrays` mask, bias and kept broadcast to [..., heads, seq_q, seq_k]; kept is what probabilities are multiplied with.
    """
    of = dict(options)
    k, v = (jnp.repeat(x, q.shape[-2] // x.shape[-2], -2) for x in (k, v))
    scale = of.get("softmax_scale")
    scores = jnp.einsum("...qhd,...khd->...hqk", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if of.get("softcap"):
        scores = of["softcap"] * jnp.tanh(scores / of["softcap"])
    seq_q, seq_k = scores.shape[-2:]
    shift = 0 if of.get("top_left") else seq_k - seq_q
    distance = jnp.arange(seq_k) - jnp.arange(seq_q)[:, None] - shift
    if "alibi_slopes" in arrays:
        from_corner = jnp.abs(distance + shift - (seq_k - seq_q))
        scores = scores - arrays["alibi_slopes"][..., None, None] * from_corner
    if "bias" in arrays:
        scores = scores + arrays["bias"]
    left, right = of.get("window_size", (-1, -1))
    visible = jnp.ones((seq_q, seq_k), bool)
    if left not in (None, -1):
        visible &= distance >= -left
    if of.get("causal"):
        visible &= distance <= 0
    elif right not in (None, -1):
        visible &= distance <= right
    if "doc_q" in arrays:
        visible = visible & (arrays["doc_q"][..., None, :, None] == arrays["doc_k"][..., None, None, :])
    visible = jnp.broadcast_to(visible & arrays.get("mask", True), scores.shape)
    largest = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True, initial=-1e30, where=visible))
    p = jnp.where(visible, jnp.exp(jnp.where(visible, scores - largest, 0)), 0)
    total = p.sum(-1, keepdims=True)
    is_empty = total == 0
    total = jnp.where(is_empty, 1, total)
    o = jnp.einsum("...hqk,...khd->...qhd", p / total * arrays.get("kept", 1), v)
    return o, jnp.where(is_empty, -jnp.inf, largest + jnp.log(total))[..., 0]


def weighted(o: Any, lse: Any, d_o: Any, d_lse: Any) -> Any:
    """A loss whose gradients by o and lse are these; a row without keys has no part in it."""
    loss = (o.astype(d_o.dtype) * d_o).sum()
    return loss if d_lse is None else loss + (jnp.where(jnp.isfinite(lse), lse, 0) * d_lse).sum()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _plain_with_gradients(
    options: tuple[tuple[str, Any], ...], by: tuple[str, ...], operands: Any, arrays: Any, d_o: Any, d_lse: Any
) -> Any:
    def loss(operands: Any, wanted: Any) -> tuple[Any, Any]:
        o, lse = plain(options, *operands, **{**arrays, **wanted})
        return weighted(o, lse, d_o, d_lse), (o, lse)

    wanted = {name: arrays[name] for name in by}
    (gradients, others), results = jax.grad(loss, (0, 1), has_aux=True)(operands, wanted)
    return (*results, *gradients, *(others[name] for name in by))


def expected(
    options: dict[str, Any], operands: Any, d_o: Any, d_lse: Any = None, by: tuple[str, ...] = (), **arrays: Any
) -> list[np.ndarray]:
    """o, lse, dq, dk and dv in f64, and the gradients `by` these arrays."""

    def widened(x: Any) -> Any:
        array = np.asarray(x)
        is_number = array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer)
        return jnp.asarray(array if is_number else array.astype(np.float64))

    with jax.enable_x64(True):
        wide = jax.tree.map(widened, (list(operands), arrays, d_o, d_lse))
        results = _plain_with_gradients(tuple(options.items()), by, *wide)
        return [np.asarray(x) for x in results]


def check(name: str, actual: Any, exact: np.ndarray, tolerance: float) -> None:
    """Holds `actual` to `exact` within `tolerance` of its largest value; infinities have to be the same."""
    actual = np.asarray(actual).astype(np.float64)
    assert actual.shape == exact.shape, f"{name}: {actual.shape} for {exact.shape}"
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(actual[~finite], exact[~finite], name)
    error = np.abs(actual[finite] - exact[finite]).max(initial=0)
    allowed = tolerance * np.abs(exact[finite]).max(initial=1)
    assert error <= allowed, f"{name}: off by {error:.2e}, allowed {allowed:.2e}"


def normal(seed: int, *shape: int, dtype: str = "float32") -> Any:
    """Drawn by numpy, which compiles nothing for each shape."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(jnp.dtype(dtype)))


def bits(seed: int, *shape: int, share: float = 0.7) -> Any:
    """A mask, of which this share is True."""
    return jnp.asarray(np.random.default_rng(seed).random(shape) < share)


def ids(seed: int, *shape: int) -> Any:
    """Documents of rows."""
    return jnp.asarray(np.random.default_rng(seed).integers(0, 3, shape, np.int32))


def operands(*lead: int, seq_q: int = 21, seq_k: int = 34, dtype: str = "float32") -> list[Any]:
    """q, k and v, of two query heads to a head of keys."""
    shapes = (seq_q, 4, 32), (seq_k, 2, 32), (seq_k, 2, 32)
    return [normal(seed, *lead, *shape, dtype=dtype) for seed, shape in enumerate(shapes)]


def run_python(code: str) -> str:
    """What a new Python prints, in which JAX has two CPUs."""
    flags = "--xla_force_host_platform_device_count=2"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
