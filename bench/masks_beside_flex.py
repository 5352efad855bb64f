"""Masks beside PyTorch's FlexAttention, in one run: `python3 bench/masks_beside_flex.py target/release/ferroflash --json FILE`.

Causal, documents of 1024, and a window of 1024, each by the states of blocks, and but for documents by the built-in mask too. FlexAttention is compiled, with a `BlockMask` of the same pairs. Both by protocol.py; TFLOP/s
count the visible pairs alone, four products for two of a forward pass, ten for five of a backward pass.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import protocol
import runs
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BATCH, HEADS, SEQ, NEAR = 2, 16, 8192, 1024

Visible = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# By name: whether a query sees a key, visible pairs of a head, and what `ferroflash bench` is told.
CAUSAL_PAIRS = SEQ * (SEQ + 1) // 2
WINDOW_PAIRS = NEAR * (NEAR + 1) // 2 + (SEQ - NEAR) * NEAR
# A chunk that is as long as the sequence hides nothing, but has the kernels look at the states of blocks.
MASKS: dict[str, tuple[Visible, int, dict[str, list[str | int]]]] = {
    "causal": (
        lambda _b, _h, query, key: key <= query,
        CAUSAL_PAIRS,
        {"by states": ["--mask", "causal", "--chunk", SEQ], "built in": ["--mask", "causal"]},
    ),
    "documents": (
        lambda _b, _h, query, key: query // NEAR == key // NEAR,
        SEQ * NEAR,
        {"by states": ["--chunk", NEAR]},
    ),
    "window": (
        lambda _b, _h, query, key: (key <= query) & (query - key < NEAR),
        WINDOW_PAIRS,
        {
            "by states": ["--mask", "causal", "--window-left", NEAR - 1, "--chunk", SEQ],
            "built in": ["--mask", "causal", "--window-left", NEAR - 1],
        },
    ),
}


def flex_calls(visible: Visible, head_dim: int) -> dict[str, Callable[[], object]]:
    """A call of either pass."""
    mask = create_block_mask(visible, None, None, SEQ, SEQ, device="cuda")
    attention = torch.compile(flex_attention, dynamic=False)
    shape = BATCH, HEADS, SEQ, head_dim
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    o = attention(q, k, v, block_mask=mask)
    d_o = torch.randn_like(o)

    def forward() -> object:
        with torch.no_grad():
            return attention(q, k, v, block_mask=mask)

    return {"fwd": forward, "bwd": lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)}


def measured(binary: str, name: str, head_dim: int) -> list[dict[str, object]]:
    """A row for each pass and each way to run it."""
    visible, pairs, options = MASKS[name]
    rows = []

    def add(way: str, of: str, sustained: float, burst: float | None) -> None:
        flops = (4 if of == "fwd" else 10) * pairs * BATCH * HEADS * head_dim
        rate = [ms and round(flops / ms / 1e9, 1) for ms in (sustained, burst)]
        rows.append({"mask": name, "head_dim": head_dim, "pass": of, "way": way, "ms": [sustained, burst], "tflops": rate})
        print(f"{name:10} {head_dim:4} {of} {way:10} {rate[0]:8} {rate[1]:8}", flush=True)

    for of, call in flex_calls(visible, head_dim).items():
        times = protocol.times(protocol.torch_queue(call), runs.gpu_id())
        add("flex", of, times.ms_sustained, times.ms_burst)
        for way, told in options.items():
            shape = ["--batch", BATCH, "--heads", HEADS, "--seq-q", SEQ, "--seq-kv", SEQ, "--head-dim", head_dim]
            report = runs.ferroflash_bench(binary, *shape, "--dtype", "bf16", "--pass", of, "--backend", "cuda", *told)
            add(way, of, report["ms_sustained"], report["ms_burst"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the ferroflash command")
    parser.add_argument("--head-dims", type=int, nargs="+", default=[128])
    parser.add_argument("--masks", nargs="+", choices=list(MASKS), default=list(MASKS))
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    rows = [
        row
        for name in arguments.masks
        for head_dim in arguments.head_dims
        for row in measured(arguments.binary, name, head_dim)
    ]
    if arguments.json:
        runs.write_json(arguments.json, **runs.head(torch.cuda.get_device_name(), rows=rows))


if __name__ == "__main__":
    runs.exit_with(main)
