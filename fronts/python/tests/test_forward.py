"""o and lse of drawn problems, beside f64: shapes, strides, dtypes, masks, scores, packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import reference
import torch
from ferroflash.torch import attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
SIDES = st.one_of(st.none(), st.integers(0, 40))


def drawn_view(data: st.DataObject, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of this shape, by itself, or one that lies in memory as a view of another."""
    make = {"dtype": dtype, "device": device}
    kind = data.draw(st.sampled_from(["dense", "heads first", "slice", "reversed axes", "expanded"]))
    *outer, heads, dim = shape
    if kind == "heads first":
        return torch.randn(*outer[:-1], heads, outer[-1], dim, **make).transpose(-3, -2)
    if kind == "slice":
        return torch.randn(*outer, 3, heads, dim, **make).unbind(-3)[1]
    if kind == "reversed axes":
        return torch.randn(*reversed(shape), **make).permute(*reversed(range(len(shape))))
    if kind == "expanded":
        return torch.randn(*outer, 1, dim, **make).expand(shape)
    return torch.randn(shape, **make)


def drawn_options(data: st.DataObject, heads: int, batch: int, device: torch.device) -> dict[str, Any]:
    slopes = data.draw(st.sampled_from([None, (heads,), (batch, heads)]))
    return {
        "softmax_scale": data.draw(st.sampled_from([None, 0.3])),
        "causal": data.draw(st.booleans()),
        "window_size": (data.draw(SIDES), data.draw(SIDES)),
        "softcap": data.draw(st.sampled_from([0.0, 5.0])),
        "alibi_slopes": None if slopes is None else torch.rand(slopes, device=device),
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_dense_problems(device: torch.device, data: st.DataObject) -> None:
    batch, group, heads = (data.draw(st.integers(1, 3)) for _ in range(3))
    seq_q, seq_k = (data.draw(st.integers(0, 90)) for _ in range(2))
    dim, dim_v = (data.draw(st.sampled_from([1, 8, 20, 64, 130])) for _ in range(2))
    dtype = data.draw(DTYPES)
    q = drawn_view(data, (batch, seq_q, heads * group, dim), dtype, device)
    k = drawn_view(data, (batch, seq_k, heads, dim), dtype, device)
    v = drawn_view(data, (batch, seq_k, heads, dim_v), dtype, device)
    options = drawn_options(data, heads * group, batch, device)
    options["top_left"] = data.draw(st.booleans())
    precision = data.draw(st.sampled_from(["bounded", "ieee"]))
    o, lse = attention(q, k, v, **options, precision=precision, return_lse=True)
    assert o.dtype is dtype
    expected_o, expected_lse = reference.attention(q, k, v, **options)
    reference.check("o", o, expected_o, reference.TOLERANCE[dtype])
    reference.check("lse", lse, expected_lse, 1e-4)

    first = [x.transpose(1, 2) for x in (q, k, v)]
    again = attention(*first, **options, precision=precision, heads_first=True)
    assert torch.equal(again.transpose(1, 2), o), "the order of axes changes the result"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_packed_problems(device: torch.device, data: st.DataObject) -> None:
    group, heads = (data.draw(st.integers(1, 3)) for _ in range(2))
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 70)), min_size=1, max_size=5))
    lengths_q, lengths_k = ([pair[side] for pair in lengths] for side in (0, 1))
    dtype, dim = data.draw(DTYPES), data.draw(st.sampled_from([8, 33, 64]))
    q = drawn_view(data, (sum(lengths_q), heads * group, dim), dtype, device)
    k, v = (drawn_view(data, (sum(lengths_k), heads, dim), dtype, device) for _ in range(2))
    options = drawn_options(data, heads * group, len(lengths), device)
    o, lse = attention(
        q,
        k,
        v,
        cu_seqlens_q=reference.cu_seqlens(lengths_q, device),
        cu_seqlens_k=reference.cu_seqlens(lengths_k, device),
        max_seqlen_q=max(lengths_q),
        max_seqlen_k=max(lengths_k),
        **options,
        return_lse=True,
    )
    expected_o, expected_lse = reference.packed(q, k, v, lengths_q, lengths_k, **options)
    reference.check("o", o, expected_o, reference.TOLERANCE[dtype])
    reference.check("lse", lse, expected_lse, 1e-4)


def test_views_are_read_where_they_lie(device: torch.device) -> None:
    """Parts of a packed tensor are not copied: what they lie beside may be anything, and o's memory is q's order."""
    qkv = torch.full((2, 3, 50, 4, 32), torch.nan, device=device)
    q, k, v = (qkv[:, part, 5:40, 1:3] for part in range(3))
    for part in (q, k, v):
        part.copy_(torch.randn(part.shape))
    o = attention(q, k, v)
    reference.check("o", o, reference.attention(q, k, v)[0], 2e-5)
    q = torch.randn(2, 4, 7, 16, device=device).transpose(1, 2)
    assert attention(q, q, q).stride() == q.stride()


def test_only_used_keys_are_seen(device: torch.device) -> None:
    q, k, v = (torch.randn(3, seq, 2, 16, device=device) for seq in (2, 20, 20))
    used = torch.tensor([20, 7, 0], dtype=torch.int32, device=device)
    k[1, 7:], v[1, 7:], k[2], v[2] = torch.nan, torch.nan, torch.nan, torch.nan
    o = attention(q, k, v, seqused_k=used, causal=True)
    for entry, count in enumerate(used.tolist()):
        one = slice(entry, entry + 1)
        expected, _ = reference.attention(q[one], k[one, :count], v[one, :count], causal=True)
        reference.check("o", o[one], expected, 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_past_the_dispatcher_and_through_it_results_are_the_same(device: torch.device, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 33, 4, 64, device=device, dtype=dtype) for _ in range(3))
    eager = attention(q, k, v, causal=True, return_lse=True)
    through = attention(q.requires_grad_(), k, v, causal=True, return_lse=True)
    assert all(torch.equal(a, b) for a, b in zip(eager, through))
