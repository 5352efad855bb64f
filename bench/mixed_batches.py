"""One call of packed queries on a cache in pages, beside the calls of its parts: `python3 bench/mixed_batches.py`.

Single tokens and chunks of prompts, as a serving engine has them side by side; microseconds of a call in a CUDA graph of several, a
line of JSON a batch. What a part gives alone is compared with its rows of the whole.
"""

from __future__ import annotations

import json
from typing import Callable

import runs
import torch
from ferroflash.cache import decode

HEADS, HEADS_K, PAGE = 32, 8, 16
CALLS, REPLAYS = 10, 24

# Single tokens, chunks of prompts (queries and keys), keys of the tokens' sequences, head_dim.
BATCHES = [
    (64, [(512, 8192)], 8192, 128),
    (64, [(2048, 8192)], 8192, 128),
    (0, [(2048, 8192)] * 2, 8192, 128),
    (0, [(512, 8192)] * 8, 8192, 128),
    (128, [(512, 4096), (256, 256), (1024, 2048)], 2048, 128),
    (64, [], 8192, 128),
    (64, [(2048, 8192)], 8192, 64),
]


def microseconds(call: Callable[[], object]) -> float:
    return runs.call_us(call, CALLS, REPLAYS)


def measured(tokens: int, chunks: list[tuple[int, int]], keys: int, head_dim: int) -> dict[str, object]:
    """Times of a batch and of its parts, and how far their results differ."""
    counts = [1] * tokens + [count for count, _ in chunks]
    lens = [keys] * tokens + [length for _, length in chunks]
    batch, max_pages = len(counts), max(lens) // PAGE
    shape = batch * max_pages, PAGE, HEADS_K, head_dim
    cache = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    table = torch.randperm(batch * max_pages, device="cuda").int().view(batch, max_pages)
    q = torch.randn(sum(counts), HEADS, head_dim, device="cuda", dtype=torch.bfloat16)
    sums = torch.tensor([0, *counts], device="cuda").cumsum(0).int()
    kv_lens = torch.tensor(lens, device="cuda").int()
    packed = {"cu_seqlens_q": sums, "max_seqlen_q": max(counts)}

    def whole() -> torch.Tensor:
        return decode(q, *cache, kv_lens, block_table=table, **packed)

    def part(rows: torch.Tensor, sequences: slice) -> Callable[[], torch.Tensor]:
        return lambda: decode(rows, *cache, kv_lens[sequences], block_table=table[sequences])

    o, differences = whole(), [0.0]
    of_tokens = of_chunks = 0.0
    if tokens:
        alone = part(q[:tokens, None], slice(0, tokens))
        of_tokens = microseconds(alone)
        differences.append((alone()[:, 0] - o[:tokens]).abs().max().item())
    at = tokens
    for number, (count, _) in enumerate(chunks):
        alone = part(q[None, at : at + count], slice(tokens + number, tokens + number + 1))
        of_chunks += microseconds(alone)
        differences.append((alone()[0] - o[at : at + count]).abs().max().item())
        at += count
    return {
        "tokens": tokens,
        "chunks": chunks,
        "keys": keys,
        "head_dim": head_dim,
        "packed_us": microseconds(whole),
        "tokens_alone_us": of_tokens,
        "chunks_alone_us": of_chunks,
        "largest_difference": max(differences),
    }


def main() -> None:
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}))
    for batch in BATCHES:
        print(json.dumps(measured(*batch)), flush=True)


if __name__ == "__main__":
    main()
