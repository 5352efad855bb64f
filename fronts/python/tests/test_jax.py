"""`ferroflash.jax` beside a plain softmax in f64: values, gradients, JAX's transformations, refusals."""

from __future__ import annotations

import functools
import math
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Beside PyTorch JAX must not take the GPU's whole memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="not run: JAX is not installed here")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from ferroflash.jax import flash_attention  # noqa: E402
from jax_reference import ATTRIBUTES, TOLERANCE, check, expected, normal, plain, run_python, weighted  # noqa: E402
from threads import from_threads  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_jax_device")
SIDES = st.one_of(st.sampled_from([-1, None]), st.integers(0, 40))


def gradients(d_o: Any, d_lse: Any, options: dict[str, Any], operands: Any) -> Any:
    """Those by q, k and v; and o and lse."""

    def loss(*operands: Any) -> Any:
        o, lse = flash_attention(*operands, **options, return_lse=True)
        return weighted(o, lse, d_o, d_lse), (o, lse)

    return jax.grad(loss, (0, 1, 2), has_aux=True)(*operands)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_drawn_problems(data: st.DataObject) -> None:
    leading = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    group, heads = (data.draw(st.integers(1, 3)) for _ in range(2))
    seq_q, seq_k = (data.draw(st.integers(0, 70)) for _ in range(2))
    dim, dim_v = (data.draw(st.sampled_from([1, 8, 20, 64, 130])) for _ in range(2))
    dtype = data.draw(st.sampled_from(list(TOLERANCE)))
    options = {
        "causal": data.draw(st.booleans()),
        "softmax_scale": data.draw(st.sampled_from([None, 0.3])),
        "window_size": (data.draw(SIDES), data.draw(SIDES)),
        "softcap": data.draw(st.sampled_from([0.0, 5.0])),
        "top_left": data.draw(st.booleans()),
    }
    q = normal(1, *leading, seq_q, heads * group, dim, dtype=dtype)
    k = normal(2, *leading, seq_k, heads, dim, dtype=dtype)
    v = normal(3, *leading, seq_k, heads, dim_v, dtype=dtype)
    d_o = normal(4, *q.shape[:-1], dim_v)
    d_lse = data.draw(st.sampled_from([None, normal(5, *leading, heads * group, seq_q)]))
    # As they are cast for o's dtype.
    d_o = d_o.astype(dtype)
    actual, (o, lse) = jax.jit(functools.partial(gradients, d_o, d_lse, options))((q, k, v))
    assert (o.dtype, lse.dtype) == (q.dtype, jnp.float32)
    exact = expected(options, (q, k, v), d_o, d_lse)
    check("o", o, exact[0], TOLERANCE[dtype])
    check("lse", lse, exact[1], 1e-4)
    for name, gradient, of in zip(("dq", "dk", "dv"), actual, exact[2:]):
        assert gradient.dtype == q.dtype
        check(name, gradient, of, 2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_it_is_the_same(dtype: str) -> None:
    operands = [normal(seed, 2, 33, heads, 64, dtype=dtype) for seed, heads in enumerate((4, 2, 2))]
    options = {"causal": True, "window_size": (20, 0), "softcap": 9.0, "deterministic": True, "precision": "ieee"}
    attend = functools.partial(flash_attention, **options)
    np.testing.assert_array_equal(jax.jit(attend)(*operands), attend(*operands))
    eager = functools.partial(gradients, normal(7, 2, 33, 4, 64, dtype=dtype), None, options)
    for a, b in zip(*(jax.tree.leaves(run(operands)) for run in (jax.jit(eager), eager))):
        np.testing.assert_array_equal(a, b)


def test_a_loss_of_lse_alone() -> None:
    q, k, v = (normal(seed, 1, 9, 2, 16) for seed in range(3))
    actual = jax.grad(lambda *x: flash_attention(*x, return_lse=True)[1].sum(), (0, 1, 2))(q, k, v)
    exact = expected({}, (q, k, v), jnp.zeros_like(q), jnp.ones((1, 2, 9)))
    for name, gradient, of in zip(("dq", "dk", "dv"), actual, exact[2:]):
        check(name, gradient, of, 1e-4)


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (2, None, 1), (None, 3, 0)])
def test_mapped_it_is_as_one_by_one(in_axes: tuple[int | None, ...]) -> None:
    shapes = (2, 11, 4, 16), (2, 17, 2, 16), (2, 17, 2, 8)
    operands = []
    for seed, (shape, axis) in enumerate(zip(shapes, in_axes)):
        operands.append(normal(seed, *(shape if axis is None else (*shape[:axis], 3, *shape[axis:]))))

    def one(index: int) -> list[Any]:
        return [x if axis is None else jnp.take(x, index, axis) for x, axis in zip(operands, in_axes)]

    def loss(attend: Any, *operands: Any) -> Any:
        return jnp.square(attend(*operands)).sum()

    attend = functools.partial(flash_attention, causal=True)
    mapped = jax.vmap(attend, in_axes)
    # A larger batch may run by other kernels.
    exact = jnp.stack([attend(*one(index)) for index in range(3)])
    check("o", mapped(*operands), np.asarray(exact, np.float64), 1e-5)
    # By what is not mapped gradients are sums.
    actual = jax.grad(functools.partial(loss, mapped), (0, 1, 2))(*operands)
    parts = [jax.grad(functools.partial(loss, attend), (0, 1, 2))(*one(index)) for index in range(3)]
    for name, gradient, of, axis in zip(("dq", "dk", "dv"), actual, zip(*parts), in_axes):
        exact = sum(of) if axis is None else jnp.stack(of, axis)
        check(name, gradient, np.asarray(exact, np.float64), 1e-5)


def test_inside_of_other_transformations() -> None:
    """Mapped twice, in a loop, computed again for its gradients."""
    q = normal(1, 2, 3, 2, 9, 2, 16)
    twice = jax.vmap(jax.vmap(flash_attention))(q, q, q)
    np.testing.assert_array_equal(twice, flash_attention(q, q, q))

    def layers(attend: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, _: (attend(x, x, x), None), x, length=3)[0].sum()

    def by_hand(x: Any) -> Any:
        for _ in range(3):
            x = plain((), x, x, x)[0]
        return x.sum()

    x = normal(2, 2, 9, 2, 16)
    with jax.default_matmul_precision("float32"):
        exact = jax.grad(by_hand)(x)
    for attend in (flash_attention, jax.checkpoint(flash_attention)):
        check("gradient", jax.jit(jax.grad(functools.partial(layers, attend)))(x), np.asarray(exact, np.float64), 1e-4)


Q = np.zeros((2, 5, 4, 16), np.float32)


@pytest.mark.parametrize(
    ("error", "message", "operands", "options"),
    [
        (ValueError, "k: head_dim is 15; it must be 16, the head_dim of q", (Q, Q[..., :15], Q), {}),
        (ValueError, "q: heads_q is 4", (Q, Q[:, :, :3], Q[:, :, :3]), {}),
        (ValueError, "v: its dtype is float16; it must be float32", (Q, Q, Q.astype(np.float16)), {}),
        (ValueError, "q: its dtype is int32", (Q.astype(np.int32), Q, Q), {}),
        (ValueError, "q: it has 2 axes", (Q[0, 0], Q, Q), {}),
        (ValueError, r"k: its leading axes are \(1,\); they must be \(2,\)", (Q, Q[:1], Q), {}),
        (ValueError, "softcap: it is -1", (Q, Q, Q), {"softcap": -1.0}),
        (ValueError, "softmax_scale: it is NaN", (Q, Q, Q), {"softmax_scale": math.nan}),
    ],
)
def test_refusals_name_the_argument(error: type[Exception], message: str, operands: Any, options: Any) -> None:
    """While a function is traced, before anything runs."""
    with pytest.raises(error, match=f"^{message}"):
        jax.eval_shape(functools.partial(flash_attention, **options), *operands)


def test_options_must_be_known() -> None:
    with pytest.raises(TypeError, match=r"^softmax_scale: it is traced"):
        jax.jit(lambda scale: flash_attention(Q, Q, Q, softmax_scale=scale))(0.3)
    known = flash_attention(Q, Q, Q, softmax_scale=np.float32(0.3), window_size=(jnp.asarray(3), np.int32(0)))
    np.testing.assert_array_equal(known, flash_attention(Q, Q, Q, softmax_scale=0.3, window_size=(3, 0)))


def test_there_is_no_second_derivative() -> None:
    def loss(q: Any) -> Any:
        return flash_attention(q, q, q).sum()

    with pytest.raises(ValueError, match="The FFI call to `ferroflash_"):
        jax.grad(lambda q: jax.grad(loss)(q).sum())(Q)


OUT, LSE = jax.ShapeDtypeStruct(Q.shape, Q.dtype), jax.ShapeDtypeStruct((2, 4, 5), np.float32)


@pytest.mark.parametrize(
    ("message", "operands", "results", "attributes"),
    [
        ("arguments: there are 2; they must be q, k, v", (Q, Q), (OUT, LSE), {}),
        ("results: there are 1; they must be o, lse", (Q, Q, Q), (OUT,), {}),
        ("k: its dtype is XLA's 4; it must be f32, f16 or bf16", (Q, Q.astype(np.int32), Q), (OUT, LSE), {}),
        ("v: it has 2 axes; it must have 3 or more", (Q, Q, Q[0, 0]), (OUT, LSE), {}),
        ("lse: it is XLA's 11 .2, 5, 4, 16.; it must be f32 .* 4, 5", (Q, Q, Q), (OUT, OUT), {}),
        ("o: head_dim_v is 8", (Q, Q, Q), (jax.ShapeDtypeStruct((2, 5, 4, 8), Q.dtype), LSE), {}),
        ("softcap: it is missing; it must be one f32", (Q, Q, Q), (OUT, LSE), {"softcap": None}),
        (
            "softcap: it is a number of XLA's type 4; it must be one f32",
            (Q, Q, Q),
            (OUT, LSE),
            {"softcap": np.int32(1)},
        ),
        ("left: it is an attribute of XLA's type 4; it must be one i64", (Q, Q, Q), (OUT, LSE), {"left": "all"}),
        (
            "top_left: it is a number of XLA's type 4; it must be one bool",
            (Q, Q, Q),
            (OUT, LSE),
            {"top_left": np.int32(1)},
        ),
        ("softcap: it is inf; it must be finite", (Q, Q, Q), (OUT, LSE), {"softcap": np.float32(math.inf)}),
    ],
)
def test_handlers_trust_no_caller(message: str, operands: Any, results: Any, attributes: Any) -> None:
    """Whoever calls XLA's target by its name gets an error of the argument's, and nothing is read or written beyond."""
    given = {name: value for name, value in {**ATTRIBUTES, **attributes}.items() if value is not None}
    operands = [jnp.asarray(x) for x in operands]
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: {message}"):
        jax.block_until_ready(jax.ffi.ffi_call("ferroflash_forward", results)(*operands, **given))


def test_threads_call_at_once() -> None:
    q = normal(1, 2, 100, 4, 64)
    attend = jax.jit(flash_attention)
    exact = np.asarray(attend(q, q, q))
    results = from_threads(lambda: attend(q, q, q))
    assert len(results) == 80
    assert all(np.array_equal(result, exact) for result in results)


def test_imports_are_where_they_are_asked_for() -> None:
    code = """
import sys
sys.modules["jax"] = None  # whoever imports it fails
import ferroflash
print("flash_attn_func" in dir(ferroflash))
try:
    ferroflash.jax
except ImportError:
    del sys.modules["jax"]
    sys.modules["torch"] = None
    print(ferroflash.jax.flash_attention.__name__)
"""
    assert run_python(code).split() == ["True", "flash_attention"]


def test_split_over_devices() -> None:
    """By `jax.shard_map`: each device has its part of q; k and v are split too, or everywhere the same, and gradients are sums."""
    code = """
import functools, jax, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from ferroflash.jax import flash_attention
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
q, k = (jax.random.normal(jax.random.key(s), (4, 12, h, 16)) for s, h in ((0, 4), (1, 2)))
attend = functools.partial(flash_attention, causal=True)
def gradients(attend, k):
    return jax.jit(jax.grad(lambda q, k: (attend(q, k, k) ** 2).sum(), (0, 1)))(q, k)
split = jax.shard_map(attend, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
for a, b in zip(gradients(split, k), gradients(attend, k)):
    np.testing.assert_allclose(a, b, atol=1e-5)
same = jax.shard_map(attend, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P("x"))
tiled = lambda q, k, v: attend(q, *(jax.numpy.concatenate([x, x]) for x in (k, v)))
for a, b in zip(gradients(same, k[:2]), gradients(tiled, k[:2])):
    np.testing.assert_allclose(a, b, atol=1e-5)
print("alike")
"""
    assert run_python(code).split() == ["alike"]


@pytest.mark.cuda
def test_queued_calls_share_scratch_memory_in_order() -> None:
    """Calls of one program, whose workspaces are given back as soon as the work is queued, and calls between programs."""
    shapes = [(1, 700, 8, 64), (3, 130, 4, 128), (2, 300, 2, 256)]
    operands = [
        [normal(3 * index + part, *shape, dtype="bfloat16") for part in range(3)] for index, shape in enumerate(shapes)
    ]

    def losses(operands: Any) -> Any:
        return sum(jnp.square(flash_attention(*of, causal=True).astype(jnp.float32)).sum() for of in operands)

    step = jax.jit(jax.grad(losses))
    queued = [step(operands) for _ in range(20)]
    for index, of in enumerate(operands):
        o = np.asarray(flash_attention(*of, causal=True)).astype(np.float64)
        exact = expected({"causal": True}, of, 2 * o)[2:]
        for result in (queued[0], queued[-1]):
            for name, gradient, of_it in zip(("dq", "dk", "dv"), result[index], exact):
                check(name, gradient, of_it, 4 * TOLERANCE["bfloat16"])


@pytest.mark.cuda
def test_each_device_computes_its_own() -> None:
    for device in jax.devices("cuda"):
        q = jax.device_put(normal(1, 2, 50, 4, 64, dtype="bfloat16"), device)
        o = flash_attention(q, q, q)
        assert o.devices() == {device}
        check("o", o, expected({}, (q, q, q), q)[0], TOLERANCE["bfloat16"])
