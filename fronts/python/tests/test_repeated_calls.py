"""Calls like one before, which are not checked again, and who sees a call that is made past torch's dispatcher."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Callable

import ferroflash
import pytest
import torch
from ferroflash import _arguments, _covered, _eager, _native
from ferroflash.torch import attention
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_eager, "_calls", {})
    _arguments.bare.cache_clear()


def read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a torch before 2.10, whose tensors the native half cannot read at once."""

    class Calls:
        def __init__(self, most: int) -> None:
            pass

        def keep(self, *given: Any) -> None:
            pass

        def forward(self, *given: Any) -> None:
            return None

    monkeypatch.setattr(_native, "signature", lambda tensors: None)
    monkeypatch.setattr(_native, "Calls", Calls)


def both(*operands: Tensor, **options: Any) -> list[Tensor]:
    """o, lse and gradients."""
    inputs = [x.detach().requires_grad_() for x in operands]
    o, lse = attention(*inputs, **options, return_lse=True)
    return [o, lse, *torch.autograd.grad(o, inputs, torch.ones_like(o))]


def changed(device: torch.device) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
    """Calls, each of which differs in one thing from those before."""
    make = {"device": device}
    q, k, v = (torch.randn(2, 12, 4, 16, **make) for _ in range(3))
    yield [q, k, v], {}
    yield [q[:, :7], k, v], {}
    yield [q, k[:, :7], v[:, :7]], {}
    yield [q, k[:, :, :2], v[:, :, :2]], {}
    yield [q, k, v[..., :8]], {}
    yield [q.half(), k.half(), v.half()], {}
    yield [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)], {}
    yield [q, k[:, :1].expand(k.shape), v], {}
    yield [q, k, v.flip(1).as_strided(v.shape, (0, *v.stride()[1:]))], {}
    for options in (
        {"causal": True},
        {"softmax_scale": 0.5},
        {"softcap": 2.0},
        {"window_size": (3, 1)},
        {"window_size": (3, 1), "top_left": True},
        {"chunk": 5},
        {"dilation": 2},
        {"alibi_slopes": torch.rand(4, **make)},
        {"alibi_slopes": torch.rand(2, 4, **make)},
        {"sinks": torch.randn(4, **make)},
        {"bias": torch.randn(12, 12, **make)},
        {"bias": torch.randn(12, 12, **make).half()},
        {"bias": torch.randn(4, 12, 12, **make)},
        {"bias": torch.randn(4, 12, 12, **make).transpose(1, 2)},
        {"mask": torch.rand(12, 12, **make) > 0.3},
        {"mask": torch.rand(2, 1, 1, 12, **make) > 0.3},
        {"doc_q": torch.arange(12, **make).int() // 5, "doc_k": torch.arange(12, **make).int() // 5},
        {"prefix_len": torch.tensor([3, 0], **make).int()},
        {"seqused_k": torch.tensor([3, 9], **make).int()},
    ):
        yield [q, k, v], options
    rows, sums = [x.flatten(0, 1) for x in (q, k, v)], torch.tensor([0, 9, 24], **make).int()
    for longest in (15, 24):
        packed = {"cu_seqlens_q": sums, "cu_seqlens_k": sums, "max_seqlen_q": longest, "max_seqlen_k": longest}
        yield rows, packed
    whole = torch.tensor([0, 24], **make).int()
    yield rows, {**packed, "cu_seqlens_q": whole, "cu_seqlens_k": whole}


@pytest.mark.parametrize("has_signatures", [True, False])
def test_what_is_kept_is_of_the_same_call_alone(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, has_signatures: bool
) -> None:
    """Among all others, twice, as where nothing is kept."""
    if not has_signatures:
        read_nothing(monkeypatch)
    given = list(changed(device))
    alone = []
    for operands, options in given:
        forget(monkeypatch)
        alone.append(both(*operands, **options))
    forget(monkeypatch)
    for _ in range(2):
        for (operands, options), expected in zip(given, alone):
            for actual, of_alone in zip(both(*operands, **options), expected):
                assert actual.stride() == of_alone.stride(), options
                torch.testing.assert_close(actual, of_alone, rtol=0, atol=0, equal_nan=True, msg=str(options))
    assert len(_eager._calls) == 2 * len(given), "a call is kept for each pass"


def bare_calls(device: torch.device) -> Iterator[Callable[[], Any]]:
    """Calls of q, k and v alone, or with lengths, each of which differs in one thing from those before."""
    flash, sdpa = ferroflash.flash_attn_func, ferroflash.scaled_dot_product_attention
    for operands, options in changed(device):
        if options.keys() <= {"causal", "softmax_scale", "softcap", "window_size"}:
            yield functools.partial(flash, *operands, **options)
    q, k, v = operands = [torch.randn(2, 4, 12, 16, device=device) for _ in range(3)]
    yield functools.partial(flash, *operands)
    yield functools.partial(flash, *operands, return_attn_probs=True)
    for options in ({}, {"is_causal": True}, {"scale": 0.5}, {"window_size": (3, 0)}):
        yield functools.partial(sdpa, *operands, **options)
    yield functools.partial(sdpa, q, k[:, :2], v[:, :2], enable_gqa=True)
    rows = [torch.randn(24, 4, 16, device=device) for _ in range(3)]
    sums, others = (torch.tensor([0, length, 24], device=device).int() for length in (9, 20))
    for lengths in ((sums, sums, 15, 15), (sums, others, 15, 20), (others, sums, 20, 15), (others, sums, 24, 15)):
        yield functools.partial(ferroflash.flash_attn_varlen_func, *rows, *lengths)
    spread = torch.stack((sums, sums), 1)[:, 0]
    yield functools.partial(ferroflash.flash_attn_varlen_func, *rows, spread, spread, 15, 15, causal=True)
    whole = torch.tensor([0, 24], device=device).int()
    yield functools.partial(ferroflash.flash_attn_varlen_func, *rows, whole, whole, 24, 24)


@pytest.mark.parametrize("has_signatures", [True, False])
def test_bare_calls_are_told_apart(device: torch.device, monkeypatch: pytest.MonkeyPatch, has_signatures: bool) -> None:
    """Among all others, in either order, as where nothing is kept."""
    if not has_signatures:
        read_nothing(monkeypatch)
    calls = list(bare_calls(device))
    alone = []
    for call in calls:
        forget(monkeypatch)
        alone.append(call())
    forget(monkeypatch)
    for order in (1, -1):
        for call, expected in [*zip(calls, alone)][::order]:
            torch.testing.assert_close(call(), expected, rtol=0, atol=0, equal_nan=True, msg=str(call))


def test_bare_calls_are_looked_up_by_the_native_half(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second on, but for those whose lengths have to be made contiguous."""
    calls = list(bare_calls(device))
    expected = [call() for call in calls]
    seen: list[Any] = []
    first = _eager.forward_bare

    def counted(*given: Any) -> Any:
        seen.append(given[4])
        return first(*given)

    monkeypatch.setattr(_eager, "forward_bare", counted)
    for call, of_first in zip(calls, expected):
        torch.testing.assert_close(call(), of_first, rtol=0, atol=0, equal_nan=True)
    assert [sums.is_contiguous() for sums, *_ in seen] == [False]


def test_heads_that_do_not_match_are_refused_after_groups_were_asked_for(device: torch.device) -> None:
    q, k = (torch.randn(2, heads, 12, 16, device=device) for heads in (4, 2))
    for _ in range(2):
        ferroflash.scaled_dot_product_attention(q, k, k, enable_gqa=True)
        with pytest.raises(RuntimeError):
            ferroflash.scaled_dot_product_attention(q, k, k)


def test_no_more_bare_calls_than_so_many_are_kept(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arguments, "_MOST_BARE_CALLS", 3)
    for seq in range(1, 9):
        x = torch.randn(1, 2, seq, 8, device=device)
        o = ferroflash.scaled_dot_product_attention(x, x, x)
        assert torch.equal(ferroflash.scaled_dot_product_attention(x, x, x), o)
    options = _arguments.bare(_covered.without_groups, None, False, (None, None), 0.0, False, True, True)
    assert 1 <= len(options.calls) <= 3


def test_it_is_launched_at_other_addresses(device: torch.device) -> None:
    """Of any alignment: kernels of Hopper need 16 bytes."""
    x = torch.randn(3, 2 * 70 * 4 * 64 + 8, device=device).bfloat16()
    views = [x[:, skipped:][:, : 2 * 70 * 4 * 64].unflatten(1, (2, 70, 4, 64)) for skipped in (0, 8, 2)]
    expected = [attention(*(part.clone() for part in view), causal=True) for view in views]
    for view, o in [*zip(views, expected)] * 2:
        torch.testing.assert_close(attention(*view, causal=True), o, rtol=2e-2, atol=2e-2)
    assert len(_eager._calls) == 1


def test_no_more_than_so_many_are_kept(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_eager, "_MOST_CALLS", 3)
    for seq in range(1, 9):
        x = torch.randn(1, seq, 2, 8, device=device)
        assert torch.equal(attention(x, x, x), attention(x, x, x))
        assert len(_eager._calls) <= 3


def test_a_refusal_is_not_kept(device: torch.device) -> None:
    x = torch.randn(1, 5, 2, 8, device=device)
    for _ in range(2):
        with pytest.raises(ValueError, match="k: head_dim is 7"):
            attention(x, x[..., :7], x)
        with pytest.raises(ValueError, match="q: its dtype is"):
            attention(x.double(), x.double(), x.double())
    assert not _eager._calls


def lying(device: torch.device) -> Iterator[tuple[Tensor | None, ...]]:
    """Tensors, each list of which lies in another way."""
    x, rows = torch.zeros(4, 6, device=device), torch.zeros(4, device=device)
    yield (x,)
    yield (x, x)
    yield (x, None)
    yield (None, x)
    yield (x, None, None)
    yield (x.t(),)
    yield (x.reshape(6, 4),)
    yield (x[None],)
    yield (x[:, :3],)
    yield (x[:, ::2],)
    yield (x[:1].expand(4, 6),)
    yield (rows, x)
    yield (x.flatten(),)
    yield (x.sum(),)
    yield (x[:0],)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool):
        yield (x.to(dtype),)


@pytest.mark.parametrize("sign", [_native.signature, _eager._in_words])
def test_a_signature_says_how_tensors_lie_and_not_where(
    device: torch.device, sign: Callable[[tuple[Tensor | None, ...]], Any]
) -> None:
    first, second = list(lying(device)), list(lying(device))
    signatures = [sign(tensors) for tensors in first]
    assert len(set(signatures)) == len(first)
    assert signatures == [sign(tensors) for tensors in second]
    assert (type(signatures[0]) is bytes) == (sign is _native.signature)


def test_a_signature_is_of_tensors_alone() -> None:
    for other in (1, "q", [torch.zeros(2)]):
        assert _native.signature((torch.zeros(2), other)) is None


def test_a_device_is_part_of_a_signature(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("needs a GPU beside the CPU")
    x = torch.zeros(2)
    assert _native.signature((x,)) != _native.signature((x.to(device),))


def test_arrays_of_any_strides_are_read_at_each_call(device: torch.device) -> None:
    """Small ones are made contiguous; a mask and a bias are read as they lie."""
    make = {"device": device}
    x = torch.randn(2, 12, 4, 16, **make)

    def options(seed: int) -> dict[str, Tensor]:
        draw = torch.Generator(device).manual_seed(seed)
        square = torch.rand(12, 12, generator=draw, **make)
        return {
            "alibi_slopes": torch.rand(4, 2, generator=draw, **make).t(),
            "seqused_k": torch.randint(1, 13, (4,), generator=draw, **make).int()[::2],
            "doc_q": torch.randint(0, 2, (12, 2), generator=draw, **make).int().t(),
            "doc_k": torch.randint(0, 2, (12, 2), generator=draw, **make).int().t(),
            "mask": (square > 0.2).t(),
            "bias": square.t(),
        }

    for seed in (1, 2):
        given = options(seed)
        assert not any(array.is_contiguous() for array in given.values())
        expected = both(x, x, x, **{name: array.contiguous() for name, array in given.items()})
        for _ in range(2):
            for actual, of_contiguous in zip(both(x, x, x, **given), expected):
                torch.testing.assert_close(actual, of_contiguous, rtol=0, atol=0, equal_nan=True)
    assert len(_eager._calls) == 4


def test_an_lse_that_is_none_is_refused(device: torch.device) -> None:
    x = torch.randn(1, 5, 2, 8, device=device)
    o, lse = attention(x, x, x, return_lse=True)
    arguments = _eager.Arguments()
    for wrong in (lse[:, :, :4], lse.half(), lse[0]):
        with pytest.raises(ValueError, match=r"^lse: "):
            _eager.backward(x, None, x, x, x, o, wrong, arguments)
        with pytest.raises(ValueError, match=r"^d_lse: "):
            _eager.backward(x, wrong, x, x, x, o, lse, arguments)
    assert len(_eager._calls) == 1


class Seen(TorchDispatchMode):
    """The operators that a mode is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "flash_attn_func": lambda x: ferroflash.flash_attn_func(x, x, x),
    "scaled_dot_product_attention": lambda x: ferroflash.scaled_dot_product_attention(x, x, x),
    "attention": lambda x: attention(x, x, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_mode_sees_the_operators(device: torch.device, name: str, requires_grad: bool) -> None:
    x = torch.randn(1, 5, 2, 8, device=device, requires_grad=requires_grad)
    expected = FUNCTIONS[name](x)
    with Seen() as seen:
        o = FUNCTIONS[name](x)
        if requires_grad:
            o.sum().backward()
    assert torch.equal(o, expected)
    assert "ferroflash.forward.default" in seen.names
    assert ("ferroflash.backward.default" in seen.names) == requires_grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_subclass_sees_the_operator(device: torch.device, name: str) -> None:
    seen: list[str] = []

    class Sub(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.randn(1, 5, 2, 8, device=device)
    assert torch.equal(FUNCTIONS[name](x.as_subclass(Sub)).as_subclass(Tensor), FUNCTIONS[name](x))
    assert any("ferroflash.forward" in func for func in seen)


@pytest.mark.parametrize("arrays", [{}, {"alibi_slopes": torch.rand(2)}])
def test_what_backward_reads_is_saved(device: torch.device, arrays: dict[str, Tensor]) -> None:
    """So that hooks may move it, and that it is noticed where it has been changed."""
    options = {name: array.to(device) for name, array in arrays.items()}
    x = torch.randn(1, 5, 2, 8, device=device, requires_grad=True)
    (expected,) = torch.autograd.grad(attention(x, x, x, **options).sum(), x)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
        o = attention(x, x, x, **options)
    assert len(packed) == 5 + len(options)
    assert torch.equal(torch.autograd.grad(o.sum(), x)[0], expected)
    k = x.detach().clone()
    o = attention(x, k, k, **options)
    k.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_inference_mode(device: torch.device) -> None:
    x = torch.randn(1, 5, 2, 8, device=device)
    with torch.inference_mode():
        o, lse = attention(x, x, x, return_lse=True)
    assert o.is_inference()
    assert lse.is_inference()
    assert not attention(x, x, x).is_inference()
