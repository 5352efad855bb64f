"""`ferroflash.jax.dot_product_attention` beside jax.nn's own."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="not run: JAX is not installed here")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from ferroflash.jax import dot_product_attention  # noqa: E402
from jax_reference import bits, check, normal, operands  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_jax_device")


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("window", [None, 6, (5, 2)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_jax_nns_own_function(rank: int, window: Any, is_causal: bool) -> None:
    assert list(inspect.signature(dot_product_attention).parameters) == list(
        inspect.signature(jax.nn.dot_product_attention).parameters
    )
    q, k, v = (normal(seed, *(2,) * (rank - 3), *last, 16) for seed, last in enumerate(((11, 4), (15, 2), (15, 2))))
    options = {"scale": 0.3, "is_causal": is_causal, "local_window_size": window, "return_residual": True}
    with jax.default_matmul_precision("float32"):
        theirs = jax.nn.dot_product_attention(q, k, v, **options)
    for name, a, b in zip(("o", "lse"), dot_product_attention(q, k, v, **options), theirs):
        check(name, a, np.asarray(b, np.float64), 2e-5)


def beside_jax_nn(of: list[Any], rows: Any = None, **options: Any) -> None:
    """Holds o and gradients to those of jax.nn's own function, and lse where `rows` have keys."""

    def results(attend: Any) -> Any:
        by = {name: x for name, x in options.items() if name == "bias"}

        def loss(of: Any, by: Any) -> Any:
            o, lse = attend(*of, **{**options, **by}, return_residual=True)
            return jnp.square(o).sum(), (o, lse)

        return jax.grad(loss, (0, 1), has_aux=True)(of, by)

    with jax.default_matmul_precision("float32"):
        theirs = results(jax.nn.dot_product_attention)
    gradients, (o, lse) = results(dot_product_attention)
    check("o", o, np.asarray(theirs[1][0], np.float64), 2e-5)
    seen = np.isfinite(lse) if rows is None else np.broadcast_to(rows[..., None], lse.shape)
    np.testing.assert_array_equal(np.isfinite(lse), seen)
    check("lse", lse[seen], np.asarray(theirs[1][1][seen], np.float64), 2e-5)
    for a, b in zip(jax.tree.leaves(gradients), jax.tree.leaves(theirs[0])):
        check("gradient", a, np.asarray(b, np.float64), 1e-4)


@pytest.mark.parametrize("shape", [(2, 4, 11, 15), (1, 1, 11, 15), (2, 1, 1, 15), (11, 15)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_jax_nns_bias_and_mask(shape: tuple[int, ...], is_causal: bool) -> None:
    of = operands(2, seq_q=11, seq_k=15)
    # Without rows that see no key: of these jax.nn averages values.
    mask = bits(1, *shape).at[..., 0].set(True)
    beside_jax_nn(of, bias=normal(2, *shape), mask=mask, is_causal=is_causal)


@pytest.mark.parametrize("shape", [(4, 11, 15), (1, 4, 11, 15)])
def test_jax_nns_operands_without_a_batch(shape: tuple[int, ...]) -> None:
    of = operands(seq_q=11, seq_k=15)
    beside_jax_nn(of, bias=normal(2, *shape), mask=bits(1, *shape).at[..., 0].set(True))
    lengths = {"query_seq_lengths": jnp.array([7]), "key_value_seq_lengths": jnp.array([9])}
    beside_jax_nn(of, np.arange(11) < 7, **lengths)


@pytest.mark.parametrize("which", ["query", "key_value", "query and key_value"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("is_causal", [False, True])
def test_jax_nns_lengths(which: str, window: Any, is_causal: bool) -> None:
    of, lengths = operands(3, seq_q=11, seq_k=11), {"query": [11, 5, 0], "key_value": [3, 11, 8]}
    given = {f"{name}_seq_lengths": jnp.array(lengths[name]) for name in which.split(" and ")}
    if window is not None and "key_value_seq_lengths" in given:
        # Each query sees a key: of others jax.nn averages values.
        given["key_value_seq_lengths"] = jnp.array([7, 11, 8])
    rows = np.arange(11) < np.array(lengths["query"] if "query" in which.split(" and ") else [11] * 3)[:, None]
    beside_jax_nn(of, rows, **given, local_window_size=window, is_causal=is_causal)


def test_jax_nns_padding_is_0() -> None:
    of = operands(2, seq_q=11, seq_k=15)
    lengths = {"query_seq_lengths": jnp.array([4, 11]), "key_value_seq_lengths": jnp.array([15, 0])}
    o, lse = jax.jit(functools.partial(dot_product_attention, return_residual=True))(*of, **lengths)
    for x in (o[0, 4:], o[1], jnp.exp(lse[0, 4:]), jnp.exp(lse[1])):
        assert not x.any()
    assert o[0, :4].any(-1).all()


def test_other_implementations_are_refused() -> None:
    q = np.zeros((2, 5, 4, 16), np.float32)
    with pytest.raises(NotImplementedError, match=r"^implementation: "):
        dot_product_attention(q, q, q, implementation="cudnn")
