"""What is refused, by which exception, and that it names the argument."""

from __future__ import annotations

import ferroflash
import pytest
import torch
from ferroflash import fa3, fa4
from ferroflash.torch import attention

Q = torch.randn(2, 5, 4, 16)


def message(error: type[Exception], call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(error) as raised:
        call(*args, **kwargs)
    return str(raised.value)


def test_the_librarys_own_messages_come_as_they_are() -> None:
    assert message(ValueError, attention, Q, Q[..., :15], Q) == "k: head_dim is 15; it must be 16, the head_dim of q"
    assert message(ValueError, attention, Q, Q[:, :, :3], Q[:, :, :3]).startswith("q: heads_q is 4")
    assert message(ValueError, attention, Q, Q, Q, softcap=-1.0).startswith("softcap: it is -1")
    assert message(ValueError, attention, Q, Q, Q, softmax_scale=float("nan")).startswith("softmax_scale")
    assert message(ValueError, attention, Q[0, 0], Q, Q).startswith("q: it has 2 axes")


def test_another_precision_is_named() -> None:
    refused = message(ValueError, attention, Q, Q, Q, precision="tf32")
    assert refused == "precision: it is 'tf32'; it must be 'bounded' or 'ieee'"


def test_other_dtypes_and_devices_are_named() -> None:
    assert message(ValueError, attention, Q.double(), Q, Q).startswith("q: its dtype is torch.float64")
    assert message(ValueError, attention, Q, Q.half(), Q).startswith("k: its dtype is torch.float16")
    meta = Q.to("meta")
    assert message(ValueError, attention, Q, Q, meta).startswith("v: it is on meta")


def test_small_arrays_are_named() -> None:
    slopes = torch.rand(3)
    assert message(ValueError, attention, Q, Q, Q, alibi_slopes=slopes).startswith("alibi_slopes: its shape is [3]")
    assert "float32" in message(ValueError, attention, Q, Q, Q, alibi_slopes=torch.rand(4).double())
    used = torch.tensor([1, 2, 3], dtype=torch.int32)
    assert message(ValueError, attention, Q, Q, Q, seqused_k=used).startswith("seqused_k: its shape is [3]")
    rows, lengths = Q[0], torch.tensor([0, 5])
    packed = {"max_seqlen_q": 5, "max_seqlen_k": 5}
    refused = message(ValueError, attention, rows, rows, rows, cu_seqlens_q=lengths, cu_seqlens_k=lengths, **packed)
    assert refused.startswith("cu_seqlens_q: its dtype is torch.int64")
    lengths = lengths.int()
    refused = message(ValueError, attention, rows, rows, rows, cu_seqlens_q=lengths, cu_seqlens_k=lengths[:1], **packed)
    assert refused.startswith("cu_seqlens_k: its shape is [1]")
    refused = message(ValueError, attention, rows, rows, rows, cu_seqlens_q=lengths, **packed)
    assert refused.startswith("cu_seqlens_k")


@pytest.mark.parametrize(
    ("function", "argument", "value"),
    [
        (fa3.flash_attn_func, "qv", Q),
        (fa3.flash_attn_func, "q_descale", Q),
        (fa4.flash_attn_func, "full_block_cnt", Q),
        (fa4.flash_attn_func, "mask_mod", max),
        (fa4.flash_attn_varlen_func, "score_mod", max),
        (ferroflash.flash_attn_with_kvcache, "cache_leftpad", Q),
        (fa3.flash_attn_with_kvcache, "k_descale", Q),
    ],
)
def test_what_is_not_supported_is_named(function: object, argument: str, value: object) -> None:
    assert message(NotImplementedError, function, Q, Q, Q, **{argument: value}).startswith(f"{argument}: ")


def test_dropout_beside_a_block_table_is_named() -> None:
    lengths, rows = torch.tensor([0, 5], dtype=torch.int32), Q[0]
    function = ferroflash.flash_attn_varlen_func
    refused = message(NotImplementedError, function, rows, Q, Q, lengths, lengths, 5, 5, 0.1, block_table=Q)
    assert refused.startswith("dropout_p: ")
    assert message(ValueError, fa4.flash_attn_varlen_func, rows, Q, Q, lengths, page_table=Q).startswith("seqused_k: ")
