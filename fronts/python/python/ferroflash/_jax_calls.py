"""Attention as custom calls of XLA: their operands, results and attributes, their gradients, and what `jax.vmap` makes of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import _native
from ._arguments import Arguments
from ._jax_arrays import ARRAYS, AXES

for _name, _platform, _capsule in _native.xla_targets():
    jax.ffi.register_ffi_target(_name, _capsule, platform=_platform, api_version=1)

# Arrays by which a loss has gradients, in the order of their results, which have their names with d_ before.
_DIFFERENTIABLE = "bias", "alibi_slopes"

# q, k, v and the arrays beside them, by name: those of `_jax_arrays.AXES` and `ARRAYS`.
Operands = dict[str, jax.Array]
Results = tuple[jax.Array, ...]


def _attributes(arguments: Arguments, operands: Operands) -> dict[str, Any]:
    """The attributes of a custom call: -1 is an open side."""
    scale = arguments.softmax_scale
    return {
        "softmax_scale": np.float32(1 / math.sqrt(operands["q"].shape[-1]) if scale is None else scale),
        "softcap": np.float32(arguments.softcap),
        "left": np.int64(-1 if arguments.left is None else arguments.left),
        "right": np.int64(-1 if arguments.right is None else arguments.right),
        "top_left": arguments.top_left,
        "dropout_p": np.float32(arguments.dropout_p),
        "ieee": arguments.ieee,
        **{name: name in operands for name in ARRAYS},
    }


def _call(name: str, results: Results, operands: Operands, attributes: dict[str, Any]) -> Results:
    # Ids of both kinds have the leading axes that one kind has.
    if "doc_q" in operands:
        lead = max((operands[ids].shape[:-1] for ids in ("doc_q", "doc_k")), key=len)
        for ids in ("doc_q", "doc_k"):
            x = operands[ids]
            operands = {**operands, ids: jnp.broadcast_to(x, (*lead, x.shape[-1]))}
    in_order = [operands[name] for name in AXES if name in operands]
    return tuple(jax.ffi.ffi_call(name, results)(*in_order, **attributes))


def _forward(arguments: Arguments, operands: Operands) -> Results:
    """o and lse."""

    def like(q: jax.Array, v: jax.Array) -> Results:
        row = q[..., :1]
        o = jnp.broadcast_to(row, (*q.shape[:-1], v.shape[-1]))
        return o, jnp.swapaxes(row[..., 0], -1, -2).astype(jnp.float32)

    # Found by a function, they lie on a mesh as q does, and vary over its axes as q does (`jax.shard_map`).
    results = jax.eval_shape(like, operands["q"], operands["v"])
    return _call("ferroflash_forward", results, operands, _attributes(arguments, operands))


def _backward(arguments: Arguments, wanted: Collection[str], operands: Operands) -> Results:
    """dq, dk, dv and the gradients by the arrays that are wanted, float32: that by a bias is of its shape with all keys."""
    seq_k = operands["k"].shape[-3]

    def like(operands: Operands) -> Results:
        others = [operands[name].astype(jnp.float32) for name in wanted]
        others = [
            jnp.broadcast_to(x, (*x.shape[:-1], seq_k)) if name == "bias" else x for name, x in zip(wanted, others)
        ]
        return operands["q"], operands["k"], operands["v"], *others

    attributes = {
        **_attributes(arguments, operands),
        "deterministic": arguments.deterministic,
        "d_lse": "d_lse" in operands,
        **{f"d_{name}": name in wanted for name in _DIFFERENTIABLE},
    }
    return _call("ferroflash_backward", jax.eval_shape(like, operands), operands, attributes)


# vmap: the mapped axis is one more of the leading axes.


def _mappable(call: Callable[[Operands], Results], wanted: Collection[str] = ()) -> Callable[[Operands], Results]:
    """A call whose mapped axis becomes the first of the leading axes of its operands.

    What is not mapped is broadcast, but for arrays that are for all batch entries: they stay so.
    """
    mappable = jax.custom_batching.custom_vmap(call)

    def one_by_one(is_mapped: dict[str, bool], operands: Operands) -> Results:
        mapped = {name: x for name, x in operands.items() if is_mapped[name]}
        return jax.lax.map(lambda each: mappable({**operands, **each}), mapped)

    def rule(size: int, in_axes: list[dict[str, bool]], operands: Operands) -> tuple[Results, Any]:
        (is_mapped,) = in_axes
        q = operands["q"]
        lead = q.shape[is_mapped["q"] : -3]
        shared = {name for name in operands.keys() & set(ARRAYS) if operands[name].ndim - is_mapped[name] == AXES[name]}
        # A call has one seed, and sums a gradient over the batch entries that share an array: an example has its own of both.
        if "dropout_state" in operands or (lead and not shared.isdisjoint(wanted)):
            results = one_by_one(is_mapped, operands)
        else:
            stay = {name for name in shared if not is_mapped[name] and name not in wanted}
            folded = {
                name: x if name in stay else _folded(x, is_mapped[name], size, lead, AXES[name])
                for name, x in operands.items()
            }
            results = mappable(folded)
        return results, jax.tree.map(lambda _: True, results)

    mappable.def_vmap(rule)
    return mappable


def _folded(x: jax.Array, is_mapped: bool, size: int, lead: tuple[int, ...], own: int) -> jax.Array:
    """An array of `size` examples, with all leading axes."""
    examples, given = (x.shape[0], x.shape[1:-own]) if is_mapped else (1, x.shape[:-own])
    given = given or (1,) * len(lead)
    return jnp.broadcast_to(x.reshape(examples, *given, *x.shape[-own:]), (size, *lead, *x.shape[-own:]))


# Gradients.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(arguments: Arguments, operands: Operands) -> Results:
    """o and lse."""
    return _mapped_forward(arguments, operands)


def _mapped_forward(arguments: Arguments, operands: Operands) -> Results:
    return _mappable(functools.partial(_forward, arguments))(operands)


def _attend_forward(arguments: Arguments, operands: dict[str, Any]) -> tuple[Results, Any]:
    values = {name: operand.value for name, operand in operands.items()}
    o, lse = _mapped_forward(arguments, values)
    # Names are kept as a structure without arrays.
    wanted = {name: () for name in _DIFFERENTIABLE if name in operands and operands[name].perturbed}
    return (o, lse), ({**values, "o": o, "lse": lse}, wanted)


def _attend_backward(arguments: Arguments, kept: Any, cotangents: Any) -> tuple[dict[str, Any]]:
    operands, wanted = kept
    d_o, d_lse = cotangents
    if isinstance(d_o, SymbolicZero):
        d_o = jnp.zeros_like(operands["o"])
    # Of most losses, which do not depend on lse, there is none, and kernels do without.
    of_lse = {} if isinstance(d_lse, SymbolicZero) else {"d_lse": d_lse}
    wanted = [name for name in _DIFFERENTIABLE if name in wanted]
    call = _mappable(functools.partial(_backward, arguments, wanted), wanted)
    gradients = dict(zip(("q", "k", "v", *wanted), call({**operands, "d_o": d_o, **of_lse})))
    if "bias" in gradients:
        gradients["bias"] = _as_bias(gradients["bias"], operands["bias"])
    # JAX 0.7 wants results by the same names whatever is wanted.
    zeros = {name: jnp.zeros_like(operands[name]) for name in _DIFFERENTIABLE if name in operands}
    gradients = {**zeros, **gradients}
    return ({name: gradients.get(name) for name in operands if name not in ("o", "lse")},)


def _as_bias(gradient: jax.Array, bias: jax.Array) -> jax.Array:
    """The gradient by a bias, summed over keys that share an element, in its dtype."""
    if bias.shape[-1] == 1:
        gradient = gradient.sum(-1, keepdims=True)
    return gradient.astype(bias.dtype)


_attend.defvjp(_attend_forward, _attend_backward, symbolic_zeros=True)

# Compiled by itself, so that a call outside of `jax.jit` is a look-up too.
attend = jax.jit(_attend, static_argnums=0, inline=True)


# A mesh's axes, of `jax.shard_map`.


def varying_alike(operands: Operands) -> Operands:
    """The operands, each varying over every axis of a mesh that one varies over.

    Gradients by an operand that did not are summed over it then.
    """
    axes = {name: _varying(x) for name, x in operands.items()}
    every = frozenset().union(*axes.values())
    return {name: x if axes[name] == every else _spread(x, tuple(every - axes[name])) for name, x in operands.items()}


def _spread(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """An array that varies over these axes of a mesh too, by the name that releases of JAX have for it."""
    return jax.lax.pcast(x, axes, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(x, axes)


def _varying(x: jax.Array) -> frozenset[str]:
    """The axes of a mesh that an array varies over; older releases of JAX call them vma."""
    aval = jax.typeof(x)
    of_mesh = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if of_mesh is None else of_mesh.varying
