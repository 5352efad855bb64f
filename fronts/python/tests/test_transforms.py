"""torch.compile and vmap."""

from __future__ import annotations

import pytest
import reference
import torch
from ferroflash import flash_attn_func, flash_attn_varlen_func, scaled_dot_product_attention
from ferroflash._arguments import Arguments
from ferroflash.torch import attention
from torch import Tensor


def test_compiled_with_its_gradients(device: torch.device) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attn_func(q * 2, k, v, causal=True, window_size=(5, 0)).square().sum()

    tensors = [torch.randn(2, 20, 4, 16, device=device, requires_grad=True) for _ in range(3)]
    expected = torch.autograd.grad(step(*tensors), tensors)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    actual = torch.autograd.grad(compiled(*tensors), tensors)
    for a, b in zip(actual, expected):
        assert torch.equal(a, b)


def test_compiled_for_any_length(device: torch.device) -> None:
    sdpa = torch.compile(scaled_dot_product_attention, fullgraph=True, backend="aot_eager", dynamic=True)
    for seq in (7, 12, 30):
        q = torch.randn(1, 2, seq, 16, device=device)
        expected, _ = reference.attention(*[q.transpose(1, 2)] * 3, causal=True)
        reference.check("o", sdpa(q, q, q, is_causal=True), expected.transpose(1, 2), 2e-5)


def test_compiled_packed_sequences(device: torch.device) -> None:
    function = torch.compile(flash_attn_varlen_func, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in ([5, 9], [30, 1, 8]):
        x = torch.randn(sum(lengths), 2, 16, device=device)
        sums = reference.cu_seqlens(lengths, device)
        o = function(x, x, x, sums, sums, max(lengths), max(lengths))
        reference.check("o", o, reference.packed(x, x, x, lengths, lengths)[0], 2e-5)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (2, None, 1), (None, 3, 0)])
def test_mapped(device: torch.device, in_dims: tuple[int | None, ...]) -> None:
    size, shape = 3, (2, 10, 4, 16)
    tensors = [
        torch.randn(shape if axis is None else (*shape[:axis], size, *shape[axis:]), device=device) for axis in in_dims
    ]
    slopes = torch.rand(size, 4, device=device)
    mapped = torch.vmap(lambda q, k, v, s: attention(q, k, v, alibi_slopes=s), in_dims=(*in_dims, 0))
    actual = mapped(*tensors, slopes)

    def operator(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
        return torch.ops.ferroflash.forward(q, k, v, *Arguments(alibi_slopes=s))[0]

    assert torch.equal(torch.vmap(operator, in_dims=(*in_dims, 0))(*tensors, slopes), actual)
    for index in range(size):
        one = [x if axis is None else x.select(axis, index) for x, axis in zip(tensors, in_dims)]
        assert torch.equal(actual[index], attention(*one, alibi_slopes=slopes[index]))


def test_mapped_gradients(device: torch.device) -> None:
    """The gradients of each example, by vectorising the backward pass over several d_o."""
    q = torch.randn(2, 10, 4, 16, device=device, requires_grad=True)
    slopes = torch.rand(4, device=device, requires_grad=True)
    o = attention(q, q, q, alibi_slopes=slopes)
    d_o = torch.randn(3, *o.shape, device=device)
    batched = torch.autograd.grad(o, [q, slopes], d_o, is_grads_batched=True, retain_graph=True)
    for index in range(3):
        one = torch.autograd.grad(o, [q, slopes], d_o[index], retain_graph=True)
        for many, single in zip(batched, one):
            reference.check("gradient", many[index], single.double(), 1e-5)


@pytest.mark.parametrize("slopes_axis", [None, 0])
def test_gradients_of_each_example(device: torch.device, slopes_axis: int | None) -> None:
    """torch.func's vmap of grad, with slopes that examples share and with slopes of their own."""
    q = torch.randn(3, 2, 10, 4, 16, device=device)
    slopes = torch.rand(4, device=device) if slopes_axis is None else torch.rand(3, 4, device=device)

    def loss(q: Tensor, slopes: Tensor) -> Tensor:
        return attention(q, q, q, alibi_slopes=slopes, causal=True).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, slopes_axis))(q, slopes)
    for index in range(3):
        own = slopes if slopes_axis is None else slopes[index]
        one = [q[index].clone().requires_grad_(), own.clone().requires_grad_()]
        for many, single in zip(gradients, torch.autograd.grad(loss(*one), one)):
            reference.check("gradient", many[index], single.double(), 1e-5)


def test_packed_sequences_are_not_mapped(device: torch.device) -> None:
    x, sums = torch.randn(3, 10, 2, 16, device=device), reference.cu_seqlens([4, 6], device)
    with pytest.raises(NotImplementedError, match="cu_seqlens_q"):
        torch.vmap(lambda x: flash_attn_varlen_func(x, x, x, sums, sums, 6, 6))(x)
