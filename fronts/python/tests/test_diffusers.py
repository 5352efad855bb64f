"""An attention layer of diffusers, whose "native" backend is torch's own attention, which the registry hands to ferroflash."""

from __future__ import annotations

from typing import Any

import ferroflash
import pytest
import torch

pytest.importorskip("diffusers", reason="diffusers is not installed")

from diffusers.models.attention_dispatch import attention_backend, dispatch_attention_fn
from ferroflash import registry
from torch.nn.attention import SDPBackend, sdpa_kernel


@pytest.mark.cuda
def test_it_runs_by_the_registry(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(2, 40, 4, 64, device=device, dtype=torch.bfloat16) for _ in range(3))
    calls = []
    forward = registry._eager.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return forward(*args, **kwargs)

    monkeypatch.setattr(registry._eager, "forward", counted)
    with attention_backend("native"), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        expected = dispatch_attention_fn(q, k, v)
        assert not calls
        ferroflash.activate()
        try:
            actual = dispatch_attention_fn(q, k, v)
        finally:
            ferroflash.restore()
    assert len(calls) == 1
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_a_layer_is_what_it_is_with_torchs_attention(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any device: diffusers' dispatcher calls torch's function, for which ours stands in."""
    from diffusers.models import attention_dispatch

    q, k, v = (torch.randn(2, 40, 4, 64, device=device) for _ in range(3))
    with attention_backend("native"):
        expected = dispatch_attention_fn(q, k, v)
        calls = []

        def ours(**kwargs: Any) -> torch.Tensor:
            calls.append(kwargs)
            return ferroflash.scaled_dot_product_attention(**kwargs)

        monkeypatch.setattr(attention_dispatch.torch.nn.functional, "scaled_dot_product_attention", ours)
        actual = dispatch_attention_fn(q, k, v)
    assert len(calls) == 1
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
