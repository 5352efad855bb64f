"""Gradients beside f64, and what torch asks of an operator: opcheck, gradcheck, autocast, no second derivative."""

from __future__ import annotations

import ferroflash
import pytest
import reference
import torch
from ferroflash._arguments import Arguments
from ferroflash.torch import attention
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_gradients_of_drawn_problems(device: torch.device, data: st.DataObject) -> None:
    group, heads, seq_q, seq_k = (data.draw(st.integers(1, high)) for high in (3, 3, 70, 70))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    dim = data.draw(st.sampled_from([8, 24, 64]))
    make = {"dtype": dtype, "device": device, "requires_grad": True}
    q = torch.randn(2, seq_q, heads * group, dim, **make)
    k, v = (torch.randn(2, seq_k, heads, dim, **make) for _ in range(2))
    slopes = torch.rand(2, heads * group, device=device, requires_grad=True)
    options = {
        "causal": data.draw(st.booleans()),
        "window_size": (data.draw(st.sampled_from([None, 9])), None),
        "softcap": data.draw(st.sampled_from([0.0, 5.0])),
        "top_left": data.draw(st.booleans()),
    }
    o, lse = attention(q, k, v, alibi_slopes=slopes, return_lse=True, **options)
    d_o = torch.randn_like(o)
    # Rows that see no key have an lse of -inf, by which no loss has a gradient.
    d_lse = torch.randn_like(lse) * lse.isfinite() * data.draw(st.sampled_from([0.0, 1.0]))
    loss = (o * d_o).sum() + (torch.where(lse.isfinite(), lse, 0.0) * d_lse).sum()
    actual = torch.autograd.grad(loss, [q, k, v, slopes])

    def of(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        *operands, slopes = tensors
        o, lse = reference.attention(*operands, alibi_slopes=slopes, **options)
        # The formula's own derivative is NaN where no key is seen.
        return o, torch.where(lse.isfinite(), lse, 0.0)

    seen = lse.isfinite().all()
    expected = reference.gradients(of, [q, k, v, slopes], d_o, d_lse) if seen else None
    for name, gradient in zip(("dq", "dk", "dv", "d_slopes"), actual):
        assert gradient.isfinite().all(), name
    if expected is not None:
        for name, gradient, exact in zip(("dq", "dk", "dv"), actual, expected):
            reference.check(name, gradient, exact, 2 * reference.TOLERANCE[dtype])
        reference.check("d_slopes", actual[3], expected[3], 10 * reference.TOLERANCE[dtype])


def test_gradients_of_packed_sequences_and_parts(device: torch.device) -> None:
    lengths = [17, 0, 40, 3]
    sums, total = reference.cu_seqlens(lengths, device), sum(lengths)
    qkv = torch.randn(total, 3, 4, 32, device=device, requires_grad=True)
    o = ferroflash.flash_attn_varlen_qkvpacked_func(qkv, sums, 40, causal=True)
    d_o = torch.randn_like(o)
    (actual,) = torch.autograd.grad(o, qkv, d_o)
    (expected,) = reference.gradients(
        lambda qkv: reference.packed(*qkv.unbind(1), lengths, lengths, causal=True), [qkv], d_o
    )
    reference.check("dqkv", actual, expected, 5e-5)


def test_a_gradient_that_is_spread_is_not_copied(device: torch.device) -> None:
    """The gradient of a sum has strides of 0."""
    q = torch.randn(1, 9, 2, 16, device=device, requires_grad=True)
    attention(q, q, q).sum().backward()
    (expected,) = reference.gradients(
        lambda q: reference.attention(q, q, q), [q], torch.ones(1, 9, 2, 16, device=device)
    )
    reference.check("dq", q.grad, expected, 1e-4)


def test_a_loss_of_lse_alone(device: torch.device) -> None:
    q, k = (torch.randn(1, 9, 2, 16, device=device, requires_grad=True) for _ in range(2))
    _, lse = attention(q, k, k, return_lse=True)
    actual = torch.autograd.grad(lse.sum(), [q, k])
    zero, one = torch.zeros(1, 9, 2, 16, device=device), torch.ones(1, 2, 9, device=device)
    expected = reference.gradients(lambda q, k: reference.attention(q, k, k), [q, k], zero, one)
    for gradient, exact in zip(actual, expected):
        reference.check("gradient", gradient, exact, 1e-4)


def test_deterministic_gradients_repeat(device: torch.device) -> None:
    q, k, v = (torch.randn(2, 200, 4, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    d_o = torch.randn(2, 200, 4, 64, device=device, dtype=torch.bfloat16)

    def once() -> tuple[torch.Tensor, ...]:
        o = ferroflash.flash_attn_func(q, k, v, deterministic=True)
        return torch.autograd.grad(o, [q, k, v], d_o)

    assert all(torch.equal(a, b) for a, b in zip(once(), once()))


@pytest.mark.parametrize("is_packed", [False, True])
def test_opcheck(device: torch.device, is_packed: bool) -> None:
    """Schema, autograd's registration, shapes and strides without data, and a compiled graph: torch's own checks."""
    shape = (1, 12, 4, 16)[is_packed:]
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    slopes = torch.rand(4, device=device, requires_grad=True)
    arguments = Arguments(alibi_slopes=slopes, right=0)
    if is_packed:
        sums = reference.cu_seqlens([5, 7], device)
        arguments = arguments._replace(cu_seqlens_q=sums, cu_seqlens_kv=sums, max_seqlen_q=7, max_seqlen_kv=7)
    torch.library.opcheck(torch.ops.ferroflash.forward.default, (q, k, v, *arguments))
    detached = [x.detach() for x in (q, k, v)]
    arguments = arguments._replace(alibi_slopes=slopes.detach())
    o, lse = torch.ops.ferroflash.forward(*detached, *arguments)
    given = (torch.randn_like(o), torch.randn_like(lse), *detached, o, lse, *arguments, [True, False, False])
    torch.library.opcheck(torch.ops.ferroflash.backward.default, given)


@pytest.mark.filterwarnings("ignore:Input #")  # it would rather have f64
def test_gradcheck(device: torch.device) -> None:
    """Gradients beside differences of o and lse, as far as f32 resolves them."""
    q, k, v = (torch.randn(1, 4, 2, 8, device=device, requires_grad=True) for _ in range(3))
    torch.autograd.gradcheck(
        lambda *x: attention(*x, causal=True, return_lse=True), (q, k, v), eps=1e-2, atol=2e-3, rtol=1e-2
    )


def test_autocast_chooses_the_dtype(device: torch.device) -> None:
    q = torch.randn(1, 9, 2, 16, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        o = attention(q, q, q)
        no_grad = attention(q.detach(), q.detach(), q.detach())
    assert o.dtype is no_grad.dtype is torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype is torch.float32
    rounded = q.detach().bfloat16()
    assert torch.equal(o, attention(rounded, rounded, rounded))


def test_there_is_no_second_derivative(device: torch.device) -> None:
    q = torch.randn(1, 9, 2, 16, device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(attention(q, q, q).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="create_graph"):
        gradient.sum().backward()
