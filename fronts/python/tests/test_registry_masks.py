"""Masks of torch's `scaled_dot_product_attention` while ferroflash is active.

torch calls the operators that take them on a GPU alone; here they are ferroflash's on the CPU, and autograd and compiled graphs
torch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import reference
import torch
import torch.nn.functional as functional
from ferroflash import _eager, _masked, registry
from ferroflash.torch import attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.skipif(not registry._registered, reason="this torch has no registry of attention")

FORWARD = torch.ops.aten._scaled_dot_product_efficient_attention.default
BACKWARD = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default


@pytest.fixture(autouse=True)
def _on_the_cpu(device: torch.device) -> Iterator[None]:
    if device.type != "cpu":
        pytest.skip("test_cuda.py tries them where torch calls them")
    library = torch.library.Library("aten", "IMPL")
    library.impl(FORWARD, _masked.forward, "CPU")
    library.impl(BACKWARD, _masked.backward, "CPU")
    yield
    library._destroy()


def as_bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A mask as `scaled_dot_product_attention` hands it on: a bias, rows of it 16 bytes from each other, expanded."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    keys = mask.shape[-1]
    padded = functional.pad(mask, (0, -keys % 8))[..., :keys]
    return padded.expand(*q.shape[:3], k.shape[2])


def operands(dtype: torch.dtype = torch.bfloat16, seq_q: int = 21, heads_k: int = 2) -> list[Tensor]:
    shapes = [(2, 4, seq_q, 16), *[(2, heads_k, 34, 16)] * 2]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


MASKS = [(21, 34), (2, 1, 1, 34), (2, 1, 21, 34), (4, 21, 34), (2, 4, 21, 34), (1, 1, 21, 1)]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_both_passes(data: st.DataObject) -> None:
    """Of masks and biases, which may require a gradient, in both dtypes, with heads that share keys."""
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16]))
    inputs = operands(dtype, heads_k=data.draw(st.sampled_from([1, 2, 4])))
    shape, kind = data.draw(st.sampled_from(MASKS)), data.draw(st.sampled_from(["bool", "bias", "learned bias"]))
    mask = torch.randn(shape, dtype=dtype)
    if kind == "bool":
        mask = (mask > -0.5) | (torch.arange(shape[-1]) == 0)  # every query sees a key
    elif kind == "learned bias":
        inputs.append(mask.requires_grad_())
    bias, scale = as_bias(mask, *inputs[:2]), data.draw(st.sampled_from([None, 0.3]))
    o, *_ = FORWARD(*inputs[:3], bias, True, scale=scale)
    d_o = torch.randn_like(o)
    actual = torch.autograd.grad(o, inputs, d_o)

    def exact(*x: Tensor) -> tuple[Tensor, Tensor]:
        first = (tensor.transpose(1, 2) for tensor in x[:3])
        given = {"mask": mask} if kind == "bool" else {"bias": x[3] if len(x) > 3 else mask}
        o, lse = reference.attention(*first, **given, softmax_scale=scale)
        return o.transpose(1, 2), lse

    reference.check("o", o, exact(*inputs)[0], reference.TOLERANCE[dtype])
    for name, gradient, expected in zip(("dq", "dk", "dv", "d_mask"), actual, reference.gradients(exact, inputs, d_o)):
        reference.check(name, gradient, expected, (10 if name == "d_mask" else 2) * reference.TOLERANCE[dtype])


def check_layout(operator: Any, *given: Any) -> tuple[Any, ...]:
    """Holds an operator's results to what graphs are compiled for, and returns them."""
    with FakeTensorMode() as mode, torch.no_grad():
        fakes = operator(*(mode.from_tensor(x) if isinstance(x, Tensor) else x for x in given))
    with torch.no_grad():
        results = operator(*given)
    for result, fake in zip(results, fakes):
        assert (result is None) == (fake is None)
        if result is not None:
            assert (result.shape, result.stride(), result.dtype) == (fake.shape, fake.stride(), fake.dtype)
    return results


@pytest.mark.parametrize("seq_q", [21, 32])
@pytest.mark.parametrize("compute_log_sumexp", [True, False])
def test_results_lie_as_compiled_graphs_expect(seq_q: int, compute_log_sumexp: bool) -> None:
    q, k, v = operands(seq_q=seq_q, heads_k=4)
    bias = as_bias(torch.randn(seq_q, 34, dtype=q.dtype), q, k)
    o, lse, *numbers = check_layout(FORWARD, q, k, v, bias, compute_log_sumexp)
    assert lse[..., seq_q:].isposinf().all()
    for wants_bias in (False, True):
        check_layout(BACKWARD, o, q, k, v, bias, o, lse, *numbers, 0.0, [True, True, True, wants_bias])


def test_dropout() -> None:
    """The numbers that the forward pass returns give the backward pass the same mask."""
    q, k, v = operands()
    bias = as_bias(torch.randn(21, 34, dtype=q.dtype), q, k)
    torch.manual_seed(3)
    o, _, seed, offset = FORWARD(q, k, v, bias, True, 0.3)
    assert seed.untyped_storage().data_ptr() != offset.untyped_storage().data_ptr()
    torch.manual_seed(3)
    expected = attention(q, k, v, bias=bias, dropout_p=0.3, heads_first=True)
    assert torch.equal(o, expected)
    d_o = torch.randn_like(o)
    for mine, other in zip(torch.autograd.grad(o, [q, k, v], d_o), torch.autograd.grad(expected, [q, k, v], d_o)):
        assert torch.equal(mine, other)


def test_a_bias_alone_that_requires_a_gradient() -> None:
    """torch then asks for no lse."""
    q, k, v = (x.detach() for x in operands())
    bias = torch.randn(21, 34, dtype=q.dtype, requires_grad=True)
    d_o = torch.randn_like(q)
    o, lse, *_ = FORWARD(q, k, v, as_bias(bias, q, k), False)
    assert lse.numel() == 0
    (actual,) = torch.autograd.grad(o, bias, d_o)
    (expected,) = torch.autograd.grad(attention(q, k, v, bias=bias, heads_first=True), bias, d_o)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_what_is_not_covered_goes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands()
    bias, none = as_bias(torch.randn(21, 34, dtype=q.dtype), q, k), torch.empty(())
    for name in ("forward", "backward"):
        monkeypatch.setattr(_eager, name, None)

    def both(*operands: Tensor, bias: Any = bias, is_causal: bool = False, **unknown: Any) -> None:
        forward = _masked.forward(*operands, bias, True, 0.0, is_causal, **unknown)
        of_backward = bias, q, q[..., 0], none, none, 0.0, [True] * 4, is_causal
        assert forward is _masked.backward(q, *operands, *of_backward, **unknown) is NotImplemented

    both(q, k, v, bias=None)
    both(q, k, v, is_causal=True)
    both(q, k, v, new=q)
    both(q, k, v, bias=bias.double())
    both(q.float(), k.float(), v.float())
    wide = torch.randn(2, 4, 21, 264, dtype=q.dtype)
    both(wide, wide, wide, bias=None)
    both(wide, wide, wide, bias=bias[..., :21])
