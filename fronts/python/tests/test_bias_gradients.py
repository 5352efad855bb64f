"""Gradients by biases beside f64: axes that broadcast, what asks for them, transforms, and what is without pairs."""

from __future__ import annotations

from typing import Any

import ferroflash
import pytest
import reference
import torch
from ferroflash import _eager
from ferroflash.torch import attention
from torch import Tensor

# Biases of pairs [2, 4, 21, 34], by what their gradients are summed over.
BIASES = {
    "nothing": (2, 4, 21, 34),
    "batch": (1, 4, 21, 34),
    "batch, without an axis": (4, 21, 34),
    "heads": (2, 1, 21, 34),
    "rows": (2, 4, 1, 34),
    "keys": (2, 4, 21, 1),
    "batch and heads": (21, 34),
    "all but keys": (34,),
    "all but heads": (4, 1, 1),
    "all": (),
}


def operands(device: torch.device, dtype: torch.dtype = torch.float32, seq_k: int = 34) -> list[Tensor]:
    """q, k and v, of two query heads to a head of keys."""
    shapes = [(2, 21, 4, 32), *[(2, seq_k, 2, 32)] * 2]
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes]


def check(of: list[Tensor], dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    """Holds the gradients of q, k, v and the bias, `of`, to those in f64, and returns them."""

    def exact(*x: Tensor) -> tuple[Tensor, Tensor]:
        return reference.attention(*x[:3], bias=x[3], **options)

    o, lse = attention(*of[:3], bias=of[3], **options, return_lse=True)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    actual = list(torch.autograd.grad([o, lse], of, [d_o, d_lse]))
    for name, gradient, expected in zip(
        ("dq", "dk", "dv", "d_bias"), actual, reference.gradients(exact, of, d_o, d_lse)
    ):
        reference.check(name, gradient, expected, 4 * reference.TOLERANCE[dtype])
    return actual


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("causal", [False, True])
def test_axes_that_broadcast_are_summed(device: torch.device, name: str, causal: bool) -> None:
    # Sinks, without which a bias that is the same for all keys changes nothing.
    options = {"causal": causal, "sinks": torch.randn(4, device=device)}
    check([*operands(device), torch.randn(BIASES[name], device=device, requires_grad=True)], **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_bias", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(device: torch.device, dtype: torch.dtype, of_bias: torch.dtype) -> None:
    bias = torch.randn(4, 21, 34, device=device, dtype=of_bias, requires_grad=True)
    *_, d_bias = check([*operands(device, dtype), bias], max(dtype, of_bias, key=reference.TOLERANCE.get), causal=True)
    assert d_bias.dtype is of_bias


@pytest.mark.parametrize("shape", [(1, 4, 21, 34), (2, 1, 1, 34), (2, 4, 21, 1)])
def test_an_expanded_bias_has_a_gradient_of_each_element(device: torch.device, shape: tuple[int, ...]) -> None:
    """Which autograd adds up for the one that was expanded."""
    of, base = operands(device), torch.randn(shape, device=device, requires_grad=True)
    bias = base.expand(2, 4, 21, 34)
    o = attention(*of, bias=bias, causal=True)
    d_o = torch.randn_like(o)
    whole, d_base = torch.autograd.grad(o, [bias, base], d_o)
    (exact,) = reference.gradients(lambda bias: reference.attention(*of, bias=bias, causal=True), [bias], d_o)
    reference.check("d_bias", whole, exact, 5e-5)
    reference.check("d_base", d_base, exact.sum_to_size(shape), 5e-5)


def test_strides_of_any_kind(device: torch.device) -> None:
    of = operands(device)
    for bias in (
        torch.randn(4, 34, 21).transpose(1, 2),
        torch.randn(2, 4, 21, 70)[..., 1:69:2],
        torch.randn(2, 21, 4, 34),
    ):
        bias = bias if bias.shape[-2] == 21 else bias.transpose(1, 2)
        check([*of, bias.to(device).requires_grad_()])


def test_packed_sequences(device: torch.device) -> None:
    lengths, sums = [9, 30, 0, 17], reference.cu_seqlens([9, 30, 0, 17], device)
    x, bias = torch.randn(56, 4, 16, device=device), torch.randn(4, 1, 30, 30, device=device, requires_grad=True)
    packed = {"cu_seqlens_q": sums, "cu_seqlens_k": sums, "max_seqlen_q": 30, "max_seqlen_k": 30}
    d_o = torch.randn_like(x)
    (actual,) = torch.autograd.grad(attention(x, x, x, **packed, causal=True, bias=bias), bias, d_o)

    def exact(bias: Tensor) -> tuple[Tensor, Tensor]:
        return reference.packed(x, x, x, lengths, lengths, causal=True, bias=bias)

    reference.check("d_bias", actual, reference.gradients(exact, [bias], d_o)[0], 5e-5)
    assert actual[2].count_nonzero() == 0, "no pair is of the empty sequence"


def test_it_is_computed_where_it_is_required(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    checked = _eager._native.checked

    class Call:
        def __init__(self, *given: Any) -> None:
            self._call = checked(*given)

        def forward(self, *given: Any) -> Any:
            asked.append(False)
            return self._call.forward(*given)

        def backward(self, *given: Any) -> None:
            asked.append(given[3][6] is not None)
            self._call.backward(*given)

    monkeypatch.setattr(_eager._native, "checked", Call)
    monkeypatch.setattr(_eager, "_calls", {})
    of, bias = operands(device), torch.randn(21, 34, device=device)
    attention(*of, bias=bias, sinks=torch.randn(4, device=device, requires_grad=True)).sum().backward()
    assert asked == [False, False]
    attention(*(x.detach() for x in of), bias=bias.requires_grad_()).sum().backward()
    assert asked[2:] == [False, True]
    first = [x.detach().transpose(1, 2) for x in of]
    o = ferroflash.scaled_dot_product_attention(*first, bias, enable_gqa=True)
    assert torch.autograd.grad(o.sum(), bias)[0].shape == bias.shape
    assert asked[4:] == [False, True]
    with torch.no_grad():
        attention(*of, bias=bias)
    assert asked[6:] == [False]


def test_a_bias_in_place_of_a_mask_of_transformers(device: torch.device) -> None:
    of = [x.detach().transpose(1, 2) for x in operands(device)]
    bias = torch.randn(1, 4, 21, 50, device=device, requires_grad=True)
    o, _ = ferroflash.transformers.forward(torch.nn.Module(), *of, bias)
    d_o = torch.randn_like(o)
    (actual,) = torch.autograd.grad(o, bias, d_o)
    first = [x.transpose(1, 2) for x in of]
    (expected,) = reference.gradients(lambda bias: reference.attention(*first, bias=bias[..., :34]), [bias], d_o)
    reference.check("d_bias", actual, expected, 5e-5)


def test_the_same_bits_at_every_run(device: torch.device) -> None:
    of, bias = operands(device, torch.bfloat16), torch.randn(34, device=device, requires_grad=True)
    d_o = torch.randn(2, 21, 4, 32, device=device, dtype=torch.bfloat16)
    once, again = (torch.autograd.grad(attention(*of, bias=bias), bias, d_o)[0] for _ in range(2))
    assert torch.equal(once, again)


def test_autocast_leaves_the_bias_its_dtype(device: torch.device) -> None:
    of, bias = operands(device), torch.randn(21, 34, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        o = attention(*of, bias=bias)
    d_o = torch.randn_like(o)
    (d_bias,) = torch.autograd.grad(o, bias, d_o)
    assert d_bias.dtype is torch.float32
    rounded = attention(*(x.detach().bfloat16() for x in of), bias=bias)
    assert torch.equal(d_bias, torch.autograd.grad(rounded, bias, d_o)[0])


@pytest.mark.parametrize(
    ("batch", "seq_q", "seq_k", "shape"),
    [
        (0, 5, 7, (1, 2, 5, 7)),
        (0, 5, 7, (0, 2, 5, 7)),
        (2, 0, 7, (2, 2, 1, 7)),
        (2, 0, 7, (2, 2, 0, 7)),
        (2, 5, 0, (5, 1)),
        (2, 5, 0, (5, 0)),
    ],
)
def test_without_pairs_it_is_zero(
    device: torch.device, batch: int, seq_q: int, seq_k: int, shape: tuple[int, ...]
) -> None:
    q = torch.randn(batch, seq_q, 2, 16, device=device)
    k, bias = torch.randn(batch, seq_k, 2, 16, device=device), torch.randn(shape, device=device, requires_grad=True)
    # Memory that is taken for the gradient is not zero by chance.
    torch.full((4, 4, 16, 16), torch.nan, device=device)
    attention(q, k, k, bias=bias).sum().backward()
    assert torch.equal(bias.grad, torch.zeros(shape, device=device))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("shape", [(2, 1, 10, 10), (1, 4, 10, 10), (4, 1, 10), (10, 1)])
def test_gradients_of_each_example(device: torch.device, axis: int | None, shape: tuple[int, ...]) -> None:
    """torch.func's vmap of grad, with a bias that examples share and with biases of their own."""
    q, size = torch.randn(3, 2, 10, 4, 16, device=device), 3
    bias = torch.randn(shape if axis is None else (*shape[:axis], size, *shape[axis:]), device=device)

    def loss(q: Tensor, bias: Tensor) -> Tensor:
        return attention(q, q, q, bias=bias, causal=True, softmax_scale=0.2).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, axis))(q, bias)
    for index in range(size):
        own = bias if axis is None else bias.select(axis, index)
        one = [q[index].clone().requires_grad_(), own.clone().requires_grad_()]
        for many, single in zip(gradients, torch.autograd.grad(loss(*one), one)):
            reference.check("gradient", many[index], single.double(), 1e-5)


def test_gradients_of_a_mapped_call(device: torch.device) -> None:
    """torch.func's grad of vmap: of a bias that examples share, the sum of theirs."""
    q, bias = torch.randn(3, 2, 10, 4, 16, device=device), torch.randn(4, 10, 10, device=device)

    def loss(bias: Tensor) -> Tensor:
        return torch.vmap(lambda q: attention(q, q, q, bias=bias, causal=True))(q).square().sum()

    whole = q.flatten(0, 1)
    one = bias.clone().requires_grad_()
    attention(whole, whole, whole, bias=one, causal=True).square().sum().backward()
    reference.check("gradient", torch.func.grad(loss)(bias), one.grad.double(), 1e-5)


def test_gradients_of_several_losses(device: torch.device) -> None:
    """The backward pass over several d_o at once."""
    of, bias = operands(device), torch.randn(1, 4, 1, 34, device=device, requires_grad=True)
    o = attention(*of, bias=bias)
    d_o = torch.randn(3, *o.shape, device=device)
    batched = torch.autograd.grad(o, [of[0], bias], d_o, is_grads_batched=True, retain_graph=True)
    for index in range(3):
        for many, single in zip(batched, torch.autograd.grad(o, [of[0], bias], d_o[index], retain_graph=True)):
            reference.check("gradient", many[index], single.double(), 1e-5)


def test_compiled_for_any_length(device: torch.device) -> None:
    def step(q: Tensor, bias: Tensor) -> Tensor:
        return ferroflash.scaled_dot_product_attention(q, q, q, bias * 2).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for seq, keys in ((7, 7), (12, 12), (30, 1)):
        q, bias = torch.randn(1, 2, seq, 16, device=device), torch.randn(seq, keys, device=device, requires_grad=True)
        (expected,) = torch.autograd.grad(step(q, bias), bias)
        assert torch.equal(torch.autograd.grad(compiled(q, bias), bias)[0], expected)
