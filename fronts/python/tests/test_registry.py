"""ferroflash in torch's registry of attention. Its operators are CUDA's; on the CPU what they do is tried by itself."""

from __future__ import annotations

from typing import Any

import ferroflash
import pytest
import reference
import torch
from ferroflash import registry
from ferroflash.torch import attention
from torch.nn import attention as torch_attention

pytestmark = pytest.mark.skipif(not registry._registered, reason="this torch has no registry of attention")


def test_it_is_registered_activated_and_restored() -> None:
    assert "ferroflash" in torch_attention.list_flash_attention_impls()
    assert torch_attention.current_flash_attention_impl() is None, "it is not activated unasked"
    ferroflash.activate()
    assert torch_attention.current_flash_attention_impl() == "ferroflash"
    ferroflash.restore()
    ferroflash.restore()
    assert torch_attention.current_flash_attention_impl() is None


def operands(device: torch.device) -> list[torch.Tensor]:
    return [torch.randn(2, 4, 30, 16, device=device, dtype=torch.bfloat16) for _ in range(4)]


@pytest.mark.parametrize("is_causal", [False, True])
def test_both_passes_of_torchs_function(device: torch.device, is_causal: bool) -> None:
    q, k, v, d_o = operands(device)
    outputs = registry._sdpa_forward(q, k, v, 0.0, is_causal, False, scale=0.3)
    o, lse, cum_q, cum_k, max_q, max_k, rng_state, unused, _ = outputs
    first = [x.transpose(1, 2) for x in (q, k, v, d_o)]

    def of(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.attention(*x, causal=is_causal, softmax_scale=0.3)

    expected, expected_lse = of(*first[:3])
    reference.check("o", o.transpose(1, 2), expected, 2e-2)
    reference.check("lse", lse, expected_lse, 1e-3)
    lengths = cum_q, cum_k, max_q, max_k
    rest = 0.0, is_causal, rng_state, unused
    actual = registry._sdpa_backward(d_o, q, k, v, o, lse, *lengths, *rest, scale=0.3)
    for gradient, exact in zip(actual, reference.gradients(of, first[:3], first[3])):
        reference.check("gradient", gradient.transpose(1, 2), exact, 4e-2)


def test_both_passes_of_packed_sequences(device: torch.device) -> None:
    lengths = [9, 21]
    sums = reference.cu_seqlens(lengths, device)
    q, k, v, d_o = (torch.randn(30, 2, 16, device=device, dtype=torch.bfloat16) for _ in range(4))
    given = sums, sums, 21, 21, 0.0, True
    window = {"window_size_left": 4, "window_size_right": 0}
    o, lse, rng_state, unused, _ = registry._flash_forward(q, k, v, *given, False, **window)

    def of(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.packed(*x, lengths, lengths, window_size=(4, 0))

    reference.check("o", o, of(q, k, v)[0], 2e-2)
    into = torch.empty_like(o)
    assert torch.equal(registry._flash_forward_into(into, q, k, v, *given, False, **window), lse)
    assert torch.equal(into, o)
    actual = registry._flash_backward(d_o, q, k, v, o, lse, *given, rng_state, unused, **window)
    for gradient, exact in zip(actual, reference.gradients(of, [q, k, v], d_o)):
        reference.check("gradient", gradient, exact, 4e-2)


def test_dropout_of_torchs_function(device: torch.device) -> None:
    """The state that the forward pass returns gives the backward pass the same mask."""
    q, k, v, d_o = operands(device)
    torch.manual_seed(3)
    o, lse, *lengths, state, unused, _ = registry._sdpa_forward(q, k, v, 0.3, True)
    first = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]
    torch.manual_seed(3)
    expected = attention(*first, causal=True, dropout_p=0.3)
    assert torch.equal(o, expected.transpose(1, 2))
    actual = registry._sdpa_backward(d_o, q, k, v, o, lse, *lengths, 0.3, True, state, unused)
    for mine, other in zip(actual, torch.autograd.grad(expected, first, d_o.transpose(1, 2))):
        torch.testing.assert_close(mine, other.transpose(1, 2))


def test_what_is_not_covered_goes_below_unchanged(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, _ = operands(device)
    lengths = None, None, 30, 30, 0.1, True
    table = {"block_table": q, "num_splits": 3}
    assert registry._sdpa_forward(q, k, v, return_debug_mask=True) is NotImplemented
    assert registry._flash_forward(q, k, v, *lengths, False, **table) is NotImplemented
    assert registry._flash_forward_into(q, q, k, v, *lengths, False, **table) is NotImplemented
    assert registry._sdpa_backward(*[q] * 6, *lengths, q, q, new=q) is NotImplemented
    assert registry._flash_backward(*[q] * 6, *lengths, q, q, new=q) is NotImplemented

    class Kernel:
        def call_boxed(self, *args: Any, **kwargs: Any) -> Any:
            return "below", args, kwargs

    class Library:
        def impl(self, name: str, function: Any, *_: Any, **__: Any) -> None:
            self.function = function

    monkeypatch.setattr(torch.library, "get_kernel", lambda *_: Kernel())
    library = Library()
    registry._override(library, "some", lambda *args, **kwargs: NotImplemented if kwargs else args)
    assert library.function("keys", q, scale=0.3) == ("below", ("keys", q), {"scale": 0.3})
    assert library.function("keys", q) == (q,)


def test_the_operators_of_this_torch_take_what_is_handed_below() -> None:
    """Every argument that torch's operators have is known, or comes through `unknown` by its name."""
    for name in registry._OVERRIDES:
        if not hasattr(torch.ops.aten, name):
            continue
        schema = getattr(torch.ops.aten, name).default._schema
        mine = registry._OVERRIDES["_flash_attention_forward" if name.endswith("inplace") else name]
        parameters = list(mine.__annotations__)
        positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        if name.endswith("inplace"):
            positional.remove("out")
        assert parameters[: len(positional)] == positional, name
