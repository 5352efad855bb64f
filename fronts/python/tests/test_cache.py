"""Caches of keys and values: pages, rotation, e4m3, wrong tables, torch.compile; on the CPU and on a GPU."""

from __future__ import annotations

from typing import Any

import ferroflash
import pytest
import reference
import torch
from ferroflash import fa3, fa4
from ferroflash.cache import append_kv, decode
from torch import Tensor

# float32 has no kernels for caches on a GPU.
DTYPE = torch.float16
HEADS, HEADS_K, DIM, PAGE = 4, 2, 32, 8


def randn(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).to(DTYPE)


def integers(device: torch.device, values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


class Pages:
    """A paged cache of NaN, but for the keys of sequences of these lengths, with pages in no order."""

    def __init__(self, device: torch.device, lengths: list[int], most: int = 64) -> None:
        count = most // PAGE
        order = torch.randperm(len(lengths) * count + 3)[: len(lengths) * count]
        self.table = order.reshape(len(lengths), count).to(device, torch.int32)
        shape = len(lengths) * count + 3, PAGE, HEADS_K, DIM
        self.cache = [torch.full(shape, torch.nan, dtype=DTYPE, device=device) for _ in range(2)]
        self.lengths = lengths
        for sequence, length in enumerate(lengths):
            for pages in self.cache:
                for key, row in enumerate(randn(device, length, HEADS_K, DIM)):
                    pages[self.table[sequence, key // PAGE], key % PAGE] = row

    def rows(self, sequence: int, length: int) -> list[Tensor]:
        """k and v of a sequence, as one entry of a batch."""
        flat = [pages[self.table[sequence].long()].flatten(0, 1)[None, :length] for pages in self.cache]
        return flat


@pytest.mark.parametrize(
    "options",
    [
        {"causal": False},
        {"causal": True},
        {"causal": True, "window_size": (9, 0), "softmax_scale": 0.3},
        {"causal": True, "softcap": 2.0},
    ],
)
@pytest.mark.parametrize("seq_q", [1, 3])
def test_pages(device: torch.device, seq_q: int, options: dict[str, Any]) -> None:
    pages = Pages(device, [5, 64, 31, 8])
    q = randn(device, 4, seq_q, HEADS, DIM)
    slopes = torch.rand(HEADS, device=device) / 4
    lens = integers(device, pages.lengths)
    o, lse = ferroflash.flash_attn_with_kvcache(
        q,
        *pages.cache,
        cache_seqlens=lens,
        block_table=pages.table,
        alibi_slopes=slopes,
        return_softmax_lse=True,
        **options,
    )
    for sequence, length in enumerate(pages.lengths):
        one = slice(sequence, sequence + 1)
        expected = reference.attention(q[one], *pages.rows(sequence, length), alibi_slopes=slopes, **options)
        reference.check("o", o[one], expected[0], reference.TOLERANCE[DTYPE])
        reference.check("lse", lse[one], expected[1], 2e-4)
    assert torch.equal(
        fa3.flash_attn_with_kvcache(q, *pages.cache, cache_seqlens=lens, page_table=pages.table, **options),
        decode(q, *pages.cache, lens, block_table=pages.table, **options),
    )


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_tree_of_drafts(device: torch.device, is_batched: bool) -> None:
    """Of drafts a query sees those that it descends from, here 0 → 1 → 3 and 0 → 2 → 4, of a sequence of fewer keys too."""
    pages, seq_q = Pages(device, [5, 64, 31, 3]), 5
    q, lens = randn(device, 4, seq_q, HEADS, DIM), integers(device, pages.lengths)
    words = torch.tensor([0b1, 0b11, 0b101, 0b1011, 0b10101], device=device)
    if is_batched:
        words = torch.stack([words, words.flip(0), words, ~words])
    options = {"causal": False, "return_lse": True, "block_table": pages.table}
    o, lse = decode(q, *pages.cache, lens, tree_mask=words, **options)
    for sequence, length in enumerate(pages.lengths):
        own = words[sequence] if is_batched else words
        drafts = own[:, None] >> torch.arange(seq_q, device=device) & 1
        shown = torch.ones(seq_q, seq_q + length, dtype=torch.int64, device=device)
        shown[:, length:] = drafts
        one = slice(sequence, sequence + 1)
        expected = reference.attention(q[one], *pages.rows(sequence, length), mask=shown[:, seq_q:].bool())
        reference.check("o", o[one], expected[0], reference.TOLERANCE[DTYPE])
        reference.check("lse", lse[one], expected[1], 2e-4)
    by_operator = torch.compile(decode, backend="aot_eager")(q, *pages.cache, lens, tree_mask=words, **options)
    assert torch.equal(by_operator[0].nan_to_num(), o.nan_to_num())
    for wrong in (words.int(), words[..., :4]):
        with pytest.raises(ValueError, match="tree_mask: "):
            decode(q, *pages.cache, lens, tree_mask=wrong, **options)


def test_packed_queries(device: torch.device) -> None:
    """A chunk of a prompt, one token, none, and drafts, in one call, by all names that there are."""
    pages, counts = Pages(device, [64, 31, 8, 30]), [40, 1, 0, 3]
    q, lens = randn(device, sum(counts), HEADS, DIM), integers(device, pages.lengths)
    sums, sums_k = reference.cu_seqlens(counts, device), reference.cu_seqlens(pages.lengths, device)
    table, sinks = pages.table, torch.rand(HEADS, device=device)
    o, lse, _ = ferroflash.flash_attn_varlen_func(
        q, *pages.cache, sums, sums_k, 40, 64, causal=True, block_table=table, return_attn_probs=True
    )
    begin = 0
    for sequence, (length, count) in enumerate(zip(pages.lengths, counts)):
        own = slice(begin, begin + count)
        begin += count
        expected = reference.attention(q[own][None], *pages.rows(sequence, length), causal=True)
        reference.check("o", o[own], expected[0][0], reference.TOLERANCE[DTYPE])
        reference.check("lse", lse[:, own], expected[1][0], 2e-4)
    of = {"cu_seqlens_q": sums, "max_seqlen_q": 40}
    others = {"page_table": table, "causal": True}
    assert torch.equal(fa3.flash_attn_with_kvcache(q, *pages.cache, cache_seqlens=lens, **of, **others), o)
    sinking = fa4.flash_attn_varlen_func(q, *pages.cache, **of, seqused_k=lens, learnable_sink=sinks, **others)
    assert torch.equal(sinking[0], decode(q, *pages.cache, lens, block_table=table, sinks=sinks, **of))
    assert not torch.equal(sinking[0], o)


def rotated(x: Tensor, begin: int, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rows of a sequence [1, seq, heads, dim] by the angles of positions from `begin` on."""
    half = cos.shape[1]
    cos, sin = (t[begin : begin + x.shape[1]].double()[:, None] for t in (cos, sin))
    x = x.double()
    turned = x[..., : 2 * half]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned, x[..., 2 * half :]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("table_dtype", [torch.float32, DTYPE])
def test_new_rows_are_rotated_and_appended(device: torch.device, interleaved: bool, table_dtype: torch.dtype) -> None:
    pages = Pages(device, [0, 7, 30])
    before = [pages.rows(sequence, length) for sequence, length in enumerate(pages.lengths)]
    q, k, v = (randn(device, 3, 4, heads, DIM) for heads in (HEADS, HEADS_K, HEADS_K))
    angles = torch.rand(64, DIM // 4, device=device) * 6
    cos, sin = angles.cos().to(table_dtype), angles.sin().to(table_dtype)
    options = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved, "causal": True}
    lens = integers(device, pages.lengths)
    o = ferroflash.flash_attn_with_kvcache(
        q, *pages.cache, k, v, cache_seqlens=lens, block_table=pages.table, **options
    )
    for sequence, length in enumerate(pages.lengths):
        one = slice(sequence, sequence + 1)
        of_k, of_v = pages.rows(sequence, length + 4)
        new = rotated(k[one], length, cos, sin, interleaved)
        for old, now in zip(before[sequence], (of_k, of_v)):
            assert torch.equal(now[:, :length], old)
        reference.check("k", of_k[:, length:], new, 1e-3)
        assert torch.equal(of_v[:, length:], v[one])
        turned = rotated(q[one], length, cos, sin, interleaved).to(DTYPE)
        expected, _ = reference.attention(turned, of_k, of_v, causal=True)
        reference.check("o", o[one], expected, reference.TOLERANCE[DTYPE])
    options["causal"] = False
    with pytest.raises(NotImplementedError, match="causal: "):
        ferroflash.flash_attn_with_kvcache(
            q, *pages.cache, k, v, cache_seqlens=lens, block_table=pages.table, **options
        )


def test_entries_of_a_contiguous_cache(device: torch.device) -> None:
    cache = [randn(device, 5, 40, HEADS_K, DIM) for _ in range(2)]
    before = [x.clone() for x in cache]
    q, new = randn(device, 2, 1, HEADS, DIM), [randn(device, 2, 1, HEADS_K, DIM) for _ in range(2)]
    entries, used = integers(device, [4, 1]), integers(device, [12, 39])
    o = ferroflash.flash_attn_with_kvcache(q, *cache, *new, cache_seqlens=used, cache_batch_idx=entries)
    for row, (entry, count) in enumerate([(4, 12), (1, 39)]):
        for now, old, added in zip(cache, before, new):
            old[entry, count] = added[row, 0]
            assert torch.equal(now[entry], old[entry])
        one = [x[entry : entry + 1, : count + 1] for x in cache]
        expected, _ = reference.attention(q[row : row + 1], *one)
        reference.check("o", o[row : row + 1], expected, reference.TOLERANCE[DTYPE])
    for entry in (0, 2, 3):
        assert all(torch.equal(now[entry], old[entry]) for now, old in zip(cache, before))


def test_e4m3_with_scales_of_heads(device: torch.device) -> None:
    count, length = 6, 21
    cache = [torch.zeros(count, PAGE, HEADS_K, DIM, device=device).to(torch.float8_e4m3fn) for _ in range(2)]
    scales = [torch.rand(1, 1, HEADS_K, device=device) / 50 + 0.01 for _ in range(2)]
    table, lens = integers(device, [[5, 0, 3]]), integers(device, [length])
    k, v = (randn(device, 1, length, HEADS_K, DIM) for _ in range(2))
    of = {"block_table": table, "k_scales": scales[0], "v_scales": scales[1]}
    assert append_kv(k, v, *cache, lens, **of) is None
    q = randn(device, 1, 1, HEADS, DIM)
    o = decode(q, *cache, lens, **of)
    rows = []
    for pages, scale, given in zip(cache, scales, (k, v)):
        codes = (given.float() / scale.squeeze(0)[..., None]).to(torch.float8_e4m3fn)
        held = pages[table[0].long()].flatten(0, 1)[None, :length]
        assert torch.equal(held.float(), codes.float())
        rows.append(held.float() * scale.squeeze(0)[..., None])
    # Probabilities take in scales of values, rounded to bfloat16.
    reference.check("o", o, reference.attention(q, *rows)[0], reference.TOLERANCE[torch.bfloat16])


def test_slots(device: torch.device) -> None:
    cache = [torch.zeros(3, PAGE, HEADS_K, DIM, dtype=DTYPE, device=device) for _ in range(2)]
    k, v = (randn(device, 2, 2, HEADS_K, DIM) for _ in range(2))
    slots, lens = integers(device, [[17, -1], [3, 8]]), integers(device, [2, 2])
    append_kv(k, v, *cache, lens, slots=slots)
    for pages, rows in zip(cache, (k, v)):
        expected = torch.zeros_like(pages)
        expected[2, 1], expected[0, 3], expected[1, 0] = rows[0, 0], rows[1, 0], rows[1, 1]
        assert torch.equal(pages, expected)


def test_packed_rows_go_to_slots(device: torch.device) -> None:
    """As an engine with a slot mapping writes them: rows of all sequences one after the other, with their positions."""
    positions, slots = integers(device, [6, 7, 0, 20]), integers(device, [23, 8, -1, 2])
    cache = [torch.zeros(3, PAGE, HEADS_K, DIM, dtype=DTYPE, device=device) for _ in range(2)]
    k, v, q = (randn(device, 4, heads, DIM) for heads in (HEADS_K, HEADS_K, HEADS))
    angles = torch.rand(64, DIM // 2, device=device) * 6
    cos, sin = angles.cos(), angles.sin()
    of_q = append_kv(
        k[:, None], v[:, None], *cache, positions + 1, slots=slots[:, None], cos=cos, sin=sin, q=q[:, None]
    )
    assert of_q is not None
    for row, (position, slot) in enumerate(zip(positions.tolist(), slots.tolist())):
        one = slice(row, row + 1)
        reference.check("q", of_q[one], rotated(q[one][None], position, cos, sin, False), 1e-3)
        if slot >= 0:
            new = rotated(k[one][None], position, cos, sin, False)[0, 0]
            reference.check("k", cache[0][slot // PAGE, slot % PAGE], new, 1e-3)
            assert torch.equal(cache[1][slot // PAGE, slot % PAGE], v[row])
    written = [pages.flatten(0, 1).ne(0).any(-1).any(-1).sum().item() for pages in cache]
    assert written == [3, 3]


def test_wrong_tables_and_lengths_poison_their_sequence(device: torch.device) -> None:
    pages = Pages(device, [20, 20, 20])
    q, lens = randn(device, 3, 1, HEADS, DIM), integers(device, pages.lengths)
    right = decode(q, *pages.cache, lens, block_table=pages.table)
    table = pages.table.clone()
    table[1, 1] = 10_000
    o = decode(q, *pages.cache, integers(device, [20, 20, 65]), block_table=table)
    assert torch.equal(o[0], right[0])
    assert o[1:].isnan().all()


def test_compiled(device: torch.device) -> None:
    def step(q: Tensor, k: Tensor, v: Tensor, pages: list[Tensor], lens: Tensor, table: Tensor) -> Tensor:
        return ferroflash.flash_attn_with_kvcache(
            q * 2, *pages, k, v, cache_seqlens=lens, block_table=table, causal=True
        )

    pages = Pages(device, [20, 3])
    other = [x.clone() for x in pages.cache]
    q, k, v = (randn(device, 2, 2, heads, DIM) for heads in (HEADS, HEADS_K, HEADS_K))
    lens = integers(device, pages.lengths)
    expected = step(q, k, v, pages.cache, lens, pages.table)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v, other, lens, pages.table), expected)
    assert all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(other, pages.cache))


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    pages = Pages(device, [20, 3])
    q, lens = randn(device, 2, 1, HEADS, DIM), integers(device, pages.lengths)
    k = randn(device, 2, 1, HEADS_K, DIM)
    angles = torch.rand(64, 4, device=device)

    def refused(function: Any, *given: Any, **options: Any) -> str:
        with pytest.raises(ValueError, match=": ") as raised:
            function(*given, **options)
        return str(raised.value)

    table = pages.table
    assert refused(decode, q, *pages.cache, lens.long(), block_table=table).startswith("kv_lens: it is torch.int64")
    assert refused(decode, q, *pages.cache, lens[:1], block_table=table).startswith("kv_lens: its shape is [1]")
    assert refused(decode, q, *pages.cache, lens, block_table=table[0]).startswith("block_table: its shape is [8]")
    assert refused(decode, q.float(), *pages.cache, lens, block_table=table).startswith("k_cache: its dtype")
    sums = reference.cu_seqlens([1, 1, 1], device)
    packed = {"cu_seqlens_q": sums, "max_seqlen_q": 1, "block_table": table}
    assert refused(decode, q[:, 0], *pages.cache, lens, **packed).startswith("kv_lens: its shape is [2]")
    assert refused(decode, q, *pages.cache, lens).startswith("k: ")  # as many entries as q has, without a table
    scales = torch.ones(1, 1, 1, device=device)
    assert refused(decode, q, *pages.cache, lens, block_table=table, k_scales=scales).startswith("v_scales: it is None")
    both = {"k_scales": scales, "v_scales": scales}
    assert "only one of e4m3" in refused(decode, q, *pages.cache, lens, block_table=table, **both)
    function = ferroflash.flash_attn_with_kvcache
    assert refused(function, q, *pages.cache, block_table=table).startswith("cache_seqlens: ")
    rotation = {"cache_seqlens": lens, "block_table": table, "rotary_cos": angles}
    assert refused(function, q, *pages.cache, k, k, **rotation).startswith("rotary_sin: ")
    assert refused(function, q, *pages.cache, **rotation, rotary_sin=angles).startswith("rotary_cos: ")
    assert refused(append_kv, k, k, *pages.cache, lens, block_table=table, q=q).startswith("cos: ")
    wide = torch.rand(64, DIM, device=device)
    assert refused(append_kv, k, k, *pages.cache, lens, block_table=table, cos=wide, sin=wide).startswith("cos: ")


@pytest.mark.cuda
def test_one_graph_for_all_lengths() -> None:
    device = torch.device("cuda")
    pages = Pages(device, [40, 40])
    q, k, v = (randn(device, 2, 1, heads, DIM) for heads in (HEADS, HEADS_K, HEADS_K))
    lens = integers(device, [1, 2])

    def step() -> Tensor:
        append_kv(k, v, *pages.cache, lens, block_table=pages.table)
        return decode(q, *pages.cache, lens, block_table=pages.table)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = step()
    for lengths in ([3, 30], [17, 8], [40, 1]):
        lens.copy_(integers(device, lengths))
        graph.replay()
        for sequence, length in enumerate(lengths):
            one = slice(sequence, sequence + 1)
            expected, _ = reference.attention(q[one], *pages.rows(sequence, length))
            reference.check("o", o[one], expected, reference.TOLERANCE[DTYPE])
