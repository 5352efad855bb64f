"""What hides, changes or drops single pairs: masks and biases as tensors, documents, prefixes, sinks, dropout, beside f64."""

from __future__ import annotations

from typing import Any

import ferroflash
import pytest
import reference
import torch
import torch.nn.functional as functional
from ferroflash import fa3, fa4
from ferroflash._arguments import Arguments
from ferroflash.torch import attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


def drawn_pairs(data: st.DataObject, pairs: tuple[int, ...], device: torch.device) -> Tensor:
    """Random numbers of a shape that broadcasts to `pairs`: of fewer axes, with axes of 1, transposed, expanded or a slice."""
    shape = [data.draw(st.sampled_from([1, whole])) for whole in pairs[:3]] + [pairs[3]]
    kind = data.draw(st.sampled_from(["dense", "transposed", "expanded", "slice", "fewer axes", "one key"]))
    if kind == "transposed":
        return torch.randn(*shape[:2], shape[3], shape[2], device=device).transpose(2, 3)
    if kind == "expanded":
        return torch.randn(shape[2], shape[3], device=device).expand(*pairs)
    if kind == "slice":
        return torch.randn(*shape[:3], 3 * shape[3] + 1, device=device)[..., 1::3]
    if kind == "fewer axes":
        return torch.randn(shape[data.draw(st.integers(0, 2)) :], device=device)
    if kind == "one key":
        return torch.randn(*shape[:3], 1, device=device)
    return torch.randn(shape, device=device)


def drawn_options(data: st.DataObject, pairs: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    batch, heads, seq_q, seq_k = pairs
    options: dict[str, Any] = {"causal": data.draw(st.booleans())}
    wanted = data.draw(st.sets(st.sampled_from(["mask", "bias", "sinks", "doc", "prefix_len", "chunk", "dilation"])))
    if "mask" in wanted:
        mask = drawn_pairs(data, pairs, device) > -0.5
        options["mask"] = mask if data.draw(st.booleans()) else mask.to(torch.uint8) * 7
    if "bias" in wanted:
        options["bias"] = drawn_pairs(data, pairs, device).to(data.draw(DTYPES))
        options["bias"].requires_grad_(data.draw(st.booleans()))
    if "sinks" in wanted:
        options["sinks"] = torch.randn(heads, device=device, requires_grad=True)
    if "doc" in wanted:
        outer = data.draw(st.sampled_from([(), (batch,)]))
        for name, rows in (("doc_q", seq_q), ("doc_k", seq_k)):
            options[name] = torch.randint(2, (*outer, rows), device=device, dtype=torch.int32)
    if "prefix_len" in wanted:
        options["prefix_len"] = torch.randint(seq_k + 1, (batch,), device=device, dtype=torch.int32)
    for name in wanted & {"chunk", "dilation"}:
        options[name] = data.draw(st.integers(1, 9))
    return options


@settings(max_examples=80, deadline=None, derandomize=True)
@given(data=st.data())
def test_drawn_problems_and_their_gradients(device: torch.device, data: st.DataObject) -> None:
    batch, group, heads_k, seq_q = (data.draw(st.integers(1, high)) for high in (3, 3, 2, 40))
    seq_k = seq_q + data.draw(st.integers(0, 30))
    heads, dim = heads_k * group, data.draw(st.sampled_from([8, 20, 64]))
    dtype, make = data.draw(DTYPES), {"device": device, "requires_grad": True}
    q = torch.randn(batch, seq_q, heads, dim, dtype=dtype, **make)
    k, v = (torch.randn(batch, seq_k, heads_k, dim, dtype=dtype, **make) for _ in range(2))
    options = drawn_options(data, (batch, heads, seq_q, seq_k), device)
    inputs = {"q": q, "k": k, "v": v}
    inputs.update({name: x for name, x in options.items() if isinstance(x, Tensor) and x.requires_grad})

    def exact(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return reference.attention(**{**options, **dict(zip(inputs, tensors))})

    o, lse = attention(q, k, v, **options, return_lse=True)
    expected_o, expected_lse = exact(*inputs.values())
    reference.check("o", o, expected_o, reference.TOLERANCE[dtype])
    reference.check("lse", lse, expected_lse, 1e-4)
    d_o = torch.randn_like(o)
    actual = torch.autograd.grad(o, list(inputs.values()), d_o)
    if not expected_lse.isfinite().all():  # the formula's own derivative is NaN where no key is seen
        assert all(gradient.isfinite().all() for gradient in actual)
        return
    expected = reference.gradients(exact, list(inputs.values()), d_o)
    for name, gradient, of_f64 in zip(inputs, actual, expected):
        tolerance = max(reference.TOLERANCE[of] for of in (dtype, gradient.dtype))
        reference.check(f"d_{name}", gradient, of_f64, (10 if name in ("bias", "sinks") else 2) * tolerance)


def kept(seed: int, q: Tensor, k: Tensor, dropout_p: float, **options: Any) -> Tensor:
    """What dropout multiplies probabilities with, which values that are the identity tell."""
    seq_k = k.shape[-3]
    identity = torch.eye(seq_k, device=q.device, dtype=q.dtype)[:, None].expand(seq_k, k.shape[-2], seq_k)
    torch.manual_seed(seed)
    o = attention(q, k, identity.expand(*k.shape[:-1], seq_k), dropout_p=dropout_p, **options)
    return (o != 0).transpose(-3, -2).double() / (1 - dropout_p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_and_its_gradients(device: torch.device, dtype: torch.dtype) -> None:
    """Both passes drop the same; so does the same seed; lse is that of all."""
    q = torch.randn(2, 50, 4, 32, device=device, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, 70, 2, 32, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    mask = kept(5, q.detach(), k.detach(), 0.3)
    rate = 1 - (mask > 0).double().mean().item()
    assert abs(rate - 0.3) < 0.02, rate
    torch.manual_seed(5)
    o, lse = attention(q, k, v, dropout_p=0.3, return_lse=True)
    expected, expected_lse = reference.attention(q, k, v, kept=mask)
    reference.check("o", o, expected, 2 * reference.TOLERANCE[dtype])
    reference.check("lse", lse, expected_lse, 1e-4)
    assert not torch.equal(attention(q, k, v, dropout_p=0.3), o), "the next call drops others"
    torch.manual_seed(5)
    assert torch.equal(ferroflash.flash_attn_func(q, k, v, 0.3), o)
    d_o = torch.randn_like(o)
    actual = torch.autograd.grad(o, [q, k, v], d_o)
    exact = reference.gradients(lambda *x: reference.attention(*x, kept=mask), [q, k, v], d_o)
    for name, gradient, of_f64 in zip(("dq", "dk", "dv"), actual, exact):
        reference.check(name, gradient, of_f64, 3 * reference.TOLERANCE[dtype])


def test_dropout_of_packed_sequences(device: torch.device) -> None:
    sums = reference.cu_seqlens([20, 44], device)
    qkv = torch.randn(64, 3, 2, 64, device=device)
    packed = (sums, sums, 44, 44)
    torch.manual_seed(1)
    probabilities = ferroflash.flash_attn_varlen_func(
        *qkv.unbind(1)[:2], torch.eye(64, device=device)[:, None].expand(64, 2, 64), *packed, 0.25
    )
    torch.manual_seed(1)
    o = ferroflash.flash_attn_varlen_qkvpacked_func(qkv, sums, 44, 0.25)
    reference.check("o", o, torch.einsum("qhk,khd->qhd", probabilities, qkv[:, 2]).double(), 2e-5)
    whole = ferroflash.flash_attn_varlen_qkvpacked_func(qkv, sums, 44)
    assert not torch.allclose(o, whole)


def test_packed_sequences_with_masks(device: torch.device) -> None:
    lengths = [9, 30, 0, 17]
    sums, q = reference.cu_seqlens(lengths, device), torch.randn(56, 4, 16, device=device)
    options = {"mask": torch.rand(4, 1, 30, 30, device=device) > 0.3, "bias": torch.randn(4, 4, 30, 30, device=device)}
    given = {"cu_seqlens_q": sums, "cu_seqlens_k": sums, "max_seqlen_q": 30, "max_seqlen_k": 30, "causal": True}
    o, lse = attention(q, q, q, **given, **options, return_lse=True)
    expected, expected_lse = reference.packed(q, q, q, lengths, lengths, causal=True, **options)
    reference.check("o", o, expected, 2e-5)
    reference.check("lse", lse, expected_lse, 1e-4)


# Masks of torch's function by the shapes they have, of pairs [2, 4, 11, 17].
MASKS = {
    "pairs": (11, 17),
    "keys": (1, 17),
    "padding": (2, 1, 1, 17),
    "heads": (4, 11, 17),
    "all": (2, 4, 11, 17),
    "queries": (11, 1),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_of_torchs_function(
    device: torch.device, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = torch.randn(2, 4, 11, 32, device=device, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, 4, 17, 32, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    bias = torch.randn(MASKS[name], device=device, dtype=dtype)
    hidden = torch.where(bias > 0.6, -torch.inf, bias)
    masks = [bias > -1, bias.requires_grad_(), hidden.requires_grad_()]
    with sdpa_kernel(SDPBackend.MATH):  # its kernels want last axes without a stride
        theirs = [functional.scaled_dot_product_attention(q, k, v, mask, scale=0.3) for mask in masks]
    d_o = torch.randn_like(theirs[0])
    inputs = [[x for x in (q, k, v, mask) if x.requires_grad] for mask in masks]
    gradients = [torch.autograd.grad(o, of, d_o) for o, of in zip(theirs, inputs)]
    monkeypatch.setattr(functional, "scaled_dot_product_attention", None)  # it is not fallen back to
    for mask, of, expected, of_expected in zip(masks, inputs, theirs, gradients):
        o = ferroflash.scaled_dot_product_attention(q, k, v, mask, scale=0.3)
        reference.check("o", o, expected.double(), 2 * reference.TOLERANCE[dtype])
        for gradient, exact in zip(torch.autograd.grad(o, of, d_o), of_expected):
            reference.check("gradient", gradient, exact.double(), 4 * reference.TOLERANCE[dtype])


def test_dropout_of_torchs_function(device: torch.device) -> None:
    q = torch.randn(2, 4, 40, 64, device=device)
    mask = torch.rand(40, 40, device=device) > 0.2
    identity = torch.eye(40, device=device).expand(2, 4, 40, 40)
    torch.manual_seed(2)
    p = ferroflash.scaled_dot_product_attention(q, q, identity, mask, 0.4)
    with sdpa_kernel(SDPBackend.MATH):
        whole = functional.scaled_dot_product_attention(q, q, identity, mask)
    assert abs((p == 0)[whole > 0].double().mean().item() - 0.4) < 0.03
    torch.testing.assert_close(p[p > 0] * 0.6, whole[p > 0])
    torch.manual_seed(2)
    o = ferroflash.scaled_dot_product_attention(q, q, q, mask, 0.4)
    reference.check("o", o, (p @ q).double(), 2e-5)


def test_sinks_and_chunks_of_flash_attention_3_and_4(device: torch.device) -> None:
    q, sinks = torch.randn(2, 30, 4, 16, device=device), torch.randn(4, device=device, dtype=torch.bfloat16)
    sinks.requires_grad_()
    o, lse = fa4.flash_attn_func(q, q, q, causal=True, learnable_sink=sinks)
    expected, expected_lse = reference.attention(q, q, q, causal=True, sinks=sinks)
    reference.check("o", o, expected, 2e-5)
    reference.check("lse", lse, expected_lse, 1e-4)
    o.sum().backward()
    assert sinks.grad.dtype is torch.bfloat16
    assert sinks.grad.abs().min() > 0
    o = fa3.flash_attn_func(q, q[:, 3:], q[:, 3:], causal=True, attention_chunk=8)
    reference.check("o", o, reference.attention(q, q[:, 3:], q[:, 3:], causal=True, chunk=8)[0], 2e-5)


def all_arguments(device: torch.device) -> Arguments:
    return Arguments(
        alibi_slopes=torch.rand(4, device=device, requires_grad=True),
        mask=torch.rand(2, 1, 12, 12, device=device) > 0.2,
        bias=torch.randn(4, 12, 1, device=device, dtype=torch.bfloat16, requires_grad=True),
        sinks=torch.randn(4, device=device, requires_grad=True),
        doc_q=torch.zeros(12, device=device, dtype=torch.int32),
        doc_kv=torch.zeros(12, device=device, dtype=torch.int32),
        prefix_len=torch.tensor([3, 0], device=device, dtype=torch.int32),
        dropout_state=torch.tensor([7, 11], device=device),
        right=0,
        chunk=9,
        dilation=1,
        dropout_p=0.2,
    )


def test_opcheck(device: torch.device) -> None:
    q, k, v = (torch.randn(2, 12, 4, 16, device=device, requires_grad=True) for _ in range(3))
    arguments = all_arguments(device)
    torch.library.opcheck(torch.ops.ferroflash.forward.default, (q, k, v, *arguments))
    arguments = Arguments(*(x.detach() if isinstance(x, Tensor) else x for x in arguments))
    detached = [x.detach() for x in (q, k, v)]
    o, lse = torch.ops.ferroflash.forward(*detached, *arguments)
    given = (torch.randn_like(o), torch.randn_like(lse), *detached, o, lse, *arguments, [False, True, True])
    torch.library.opcheck(torch.ops.ferroflash.backward.default, given)


@pytest.mark.filterwarnings("ignore:Input #")  # it would rather have f64
def test_gradcheck(device: torch.device) -> None:
    q, k, v = (torch.randn(1, 4, 2, 8, device=device, requires_grad=True) for _ in range(3))
    sinks, bias = (torch.randn(shape, device=device, requires_grad=True) for shape in ((2,), (4, 4)))

    def call(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(4)
        return attention(q, k, v, sinks=sinks, bias=bias, dropout_p=0.3, return_lse=True)

    torch.autograd.gradcheck(call, (q, k, v, sinks, bias), eps=1e-2, atol=2e-3, rtol=1e-2)


def test_compiled(device: torch.device) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        o = attention(q * 2, k, v, sinks=sinks, mask=mask, bias=bias * 2, chunk=9)
        first = (x.transpose(1, 2) for x in (o, k, v))
        o = ferroflash.scaled_dot_product_attention(*first, bias.expand(2, 4, 20, 20), dropout_p=0.2)
        return ferroflash.flash_attn_func(o.transpose(1, 2), k, v, 0.1).square().sum()

    tensors = [torch.randn(2, 20, 4, 16, device=device, requires_grad=True) for _ in range(3)]
    tensors += [torch.randn(shape, device=device, requires_grad=True) for shape in ((4,), (4, 1, 20))]
    mask = torch.rand(20, 20, device=device) > 0.2
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    results = []
    for function in (step, compiled):
        torch.manual_seed(6)
        loss = function(*tensors, mask)
        results.append([loss, *torch.autograd.grad(loss, tensors)])
    for mine, expected in zip(*results):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("axes", [(None, None, None), (0, 1, 0), (2, None, 1)])
def test_mapped(device: torch.device, axes: tuple[int | None, ...]) -> None:
    """Masks, biases and documents that examples share, and of their own."""
    shapes, size = [(2, 1, 10, 10), (10, 10), (10,)], 3
    q = torch.randn(size, 2, 10, 4, 16, device=device)
    mask, bias, documents = (
        torch.randn(shape if axis is None else (*shape[:axis], size, *shape[axis:]), device=device)
        for shape, axis in zip(shapes, axes)
    )
    mask, documents, sinks = mask > -0.7, (documents > 0).int(), torch.randn(4, device=device)

    def call(q: Tensor, mask: Tensor, bias: Tensor, documents: Tensor) -> Tensor:
        return attention(q, q, q, mask=mask, bias=bias, doc_q=documents, doc_k=documents, sinks=sinks)

    mapped = torch.vmap(call, in_dims=(0, *axes))(q, mask, bias, documents)
    for index in range(size):
        own = [x if axis is None else x.select(axis, index) for x, axis in zip((mask, bias, documents), axes)]
        reference.check("o", mapped[index], call(q[index], *own).double(), 1e-6)


def test_what_is_not_mapped_is_named(device: torch.device) -> None:
    q, sinks = torch.randn(3, 2, 5, 4, 16, device=device), torch.randn(3, 4, device=device)
    with pytest.raises(NotImplementedError, match="sinks"):
        torch.vmap(lambda q, sinks: attention(q, q, q, sinks=sinks))(q, sinks)
    with pytest.raises(NotImplementedError, match="dropout_p"):
        torch.vmap(lambda q: attention(q, q, q, dropout_p=0.5), randomness="same")(q)


def refused(error: type[Exception], **options: Any) -> str:
    q = torch.randn(2, 5, 4, 16)
    with pytest.raises(error) as raised:
        attention(q, q, q, **options)
    return str(raised.value)


def test_refusals() -> None:
    pairs = torch.randn(2, 4, 5, 5)
    assert refused(ValueError, mask=pairs).startswith("mask: its dtype is torch.float32")
    assert refused(ValueError, bias=pairs.double()).startswith("bias: its dtype is torch.float64")
    assert refused(ValueError, bias=pairs[:, :3]).startswith("bias: heads_q is 3")
    assert refused(ValueError, bias=pairs[None]).startswith("bias: it has 5 axes")
    assert refused(ValueError, mask=(pairs > 0)[..., :4]) == "mask: seq_kv is 4; it must be 5"
    assert refused(ValueError, sinks=torch.randn(3)).startswith("sinks: its shape is [3]")
    assert refused(ValueError, doc_q=torch.zeros(5).int()).startswith("doc_k: it is None")
    assert refused(ValueError, doc_q=torch.zeros(5), doc_k=torch.zeros(5)).startswith("doc_q: its dtype")
    assert refused(ValueError, prefix_len=torch.zeros(3).int()).startswith("prefix_len: its shape is [3]")
    assert refused(ValueError, dropout_p=1.0).startswith("dropout: the rate is 1")
    assert refused(ValueError, chunk=0).startswith("chunk: it is 0")
