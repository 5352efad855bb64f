"""What `ferroflash.jax` takes beside q, k and v, beside a plain softmax in f64: masks, biases, slopes, documents and dropout."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="not run: JAX is not installed here")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from ferroflash.jax import flash_attention  # noqa: E402
from jax_reference import TOLERANCE, bits, check, expected, ids, normal, operands, run_python, weighted  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_jax_device")
DIFFERENTIABLE = "bias", "alibi_slopes"


def given_to(arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays by the names of `flash_attention`, of those by the names of `plain`."""
    of = {name: x for name, x in arrays.items() if name not in ("doc_q", "doc_k", "kept")}
    return {**of, "segment_ids": (arrays["doc_q"], arrays["doc_k"])} if "doc_q" in arrays else of


def by_all(operands: Any, arrays: dict[str, Any], d_o: Any, d_lse: Any = None, **options: Any) -> list[Any]:
    """o, lse, and gradients by q, k, v and the arrays that have some, in the order of `expected`."""
    by = [name for name in DIFFERENTIABLE if name in arrays]

    def loss(operands: Any, wanted: Any) -> Any:
        given = given_to({**arrays, **wanted})
        o, lse = flash_attention(*operands, **given, **options, return_lse=True)
        return weighted(o, lse, d_o, d_lse), (o, lse)

    wanted = {name: arrays[name] for name in by}
    (gradients, others), results = jax.grad(loss, (0, 1), has_aux=True)(tuple(operands), wanted)
    return [*results, *gradients, *(others[name] for name in by)]


def hold(
    operands: Any, arrays: dict[str, Any], d_o: Any, d_lse: Any = None, options: Any = None, dropout: Any = None
) -> None:
    """Holds o, lse and all gradients to those in f64."""
    options, dropout = options or {}, dropout or {}
    by = tuple(name for name in DIFFERENTIABLE if name in arrays)
    run = jax.jit(functools.partial(by_all, **options, **dropout))
    actual = run(operands, {name: x for name, x in arrays.items() if name != "kept"}, d_o, d_lse)
    exact = expected(options, operands, d_o, d_lse, by, **arrays)
    tolerance = max(TOLERANCE[x.dtype.name] for x in (*operands, *(arrays[name] for name in by)))
    for name, a, b in zip(("o", "lse", "dq", "dk", "dv", *by), actual, exact):
        check(name, a, b, 1e-4 if name == "lse" else 4 * tolerance)
    for a, b in zip(actual[5:], by):
        assert a.dtype == arrays[b].dtype


@st.composite
def drawn_arrays(draw: Any, lead: tuple[int, ...], heads: int, seq_q: int, seq_k: int) -> dict[str, Any]:
    """Some of the arrays, each of a shape that it may have."""
    whole = (*lead, heads, seq_q, seq_k)

    def pairs() -> tuple[int, ...]:
        shape = tuple(draw(st.sampled_from([1, size])) for size in whole)
        return shape[draw(st.integers(0, len(shape))) :]

    arrays: dict[str, Any] = {}
    if draw(st.booleans()):
        arrays["mask"] = bits(1, *pairs(), share=draw(st.sampled_from([0.1, 0.7])))
    if draw(st.booleans()):
        arrays["bias"] = normal(2, *pairs(), dtype=draw(st.sampled_from(list(TOLERANCE))))
    if draw(st.booleans()):
        arrays["alibi_slopes"] = normal(3, *draw(st.sampled_from([(), lead])), heads) / 8
    if draw(st.booleans()):
        of = draw(st.sampled_from([(), lead])), draw(st.sampled_from([(), lead]))
        arrays["doc_q"], arrays["doc_k"] = ids(4, *of[0], seq_q), ids(5, *of[1], seq_k)
    return arrays


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_drawn_problems(data: st.DataObject) -> None:
    lead = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    group, heads = (data.draw(st.integers(1, 2)) for _ in range(2))
    seq_q, seq_k = (data.draw(st.integers(0, 40)) for _ in range(2))
    dim, dim_v = (data.draw(st.sampled_from([8, 20, 130])) for _ in range(2))
    dtype = data.draw(st.sampled_from(list(TOLERANCE)))
    arrays = data.draw(drawn_arrays(lead, heads * group, seq_q, seq_k))
    options = {
        "causal": data.draw(st.booleans()),
        "window_size": (data.draw(st.sampled_from([-1, 9])), -1),
        "softcap": data.draw(st.sampled_from([0.0, 5.0])),
        "top_left": data.draw(st.booleans()),
    }
    q = normal(6, *lead, seq_q, heads * group, dim, dtype=dtype)
    k = normal(7, *lead, seq_k, heads, dim, dtype=dtype)
    v = normal(8, *lead, seq_k, heads, dim_v, dtype=dtype)
    d_o = normal(9, *q.shape[:-1], dim_v, dtype=dtype)
    hold((q, k, v), arrays, d_o, normal(10, *lead, heads * group, seq_q), options)


# Shapes of masks and biases for pairs [2, 3, 4, 21, 34].
PAIRS = [
    (2, 3, 4, 21, 34),
    (1, 1, 4, 21, 34),
    (3, 1, 21, 34),
    (2, 1, 1, 1, 34),
    (1, 3, 1, 21, 1),
    (21, 34),
    (4, 1, 1),
    (34,),
    (),
]


@pytest.mark.parametrize("shape", PAIRS)
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_axes_of_one_hold_for_all(name: str, shape: tuple[int, ...]) -> None:
    of = operands(2, 3)
    arrays = {name: bits(1, *shape) if name == "mask" else normal(1, *shape)}
    # The mask of one pair would hide all or nothing; a bias that is the same for all keys changes lse alone.
    hold(of, arrays, normal(3, *of[0].shape), normal(4, 2, 3, 4, 21), {"causal": True})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("of_bias", list(TOLERANCE))
def test_dtypes_of_a_bias(dtype: str, of_bias: str) -> None:
    of = operands(2, dtype=dtype)
    hold(of, {"bias": normal(1, 4, 21, 34, dtype=of_bias)}, normal(3, *of[0].shape, dtype=dtype))


def test_rows_without_keys_are_0() -> None:
    of = operands(2)
    mask = bits(1, 1, 4, 21, 34).at[:, :, 5:9].set(False)
    o, lse = flash_attention(*of, mask=mask, return_lse=True)
    assert not o[:, 5:9].any()
    assert (lse[:, :, 5:9] == -jnp.inf).all()
    assert jnp.isfinite(lse[:, :, :5]).all()
    hold(of, {"mask": mask}, normal(3, *o.shape))
    apart = flash_attention(*of, segment_ids=(ids(1, 21), ids(1, 34) + 5))
    assert not apart.any()


@pytest.mark.parametrize(("seq_q", "seq_k"), [(0, 34), (21, 0), (0, 0)])
@pytest.mark.parametrize("batch", [0, 2])
def test_without_pairs_gradients_are_0(batch: int, seq_q: int, seq_k: int) -> None:
    of = operands(batch, seq_q=seq_q, seq_k=seq_k)
    arrays = {"bias": normal(1, 1, 4, 1, 1), "alibi_slopes": normal(2, 4), "mask": bits(3, batch, 1, seq_q, seq_k)}
    hold(of, {**arrays, "doc_q": ids(4, batch, seq_q), "doc_k": ids(5, batch, seq_k)}, normal(3, *of[0].shape))
    hold(of, {"bias": normal(1, 4, seq_q, seq_k), "alibi_slopes": normal(2, batch, 4)}, normal(3, *of[0].shape))


def calls(jaxpr: Any) -> list[Any]:
    """The custom calls in a function."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "ffi_call":
            found.append(eqn)
        inner = [getattr(x, "jaxpr", x) for x in jax.tree.leaves(eqn.params)]
        for each in inner:
            found += calls(each) if hasattr(each, "eqns") else []
    return found


def test_axes_of_one_are_not_expanded() -> None:
    """Nor are they where an array is for all examples of a mapped function."""
    mask, bias = bits(1, 1, 1, 21, 34), normal(2, 4, 1, 34)
    of = operands(5, 2)
    attend = functools.partial(flash_attention, mask=mask, bias=bias)
    for call in (functools.partial(attend, *[x[0] for x in of]), functools.partial(jax.vmap(attend), *of)):
        (found,) = calls(jax.make_jaxpr(call)().jaxpr)
        assert [x.aval.shape for x in found.invars[3:]] == [(1, 21, 34), (4, 1, 34)]


def test_only_gradients_that_are_asked_for_are_computed() -> None:
    of, bias, slopes = operands(2), normal(2, 4, 21, 34), normal(3, 4)

    def loss(q: Any, bias: Any, slopes: Any) -> Any:
        return flash_attention(q, *of[1:], bias=bias, alibi_slopes=slopes).sum()

    for by, count in (((0,), 3), ((1,), 4), ((0, 2), 4), ((1, 2), 5)):
        traced = jax.make_jaxpr(jax.grad(loss, by))(of[0], bias, slopes)
        *_, backward = calls(traced.jaxpr)
        assert len(backward.outvars) == count


# Arrays of three examples of [2, 11, 4, 16], by argument.
MAPPED: dict[str, Any] = {
    "mask": lambda: bits(1, 3, 2, 1, 11, 17),
    "bias": lambda: normal(2, 3, 2, 4, 11, 17),
    "bias of all": lambda: normal(2, 3, 1, 4, 11, 17),
    "alibi_slopes": lambda: normal(3, 3, 4),
    "alibi_slopes of each": lambda: normal(3, 3, 2, 4),
    "segment_ids": lambda: (ids(4, 3, 11), ids(5, 3, 2, 17)),
}


@pytest.mark.parametrize("q_axis", [0, None])
@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("name", MAPPED)
def test_mapped_it_is_as_one_by_one(name: str, is_mapped: bool, q_axis: int | None) -> None:
    hold_mapped(name.split()[0], MAPPED[name](), is_mapped, q_axis, (2,))


@pytest.mark.parametrize("is_mapped", [True, False])
@pytest.mark.parametrize("name", ["mask", "bias", "alibi_slopes", "segment_ids"])
def test_mapped_it_is_a_batch(name: str, is_mapped: bool) -> None:
    """Of examples that have no batch axis."""
    array = jax.tree.map(lambda x: x[:, 0] if x.ndim > 2 else x, MAPPED[name]())
    hold_mapped(name, array, is_mapped, 0, ())


def hold_mapped(argument: str, array: Any, is_mapped: bool, q_axis: int | None, lead: tuple[int, ...]) -> None:
    """Holds a mapped function and its gradients to those of each of its three examples."""
    array = array if is_mapped else jax.tree.map(lambda x: x[0], array)
    of = operands(3, *lead, seq_q=11, seq_k=17)
    of[0] = of[0] if q_axis == 0 else of[0][0]
    axes = q_axis, 0, 0, 0 if is_mapped else None

    def attend(q: Any, k: Any, v: Any, array: Any) -> Any:
        return flash_attention(q, k, v, causal=True, **{argument: array})

    def loss(attend: Any, *of: Any) -> Any:
        return jnp.square(attend(*of)).sum()

    def one(index: int) -> list[Any]:
        given = zip((*of, array), axes)
        return [x if axis is None else jax.tree.map(lambda x: x[index], x) for x, axis in given]

    mapped = jax.vmap(attend, axes)
    exact = jnp.stack([attend(*one(index)) for index in range(3)])
    check("o", mapped(*of, array), np.asarray(exact, np.float64), 1e-5)
    by = (0, 1, 2, 3) if argument in DIFFERENTIABLE else (0, 1, 2)
    parts = [jax.grad(functools.partial(loss, attend), by)(*one(index)) for index in range(3)]
    # By what is not mapped gradients are sums; those of single examples are not.
    sums = jax.grad(functools.partial(loss, mapped), by)(*of, array)
    each = jax.vmap(jax.grad(functools.partial(loss, attend), by), axes)(*of, array)
    for total, single, of_it, axis in zip(sums, each, zip(*parts), axes):
        stacked = np.asarray(jnp.stack(of_it), np.float64)
        check("single gradients", single, stacked, 1e-5)
        check("gradient", total, stacked.sum(0) if axis is None else stacked, 1e-5)


def test_mapped_twice() -> None:
    of, bias = operands(2, 3, 2), normal(1, 2, 4, 21, 34)

    def loss(attend: Any, *given: Any) -> Any:
        return jnp.square(attend(*given)).sum()

    def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return flash_attention(q, k, v, bias=bias, causal=True)

    twice = jax.vmap(jax.vmap(attend, (0, 0, 0, None)), (0, 0, 0, 0))
    actual = jax.grad(functools.partial(loss, twice), (0, 1, 2, 3))(*of, bias)
    exact = jax.grad(functools.partial(loss, attend), (0, 1, 2, 3))(*of, bias[:, None, None])
    for name, a, b in zip(("dq", "dk", "dv", "d_bias"), actual, exact):
        check(name, a, np.asarray(b.reshape(a.shape), np.float64), 1e-5)


def test_a_bias_is_learned_in_a_loop() -> None:
    """In `jax.lax.scan`, whose steps are computed again for gradients."""
    x, bias = normal(1, 2, 9, 2, 16), normal(2, 3, 2, 9, 9)

    def layers(attend: Any, bias: Any) -> Any:
        step = jax.checkpoint(lambda x, bias: (attend(x, x, x, bias), None))
        return jax.lax.scan(step, x, bias)[0].sum()

    def by_hand(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, precision="float32") / 4 + bias
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v, precision="float32")

    actual = jax.jit(jax.grad(functools.partial(layers, lambda q, k, v, bias: flash_attention(q, k, v, bias=bias))))
    exact = jax.grad(functools.partial(layers, by_hand))(bias)
    check("d_bias", actual(bias), np.asarray(exact, np.float64), 1e-4)


# Dropout.


def key() -> Any:
    return jax.random.key(3)


def kept(of: list[Any], p: float, rng: Any) -> Any:
    """What multiplies probabilities: with the unit matrix for v, o is what is left of them."""
    seq_k = of[1].shape[-3]
    unit = jnp.broadcast_to(jnp.eye(seq_k)[:, None], (*of[1].shape[:-1], seq_k)).astype(of[1].dtype)
    left = flash_attention(*of[:2], unit, dropout_p=p, dropout_rng=rng)
    return jnp.swapaxes(left != 0, -3, -2) / (1 - p)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seq_q", [21, 150])
def test_dropout_drops_the_same_in_both_passes(dtype: str, seq_q: int) -> None:
    of = operands(2, seq_q=seq_q, seq_k=150, dtype=dtype)
    arrays = {"bias": normal(1, 4, seq_q, 150), "kept": kept(of, 0.3, key())}
    share = (arrays["kept"] != 0).mean()
    assert abs(share - 0.7) < 0.02, share
    d_o, d_lse = normal(3, *of[0].shape, dtype=dtype), normal(4, 2, 4, seq_q)
    hold(of, arrays, d_o, d_lse, dropout={"dropout_p": 0.3, "dropout_rng": key()})


def test_a_key_says_what_is_dropped() -> None:
    of = operands(2)

    def attend(rng: Any) -> Any:
        return flash_attention(*of, dropout_p=0.5, dropout_rng=rng)

    first = attend(key())
    np.testing.assert_array_equal(first, jax.jit(attend)(key()))
    np.testing.assert_array_equal(first, attend(jax.random.key_data(key())))
    wide = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(attend(wide), attend(jax.random.key_data(wide)))
    words = np.arange(4, dtype=np.uint32)
    others = [jax.random.key(4), wide, *(words + np.eye(4, dtype=np.uint32)[index] for index in range(4))]
    results = [first, *map(attend, others)]
    assert all(not np.array_equal(a, b) for index, a in enumerate(results) for b in results[:index])
    np.testing.assert_array_equal(flash_attention(*of, dropout_rng=key()), flash_attention(*of))


@pytest.mark.parametrize("of_keys", [0, None])
def test_mapped_dropout_is_as_one_by_one(of_keys: int | None) -> None:
    of, keys = operands(3, 2), jax.random.split(key(), 3)

    def loss(q: Any, k: Any, v: Any, rng: Any) -> Any:
        return jnp.square(flash_attention(q, k, v, dropout_p=0.5, dropout_rng=rng)).sum()

    given = keys if of_keys == 0 else keys[0]
    actual = jax.vmap(jax.value_and_grad(loss, (0, 1, 2)), (0, 0, 0, of_keys))(*of, given)
    parts = [jax.value_and_grad(loss, (0, 1, 2))(*(x[i] for x in of), keys[i if of_keys == 0 else 0]) for i in range(3)]
    for a, b in zip(jax.tree.leaves(actual), zip(*map(jax.tree.leaves, parts))):
        np.testing.assert_array_equal(a, jnp.stack(b))


def test_split_over_devices() -> None:
    """By `jax.shard_map`: arrays are split as q is, or everywhere the same, and gradients by these are sums."""
    code = """
import jax, numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from ferroflash.jax import flash_attention
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
normal = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)
q, k, bias, slopes = normal(0, 4, 12, 4, 16), normal(1, 4, 12, 2, 16), normal(2, 4, 12, 12), normal(3, 4, 4)
mask = jax.random.bernoulli(jax.random.key(4), 0.7, (4, 1, 12, 12))
ids = jax.random.randint(jax.random.key(5), (4, 12), 0, 3)
shared_ids = ids[0]
def attend(q, k, bias, slopes, mask, ids, shared_ids):
    o = flash_attention(q, k, k, causal=True, bias=bias, alibi_slopes=slopes, mask=mask, segment_ids=ids)
    return o + flash_attention(q, k, k, mask=mask[0, 0, 0], segment_ids=shared_ids)
def gradients(attend):
    loss = lambda *given: (attend(*given, mask, ids, shared_ids) ** 2).sum()
    return jax.jit(jax.grad(loss, (0, 1, 2, 3)))(q, k, bias, slopes)
specs = P("x"), P("x"), P(), P("x"), P("x"), P("x"), P()
split = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=P("x"))
def halves(q, k, bias, slopes, mask, ids, shared_ids):
    parts = [[x[at : at + 2] for x in (q, k, slopes, mask, ids)] for at in (0, 2)]
    return jax.numpy.concatenate([attend(q, k, bias, s, m, i, shared_ids) for q, k, s, m, i in parts])
for a, b in zip(gradients(split), gradients(halves)):
    np.testing.assert_allclose(a, b, atol=2e-5)
def dropped(q, key):
    return flash_attention(q, q, q, dropout_p=0.5, dropout_rng=jax.random.fold_in(key, jax.lax.axis_index("x")))
o = jax.jit(jax.shard_map(dropped, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))(q, jax.random.key(7))
for index in (0, 1):
    key = jax.random.fold_in(jax.random.key(7), index)
    of_device = slice(2 * index, 2 * index + 2)
    own = q[of_device]
    exact = flash_attention(own, own, own, dropout_p=0.5, dropout_rng=key)
    np.testing.assert_allclose(o[of_device], exact, atol=1e-6)
print("alike")
"""
    assert run_python(code).split() == ["alike"]
