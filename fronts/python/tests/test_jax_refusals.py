"""What `ferroflash.jax`, and its handlers, refuse of masks, biases, slopes, documents, lengths and dropout."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="not run: JAX is not installed here")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from ferroflash.jax import dot_product_attention, flash_attention  # noqa: E402
from jax_reference import ATTRIBUTES  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_jax_device")
KEY = np.array([0, 3], np.uint32)
Q = np.zeros((2, 5, 4, 16), np.float32)
ROWS = np.zeros((2, 5), np.int32)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("mask: its dtype is float32; it must be bool", {"mask": np.zeros((5, 5), np.float32)}),
        ("mask: it has 5 axes; it must have 4 or fewer", {"mask": np.zeros((1, 2, 4, 5, 5), bool)}),
        (r"mask: its leading axes are \(3,\); they must be \(2,\)", {"mask": np.zeros((3, 4, 5, 5), bool)}),
        ("mask: heads_q is 2; it must be 4 or 1", {"mask": np.zeros((2, 5, 5), bool)}),
        ("mask: seq_q is 4; it must be 5 or 1", {"mask": np.zeros((4, 5), bool)}),
        ("mask: seq_kv is 4; it must be 5", {"mask": np.zeros(4, bool)}),
        ("bias: its dtype is int32; it must be float32, float16 or bfloat16", {"bias": np.zeros((5, 5), np.int32)}),
        ("bias: heads_q is 3; it must be 4 or 1", {"bias": np.zeros((3, 5, 5), np.float32)}),
        ("alibi_slopes: its dtype is float16; it must be float32", {"alibi_slopes": np.zeros(4, np.float16)}),
        (r"alibi_slopes: its shape is \[3\]; it must be \[4\] or \[2, 4\]", {"alibi_slopes": np.zeros(3, np.float32)}),
        ("segment_ids: its dtype is float32; it must be int32", {"segment_ids": np.zeros(5, np.float32)}),
        (r"segment_ids: its shape is \[4\]; it must be \[5\] or \[2, 5\]", {"segment_ids": np.zeros(4, np.int32)}),
        (r"segment_ids: there are 3; they must be one array, or two", {"segment_ids": (ROWS, ROWS, ROWS)}),
        ("dropout_rng: it is None; it must be a key", {"dropout_p": 0.5}),
        ("dropout_rng: its dtype is float32", {"dropout_p": 0.5, "dropout_rng": Q}),
        (r"dropout_rng: its shape is \[3\]", {"dropout_p": 0.5, "dropout_rng": np.zeros(3, np.uint32)}),
        ("dropout: the rate is 1; it must be at least 0 and below 1", {"dropout_p": 1.0, "dropout_rng": KEY}),
        ("dropout: the rate is NaN", {"dropout_p": float("nan"), "dropout_rng": KEY}),
    ],
)
def test_refusals_name_the_argument(message: str, options: Any) -> None:
    """While a function is traced, before anything runs."""
    with pytest.raises(ValueError, match=f"^{message}"):
        jax.eval_shape(functools.partial(flash_attention, **options), Q, Q, Q)


@pytest.mark.parametrize("name", ["query_seq_lengths", "key_value_seq_lengths"])
def test_lengths_that_are_refused(name: str) -> None:
    for lengths, message in (
        (np.zeros(2, np.float32), "its dtype is float32"),
        (np.zeros(3, np.int32), "its shape is"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            dot_product_attention(Q, Q, Q, **{name: lengths})


def test_another_precision_is_named() -> None:
    with pytest.raises(ValueError, match=r"^precision: it is 'tf32'; it must be 'bounded' or 'ieee'$"):
        flash_attention(Q, Q, Q, precision="tf32")


def test_a_rate_must_be_known() -> None:
    with pytest.raises(TypeError, match=r"^dropout_p: it is traced"):
        jax.jit(lambda p: flash_attention(Q, Q, Q, dropout_p=p, dropout_rng=KEY))(0.3)


BACKWARD = {"deterministic": False, "d_lse": False, "d_bias": False, "d_alibi_slopes": False}
HALF = jnp.float16


@pytest.mark.parametrize(
    ("message", "arrays", "attributes"),
    [
        ("arguments: there are 3; they must be q, k, v, mask", {}, {"mask": True}),
        ("bias: it is missing; it must be one bool", {}, {"bias": None}),
        ("mask: it is a number of XLA's type 4; it must be one bool", {}, {"mask": np.int32(2)}),
        ("mask: its dtype is XLA's 11; it must be bool", {"mask": (5, 5)}, {}),
        ("mask: it has 2 axes; it must have 3 or more", {"mask": np.ones((5, 5), bool)}, {}),
        ("mask: batch is 4; it must be 2 or 1", {"mask": np.ones((2, 2, 4, 5, 5), bool)}, {}),
        ("bias: its dtype is XLA's 4; it must be f32, f16 or bf16", {"bias": np.ones((4, 5, 5), np.int32)}, {}),
        ("bias: seq_kv is 4; it must be 5", {"bias": (1, 1, 4)}, {}),
        ("bias: heads_q is 0; it must be 4 or 1", {"bias": (0, 5, 5)}, {}),
        (
            r"alibi_slopes: it is XLA's 11 \[5\]; it must be f32 \[..., 4\], of 1 or 2 in all",
            {"alibi_slopes": (5,)},
            {},
        ),
        ("doc_k: it is not there; it must be where doc_q is", {"doc_q": ROWS}, {}),
        ("doc_q: it is not there; it must be where doc_k is", {"doc_k": ROWS}, {}),
        (r"doc_q: it is XLA's 11 \[2, 5\]; it must be i32 \[..., 5\]", {"doc_q": (2, 5), "doc_k": ROWS}, {}),
        ("doc_k: each batch entry has its own: false", {"doc_q": ROWS, "doc_k": ROWS[0]}, {}),
        (r"dropout_state: it is XLA's 11 \[4\]; it must be u32 \[..., 4\]", {"dropout_state": (4,)}, {}),
        ("dropout_state: no address is given", {}, {"dropout_p": np.float32(0.5)}),
        ("dropout: the rate is 2", {}, {"dropout_p": np.float32(2)}),
        ("ieee: it is a number of XLA's type 4; it must be one bool", {}, {"ieee": np.int32(1)}),
    ],
)
def test_handlers_trust_no_caller(message: str, arrays: Any, attributes: Any) -> None:
    """Whoever calls XLA's target by its name gets an error of the argument's, and nothing is read or written beyond."""
    arrays = {name: np.ones(x, np.float32) if isinstance(x, tuple) else x for name, x in arrays.items()}
    given = {**ATTRIBUTES, **dict.fromkeys(arrays, True), **attributes}
    given = {name: value for name, value in given.items() if value is not None}
    results = jax.ShapeDtypeStruct(Q.shape, Q.dtype), jax.ShapeDtypeStruct((2, 4, 5), np.float32)
    of = [jnp.asarray(x) for x in (Q, Q, Q, *arrays.values())]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: {message}"):
        jax.block_until_ready(jax.ffi.ffi_call("ferroflash_forward", results)(*of, **given))


@pytest.mark.parametrize(
    ("message", "arrays", "gradients"),
    [
        (
            r"d_bias: it is XLA's 11 \[1, 5, 5\]; it must be f32 \[..., 4, 5, 5\], of 1",
            {"bias": (4, 5, 5)},
            {"d_bias": (1, 5, 5)},
        ),
        (
            r"d_bias: it is XLA's 10 \[4, 5, 5\]; it must be f32",
            {"bias": (4, 5, 5)},
            {"d_bias": jnp.ones((4, 5, 5), HALF)},
        ),
        (
            r"d_bias: it is XLA's 11 \[4, 1, 1\]; it must be f32 \[..., 4, 1, 5\]",
            {"bias": (4, 1, 1)},
            {"d_bias": (4, 1, 1)},
        ),
        ("bias_gradient: there is no bias", {}, {"d_bias": (4, 5, 5)}),
        (r"d_alibi_slopes: it is XLA's 11 \[4\]", {"alibi_slopes": (2, 4)}, {"d_alibi_slopes": (4,)}),
        ("alibi_gradient: there are no slopes", {}, {"d_alibi_slopes": (4,)}),
        (
            "results: there are 4; they must be dq, dk, dv, d_bias, d_alibi_slopes",
            {},
            {"d_bias": (4, 5, 5), "d_alibi_slopes": None},
        ),
    ],
)
def test_handlers_trust_no_caller_with_gradients(message: str, arrays: Any, gradients: Any) -> None:
    arrays = {name: np.ones(shape, np.float32) for name, shape in arrays.items()}
    given = {**ATTRIBUTES, **BACKWARD, **dict.fromkeys((*arrays, *gradients), True)}
    shapes = [jnp.ones(x, np.float32) if isinstance(x, tuple) else x for x in gradients.values() if x is not None]
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (Q, Q, Q, *shapes))
    of = [jnp.asarray(x) for x in (Q, Q, Q, Q, Q[..., 0].swapaxes(1, 2), Q, *arrays.values())]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: {message}"):
        jax.block_until_ready(jax.ffi.ffi_call("ferroflash_backward", results)(*of, **given))
