"""Chunks of prompts with attention sinks on a cache in pages: `python3 bench/prompts_with_sinks.py`.

As gpt-oss has them, in layers that see all keys and in such that see 128; microseconds of a call in a CUDA graph of several, and of the
same call without sinks, a line of JSON a layer. What comes out is compared with attention in f32.
"""

from __future__ import annotations

import json

import runs
import torch
from ferroflash.cache import decode

HEADS, HEADS_K, PAGE = 64, 8, 16
CALLS, REPLAYS = 10, 24
ROWS = 256  # queries that are compared at once

LAYERS = [
    (head_dim, queries, keys, window)
    for head_dim in (64, 128)
    for queries, keys in ((2048, 8192), (512, 8192), (2048, 32768))
    for window in (None, 127)
]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int | None) -> torch.Tensor:
    """o in f32 of q [queries, heads, head_dim], k and v [keys, heads_k, head_dim]."""
    k, v = (x.float().repeat_interleave(HEADS // HEADS_K, 1).transpose(0, 1) for x in (k, v))
    key = torch.arange(k.shape[1], device="cuda")
    parts = []
    for begin in range(0, q.shape[0], ROWS):
        rows = q[begin : begin + ROWS].float().transpose(0, 1)
        position = torch.arange(begin, begin + rows.shape[1], device="cuda")[:, None] + k.shape[1] - q.shape[0]
        is_seen = key <= position if window is None else (key <= position) & (key >= position - window)
        scores = (rows @ k.transpose(1, 2) / q.shape[2] ** 0.5).masked_fill(~is_seen, float("-inf"))
        of_sinks = sinks[:, None, None].expand(-1, rows.shape[1], 1)
        weights = torch.cat([scores, of_sinks], -1).softmax(-1)[..., :-1]
        parts.append((weights @ v).transpose(0, 1))
    return torch.cat(parts)


def measured(head_dim: int, queries: int, keys: int, window: int | None) -> dict[str, object]:
    """Times of a layer, and how far its o is from f32's."""
    pages = keys // PAGE
    shape = pages, PAGE, HEADS_K, head_dim
    cache = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    table = torch.randperm(pages, device="cuda").int()[None]
    q = torch.randn(1, queries, HEADS, head_dim, device="cuda", dtype=torch.bfloat16)
    kv_lens = torch.tensor([keys], device="cuda").int()
    sinks = 2 * torch.randn(HEADS, device="cuda")

    def attention(sinks: torch.Tensor | None) -> torch.Tensor:
        return decode(q, *cache, kv_lens, block_table=table, sinks=sinks, window_size=(window, 0))

    k, v = (x[table[0].long()].flatten(0, 1) for x in cache)
    difference = attention(sinks)[0].float() - reference(q[0], k, v, sinks, window)
    of_window = queries * (keys if window is None else window + 1)
    pairs = of_window - (queries * (queries - 1) // 2 if window is None else 0)
    microseconds = runs.call_us(lambda: attention(sinks), CALLS, REPLAYS)
    return {
        "head_dim": head_dim,
        "queries": queries,
        "keys": keys,
        "window_left": window,
        "us": microseconds,
        "tflops": 4 * pairs * HEADS * head_dim / microseconds / 1e6,
        "without_sinks_us": runs.call_us(lambda: attention(None), CALLS, REPLAYS),
        "largest_difference": difference.abs().max().item(),
    }


def main() -> None:
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for layer in LAYERS:
        print(json.dumps(measured(*layer)), flush=True)


if __name__ == "__main__":
    main()
