"""The functions of other libraries' names: signatures, what they return, and packed operands and caches."""

from __future__ import annotations

import inspect

import ferroflash
import pytest
import reference
import torch
import torch.nn.functional as functional
from ferroflash import fa3, fa4
from ferroflash.torch import attention

# As `inspect` tells them of the libraries themselves.
SIGNATURES = {
    ferroflash.flash_attn_func: "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs",
    ferroflash.flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p softmax_scale "
    "causal window_size softcap alibi_slopes deterministic return_attn_probs block_table",
    ferroflash.flash_attn_with_kvcache: "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx "
    "cache_leftpad block_table softmax_scale causal window_size softcap rotary_interleaved alibi_slopes num_splits "
    "return_softmax_lse",
    fa3.flash_attn_func: "q k v softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap "
    "num_splits pack_gqa deterministic sm_margin return_attn_probs",
}


@pytest.mark.parametrize("function", SIGNATURES)
def test_parameters_have_the_names_and_order_of_the_original(function: object) -> None:
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


def test_what_is_returned(device: torch.device) -> None:
    q = torch.randn(1, 5, 2, 16, device=device)
    o, lse = attention(q, q, q, return_lse=True)
    assert torch.equal(ferroflash.flash_attn_func(q, q, q), o)
    out, softmax_lse, probabilities = ferroflash.flash_attn_func(q, q, q, return_attn_probs=True)
    assert torch.equal(out, o)
    assert torch.equal(softmax_lse, lse)
    assert probabilities is None
    assert torch.equal(fa3.flash_attn_func(q, q, q), o)
    assert [x.shape for x in fa4.flash_attn_func(q, q, q)] == [o.shape, lse.shape]


def test_packed_operands(device: torch.device) -> None:
    options = {"causal": True, "softmax_scale": 0.2, "window_size": (6, 3), "softcap": 9.0}
    options["alibi_slopes"] = torch.rand(4, device=device)
    qkv = torch.randn(2, 12, 3, 4, 16, device=device)
    q, k, v = qkv.unbind(2)
    expected = reference.attention(q, k, v, **options)[0]
    reference.check("qkv", ferroflash.flash_attn_qkvpacked_func(qkv, **options), expected, 2e-5)
    reference.check("kv", ferroflash.flash_attn_kvpacked_func(q, qkv[:, :, 1:], **options), expected, 2e-5)
    # The two sequences of the batch, packed.
    rows, sums = qkv.flatten(0, 1), reference.cu_seqlens([12, 12], device)
    o = ferroflash.flash_attn_varlen_qkvpacked_func(rows, sums, 12, **options)
    reference.check("varlen qkv", o, expected.flatten(0, 1), 2e-5)
    o = ferroflash.flash_attn_varlen_kvpacked_func(rows[:, 0], rows[:, 1:], sums, sums, 12, 12, **options)
    reference.check("varlen kv", o, expected.flatten(0, 1), 2e-5)
    of_fa4 = {name: options[name] for name in ("causal", "softmax_scale", "softcap")}
    rows = rows.unbind(1)
    expected = reference.attention(q, k, v, **of_fa4)[0].flatten(0, 1)
    for function in (fa3.flash_attn_varlen_func, fa4.flash_attn_varlen_func):
        o = function(*rows, sums, sums, 12, 12, **of_fa4)
        reference.check("varlen", o[0] if isinstance(o, tuple) else o, expected, 2e-5)


def test_a_cache_is_appended_to_and_attended(device: torch.device) -> None:
    cache = [torch.randn(3, 40, 2, 16, device=device) for _ in range(2)]
    q, new = torch.randn(3, 2, 4, 16, device=device), [torch.randn(3, 2, 2, 16, device=device) for _ in range(2)]
    used = torch.tensor([5, 38, 0], dtype=torch.int32, device=device)
    before = [x.clone() for x in cache]
    o, lse = ferroflash.flash_attn_with_kvcache(
        q, *cache, *new, cache_seqlens=used, causal=True, return_softmax_lse=True
    )
    for entry, count in enumerate(used.tolist()):
        one = slice(entry, entry + 1)
        parts = [torch.cat([x[one, :count], y[one]], 1) for x, y in zip(before, new)]
        assert all(torch.equal(x[one, : count + 2], part) for x, part in zip(cache, parts))
        expected_o, expected_lse = reference.attention(q[one], *parts, causal=True)
        reference.check("o", o[one], expected_o, 2e-5)
        reference.check("lse", lse[one], expected_lse, 1e-4)
    o = fa3.flash_attn_with_kvcache(q, *cache, cache_seqlens=7)
    reference.check("o", o, reference.attention(q, *(x[:, :7] for x in cache))[0], 2e-5)
    with pytest.raises(ValueError, match="cache_seqlens"):
        ferroflash.flash_attn_with_kvcache(q, *cache, *new)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_own_function(device: torch.device, dtype: torch.dtype) -> None:
    q = torch.randn(2, 4, 11, 32, device=device, dtype=dtype)
    k, v = (torch.randn(2, 2, 17, 32, device=device, dtype=dtype) for _ in range(2))
    for is_causal in (False, True):
        options = {"is_causal": is_causal, "scale": 0.3, "enable_gqa": True}
        o = ferroflash.scaled_dot_product_attention(q, k, v, **options)
        first = [x.transpose(1, 2) for x in (q, k, v)]
        expected = reference.attention(*first, causal=is_causal, top_left=True, softmax_scale=0.3)[0]
        reference.check("o", o, expected.transpose(1, 2), reference.TOLERANCE[dtype])
        theirs = functional.scaled_dot_product_attention(q, k, v, **options)
        reference.check("torch's", theirs, expected.transpose(1, 2), reference.TOLERANCE[dtype])


def test_torch_does_what_is_not_covered(device: torch.device) -> None:
    q = torch.randn(2, 4, 11, 32, device=device)
    mask = torch.randn(11, 11, device=device)
    without_batch = q[0], q[0], q[0], mask
    expected = functional.scaled_dot_product_attention(*without_batch)
    assert torch.equal(ferroflash.scaled_dot_product_attention(*without_batch), expected)
    if device.type == "cpu":  # on a GPU torch gives NaN
        assert torch.equal(ferroflash.scaled_dot_product_attention(q, q, q, dropout_p=1.0), torch.zeros_like(q))
    with pytest.raises(NotImplementedError, match="window_size"):
        ferroflash.scaled_dot_product_attention(*without_batch, window_size=(3, 0))
    # Heads that only enable_gqa would share, and two masks at once, are torch's to refuse.
    with pytest.raises(RuntimeError):
        ferroflash.scaled_dot_product_attention(q, q[:, :2], q[:, :2])
    if device.type == "cpu":  # on a GPU torch 2.11 takes both
        with pytest.raises(RuntimeError):
            ferroflash.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
