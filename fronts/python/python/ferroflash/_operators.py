"""Attention as operators of torch: `torch.ops.ferroflash.forward` and `torch.ops.ferroflash.backward`.

Through them autograd, torch.compile, vmap and autocast know it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from . import _eager, _memory
from ._arguments import DIFFERENTIABLE, SCHEMA, TENSORS, Arguments

_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched = torch._C._functorch.is_legacy_batchedtensor


def is_plain(*tensors: Tensor | None) -> bool:
    """Whether no subclass, mode or transform has a part in a call on these tensors, and it is not being compiled."""
    if _is_compiling() or _dispatch_modes() != 0:
        return False
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or _is_wrapped(tensor) or _is_batched(tensor)):
            return False
    return True


_PLAIN = (Tensor, torch.nn.Parameter)

LIBRARY = torch.library.Library("ferroflash", "DEF")
TAGS = (torch.Tag.pt2_compliant_tag,)

LIBRARY.define(f"forward(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor o, Tensor lse)", tags=TAGS)
LIBRARY.define(
    f"backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {SCHEMA}, "
    f"bool[] wanted) -> (Tensor dq, Tensor dk, Tensor dv, {', '.join(f'Tensor d_{name}' for name in DIFFERENTIABLE)})",
    tags=TAGS,
)


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _eager.forward(q, k, v, Arguments(*rest))


def _backward(
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    gradients = _eager.backward(d_o, d_lse, q, k, v, o, lse, Arguments(*rest[:-1]), rest[-1])
    return tuple(q.new_empty(0, dtype=torch.float32) if gradient is None else gradient for gradient in gradients)


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _memory.empty_output(q, v), _memory.empty_lse(q, Arguments(*rest).heads_first)


def _backward_shapes(
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    arguments = Arguments(*rest[:-1])
    shapes = [
        getattr(arguments, name).shape if is_wanted else (0,) for name, is_wanted in zip(DIFFERENTIABLE, rest[-1])
    ]
    others = (q.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), *others


for _key in ("CUDA", "CPU"):
    LIBRARY.impl("forward", _forward, _key)
    LIBRARY.impl("backward", _backward, _key)
torch.library.register_fake("ferroflash::forward", _forward_shapes, lib=LIBRARY)
torch.library.register_fake("ferroflash::backward", _backward_shapes, lib=LIBRARY)


# Autograd


_NO_ARRAYS = (None,) * TENSORS
_NONE_WANTED = (False,) * len(DIFFERENTIABLE)
# Where the arguments are among the operator's inputs that have gradients, or should.
_OTHERS = [3 + Arguments._fields.index(name) for name in DIFFERENTIABLE]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = inputs[: 3 + TENSORS]
    ctx.save_for_backward(*tensors, *output)
    ctx.scalars = inputs[3 + TENSORS :]
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, *arrays, o, lse = ctx.saved_tensors
    gradients: list[Tensor | None] = [None] * (3 + len(arrays) + len(ctx.scalars))
    wanted = [ctx.needs_input_grad[index] for index in _OTHERS]
    of_tensors = _gradients((d_o, d_lse, q, k, v, o, lse), Arguments(*arrays, *ctx.scalars), wanted)
    for index, gradient in zip((0, 1, 2, *_OTHERS), of_tensors):
        gradients[index] = gradient
    return tuple(gradients)


def _gradients(given: tuple[Any, ...], arguments: Arguments, wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Those by q, k, v and the `DIFFERENTIABLE` arguments that are `wanted`, of d_o, d_lse, q, k, v, o and lse."""
    if given[0] is None:
        if given[1] is None:
            return (None,) * (3 + len(wanted))
        given = torch.zeros_like(given[5]), *given[1:]
    # Past the dispatcher, unless gradients are to be differentiated, or computed for several d_o at once, or only traced.
    if not torch.is_grad_enabled() and is_plain(*given):
        return _eager.backward(*given, arguments, wanted)
    call = torch.ops.ferroflash.backward if _functorch_level() is None else MappableGradients.apply
    first, others = _split(call(*given, *arguments, wanted))
    return (*first, *(gradient if is_wanted else None for is_wanted, gradient in zip(wanted, others)))


def _split(gradients: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Gradients by q, k and v, and those by other arguments."""
    return gradients[:3], gradients[3:]


def _refuse_second_derivative(ctx: Any, *_: Any) -> None:
    raise NotImplementedError("create_graph: ferroflash has no second derivative")


class Differentiable(torch.autograd.Function):
    """The operator `forward` with its gradients, without the dispatcher, in which torch spends 150 µs on a call's defaults.

    What torch does for each argument takes a µs a call, so that all are given as one, and again those that have gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, arguments: Arguments, *others: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Without `others`, which are the `DIFFERENTIABLE` arguments, there is no tensor among the arguments."""
        o, lse = _eager.forward(q, k, v, arguments)
        ctx.save_for_backward(q, k, v, o, lse, *(arguments[:TENSORS] if others else ()))
        ctx.arguments = Arguments(*_NO_ARRAYS, *arguments[TENSORS:]) if others else arguments
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = ctx.arguments
        q, k, v, o, lse, *arrays = ctx.saved_tensors
        if arrays:
            arguments = Arguments(*arrays, *arguments[TENSORS:])
        _, _, _, _, *wanted = ctx.needs_input_grad
        wanted = wanted or _NONE_WANTED
        gradients = _gradients((d_o, d_lse, q, k, v, o, lse), arguments, wanted)
        return (*gradients[:3], None, *(gradients[3:] if arrays else ()))


torch.library.register_autograd("ferroflash::forward", _differentiate, setup_context=_save, lib=LIBRARY)
torch.library.register_autograd("ferroflash::backward", _refuse_second_derivative, lib=LIBRARY)


# vmap: the mapped axis becomes part of the batch.


def _folded(tensor: Tensor | None, axis: int | None, size: int) -> Tensor | None:
    """A tensor of `size` examples, with these as part of its first axis."""
    if tensor is None:
        return None
    each = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return each.flatten(0, 1)


def _unfolded(tensor: Tensor, size: int) -> Tensor:
    return tensor.unflatten(0, (size, tensor.shape[0] // size))


def _refuse_mapped(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"{name}: ferroflash does not map it (vmap) yet")


def _folded_pairs(tensor: Tensor, axis: int | None, size: int, batch: int, shares: bool = True) -> Tensor:
    """An array that broadcasts over pairs, for the examples in the batch; one for all of them stays so if it may be shared."""
    each = tensor.unsqueeze(0) if axis is None else tensor.movedim(axis, 0)
    each = each.reshape(each.shape[0], *[1] * (5 - each.dim()), *each.shape[1:])
    if shares and axis is None and each.shape[1] == 1:
        return each[0]
    return each.expand(size, batch, *each.shape[2:]).flatten(0, 1)


def _folded_rows(tensor: Tensor, axis: int | None, size: int, batch: int) -> Tensor:
    """An array [batch, n], or [n] for all of a batch, for the examples in the batch."""
    each = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    if each.dim() == 2:
        each = each.unsqueeze(1).expand(-1, batch, -1)
    return each.flatten(0, 1)


def _folded_arguments(
    q: Tensor, q_axis: int | None, dims: Any, rest: Any, size: int, wanted: Iterable[str] = ()
) -> list[Any]:
    """Those of a call on all examples at once, each with a gradient of its own by those that are `wanted`."""
    arguments = Arguments(*rest)
    _refuse_mapped(cu_seqlens_q=arguments.cu_seqlens_q, dropout_p=arguments.dropout_state)
    folded = list(arguments)
    batch = q.shape[0] if q_axis is None else q.movedim(q_axis, 0).shape[1]
    for index, name in enumerate(Arguments._fields[:TENSORS]):
        tensor, axis = arguments[index], dims[index]
        if tensor is None:
            continue
        if name in ("mask", "bias"):
            folded[index] = _folded_pairs(tensor, axis, size, batch, name not in wanted)
        elif name in ("alibi_slopes", "doc_q", "doc_kv"):
            folded[index] = _folded_rows(tensor, axis, size, batch)
        elif name == "sinks":
            _refuse_mapped(sinks=axis)
        else:
            folded[index] = _folded(tensor, axis, size)
    return folded


def _map_forward(
    call: Callable[..., Any], info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Any, Any]:
    size = info.batch_size
    arguments = _folded_arguments(q, in_dims[0], in_dims[3:], rest, size)
    tensors = [_folded(tensor, axis, size) for tensor, axis in zip((q, k, v), in_dims)]
    outputs = call(*tensors, *arguments)
    return tuple(_unfolded(output, size) for output in outputs), (0, 0)


def _map_backward(call: Callable[..., Any], info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
    size = info.batch_size
    *rest, flags = given[7:]
    wanted = list(itertools.compress(DIFFERENTIABLE, flags))
    if "sinks" in wanted:
        _refuse_mapped(sinks=True)
    arguments = _folded_arguments(given[2], in_dims[2], in_dims[7:], rest, size, wanted)
    tensors = [_folded(tensor, axis, size) for tensor, axis in zip(given[:7], in_dims)]
    gradients, others = _split(call(*tensors, *arguments, flags))
    others = dict(zip(DIFFERENTIABLE, others))
    for name in wanted:
        index = Arguments._fields.index(name)
        shape = list(rest[index].shape)
        if (axis := in_dims[7 + index]) is not None:
            del shape[axis]
        # The batch entries of an example share what has no axis for them.
        others[name] = _eager.summed(_unfolded(others[name], size), 1, (size, *shape))
    out_dims = (0 if name in wanted else None for name in DIFFERENTIABLE)
    return (*(_unfolded(gradient, size) for gradient in gradients), *others.values()), (0, 0, 0, *out_dims)


for _name, _map in (("forward", _map_forward), ("backward", _map_backward)):
    _operator = getattr(torch.ops.ferroflash, _name)
    torch.library.register_vmap(f"ferroflash::{_name}", functools.partial(_map, _operator), lib=LIBRARY)


# Autocast: as for torch's own attention, q, k and v become the type that autocast asks for.


def _autocast(device_type: str) -> None:
    def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(dtype) if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16) else tensor

    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        dtype = torch.get_autocast_dtype(device_type)
        with torch.autocast(device_type, enabled=False):
            return torch.ops.ferroflash.forward(cast(q, dtype), cast(k, dtype), cast(v, dtype), *rest)

    LIBRARY.impl("forward", forward, f"Autocast{device_type.upper()}")


_autocast("cpu")
_autocast("cuda")


# The transforms of torch.func (grad, vmap and what is made of them), which know autograd functions, but no operator that
# torch.library has given gradients.


class Mappable(torch.autograd.Function):
    """The operator `forward`, for transforms."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.ferroflash.forward(q, k, v, *rest)

    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        return _map_forward(Mappable.apply, info, in_dims, *given)


class MappableGradients(torch.autograd.Function):
    """The operator `backward`, for transforms."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        return torch.ops.ferroflash.backward(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    backward = staticmethod(_refuse_second_derivative)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        return _map_backward(MappableGradients.apply, info, in_dims, *given)
